//! A whole mesh on one machine: a relay, an ingress and nodes, each a peer of its own that talks to the others over
//! loopback exactly as it would over the world. The engines are real child processes, simulated or the user's own.

use crate::{
    cli::DemoArgs,
    exit::{self, CommandError},
    signals::drain_on_signal,
};
use futures::future::select_all;
use multiaddr::Multiaddr;
use otela_ingress::{Ingress, IngressConfig};
use otela_node::{
    agent::{self, AgentConfig, Ending, Outcome},
    engine::Echo,
    peer::{Identity, Inbound, Peer, PeerConfig},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::{id::MeshName, payload::Role};
use std::{
    ffi::{OsStr, OsString},
    net::{SocketAddr, TcpListener},
    process::ExitCode,
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

/// The model of the simulated engines.
const MODEL: &str = "otela/demo";
/// Stands for a free port in the user's own command line.
const PORT: &str = "{port}";
/// Running requests have this long when the demo ends.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs the demo until it is interrupted.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, CommandError> {
    let tasks = Tasks::new();
    drain_on_signal(&tasks)?;
    let mesh = "demo".parse::<MeshName>().expect("a legal name");
    let metrics = Metrics::new();
    let relay = peer(&mesh, Role::Relay, Vec::new(), &tasks, &Metrics::new()).await?.0;
    let ingress = peer(&mesh, Role::Ingress, relay.addresses(), &tasks, &metrics).await?.0;
    let clients = tasks.child();
    let http = Ingress::start(IngressConfig::new(args.listen), ingress.clone(), &clients, &metrics).await?;
    let simulated = args.process.is_none();
    let commands = commands(args.process)?;
    let nodes_wanted = commands.len();
    println!("otela demo: starting a relay, an ingress and {nodes_wanted} node(s) on this machine ...");
    let mut nodes = Vec::new();
    for command in commands {
        nodes.push(node(&mesh, command, relay.addresses(), &tasks, simulated).await?);
    }
    let mut ended = select_all(nodes.iter_mut().map(|node| &mut node.ended));
    let early = tokio::select! {
        () = ready(&ingress, nodes_wanted) => {
            banner(http.address(), &first_model(&ingress), simulated);
            tokio::select! {
                (outcome, ..) = &mut ended => outcome.ok(),
                () = tasks.draining() => None,
            }
        }
        (outcome, ..) = &mut ended => outcome.ok(),
        () = tasks.draining() => None,
    };
    drop(ended);
    http.stop(DRAIN).await;
    tasks.drain();
    for node in nodes {
        // Its engine is gone when its task has ended.
        let _ = node.task.await;
    }
    tasks.shutdown(Duration::ZERO).await;
    Ok(early.map_or(ExitCode::SUCCESS, |outcome| exit::outcome(&outcome)))
}

struct Node {
    task: JoinHandle<()>,
    ended: oneshot::Receiver<Outcome>,
}

async fn node(
    mesh: &MeshName,
    command: Vec<OsString>,
    bootstrap: Vec<Multiaddr>,
    tasks: &Tasks,
    simulated: bool,
) -> Result<Node, CommandError> {
    let metrics = Metrics::new();
    let (peer, requests) = peer(mesh, Role::Node, bootstrap, tasks, &metrics).await?;
    let config = AgentConfig {
        process: Some(command),
        drain_within: DRAIN,
        linger: Duration::ZERO,
        echo: if simulated { None } else { Some(Echo::to_own_output()?) },
        ..AgentConfig::default()
    };
    let (outcome, ended) = oneshot::channel();
    let (own, ending) = (tasks.clone(), Ending::new(tasks, DRAIN));
    let task = tasks.spawn_to_end(async move {
        // Nobody listens any more once the demo is ending.
        let _ = outcome.send(agent::run(config, peer, requests, (&own, ending), &metrics).await);
    });
    Ok(Node { task, ended })
}

async fn peer(
    mesh: &MeshName,
    role: Role,
    bootstrap: Vec<Multiaddr>,
    tasks: &Tasks,
    metrics: &Metrics,
) -> Result<(Peer, mpsc::Receiver<Inbound>), CommandError> {
    let config = PeerConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("a legal address")],
        bootstrap: bootstrap.into_iter().map(Into::into).collect(),
        ..PeerConfig::new(mesh.clone(), Identity::ephemeral(), vec![role])
    };
    Ok(Peer::start(config, tasks, metrics).await?)
}

/// One command line for each node.
fn commands(process: Option<Vec<OsString>>) -> Result<Vec<Vec<OsString>>, CommandError> {
    let Some(process) = process else {
        let own = std::env::current_exe()?;
        let engine = ["engine", MODEL, "--port", "0", "--log", "warn"].map(OsString::from);
        let command: Vec<_> = std::iter::once(own.into_os_string()).chain(engine).collect();
        return Ok(vec![command; 2]);
    };
    if !process.iter().any(|argument| argument.to_string_lossy().contains(PORT)) {
        return Ok(vec![process]);
    }
    let mut commands = Vec::new();
    for _ in 0..2 {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        commands.push(process.iter().map(|argument| with_port(argument, &port)).collect());
    }
    Ok(commands)
}

fn with_port(argument: &OsStr, port: &str) -> OsString {
    match argument.to_str() {
        Some(text) => text.replace(PORT, port).into(),
        None => argument.to_owned(),
    }
}

/// Waits until some model has `nodes` replicas.
async fn ready(ingress: &Peer, nodes: usize) {
    let mut changes = ingress.view_changes();
    while !ingress.view().models().any(|(_, state)| state.ready.len() >= nodes) {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn first_model(ingress: &Peer) -> String {
    let view = ingress.view();
    let ready = view.models().find(|(_, state)| !state.ready.is_empty());
    ready.map_or_else(String::new, |(id, _)| id.to_string())
}

fn banner(address: SocketAddr, model: &str, simulated: bool) {
    let base = format!("http://{address}");
    let engines = if simulated { " The engines are simulated: they answer with made-up words." } else { "" };
    println!(
        r#"
The mesh serves.{engines}

  OpenAI base URL   {base}/v1
  ask               curl {base}/v1/chat/completions -H 'Content-Type: application/json' -d '{{"model":"{model}","messages":[{{"role":"user","content":"Hello"}}]}}'
  stream            the same with -N, and "stream":true in the body
  models            curl {base}/v1/models
  nodes             curl {base}/v1/registry/nodes
  watch the mesh    curl -N {base}/v1/registry/watch
  metrics           curl {base}/metrics

Ctrl-C ends it and leaves nothing behind."#
    );
}
