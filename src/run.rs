//! Runs one command from start to a clean end.

use crate::{
    cli::{Command, EngineArgs, IngressArgs, RelayArgs, StartArgs, TraceArgs},
    config::{self, Told},
    demo, doctor,
    exit::{self, CommandError},
    files, look, operate, probe,
    reload::Reloads,
    sched, sign,
    signals::{Hangups, drain_on_signal, drain_on_stop, end_on_signal},
};
use otela_ingress::{Ingress, ListenError, TlsFiles};
use otela_node::{
    agent::{self, Ending},
    collect,
    peer::{Inbound, Peer, PeerConfig, observe},
    tasks::Tasks,
    telemetry::{
        self, Metrics,
        trace::{TraceError, TraceSettings, Traces},
    },
};
use otela_proto::payload::Role;
use otela_sched::engine::{EngineError, Outcome};
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::mpsc};
use url::Url;

/// Where nodes and ingresses listen for peers unless told otherwise.
pub(crate) const ANY_PORT: [&str; 2] = ["/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1"];
/// Where relays do.
pub(crate) const RELAY_PORT: [&str; 2] = ["/ip4/0.0.0.0/tcp/7411", "/ip4/0.0.0.0/udp/7411/quic-v1"];
/// What is left after everything else has ended has this long.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(1);

/// What others can make libraries warn of, packet by packet, is counted and told otherwise.
const USUAL_LOGS: &str = "warn,otela=info,hickory_proto=error,hickory_resolver=error,quinn_udp=error";

/// Runs a command, which `argv` has told.
pub(crate) fn command(Told { cli, file, values }: Told, argv: Vec<OsString>) -> Result<ExitCode, CommandError> {
    // Some commands talk to a person; the others to whoever reads logs.
    let usual = match &cli.command {
        Command::Demo(_)
        | Command::Nodes(_)
        | Command::Models(_)
        | Command::Status(_)
        | Command::Probe(_)
        | Command::Doctor(_)
        | Command::Drain(_)
        | Command::Logs(_)
        | Command::Key(_)
        | Command::Sign(_)
        | Command::Verify(_)
        | Command::Config(_) => "error",
        Command::Sched(args) if !args.is_service() => "error",
        Command::Sched(_) | Command::Start(_) | Command::Ingress(_) | Command::Relay(_) | Command::Engine(_) => {
            USUAL_LOGS
        }
    };
    let filter = cli.log.filter.unwrap_or_else(|| usual.to_owned());
    let _logs = telemetry::init(&filter, cli.log.format.into())
        .map_err(|source| CommandError::LogFilter { filter, source: source.into() })?;
    if let Some(file) = &file {
        tracing::info!("configuration: {}", file.display());
    }
    let threads = cli.threads.unwrap_or_else(threads);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let code = runtime.block_on(async {
        match cli.command {
            Command::Start(args) => start(*args, cli.traces).await,
            Command::Ingress(args) => ingress(*args, Reloads::new(argv, file.is_some(), values), cli.traces).await,
            Command::Relay(args) => relay(*args).await,
            Command::Engine(args) => engine(*args).await,
            Command::Demo(args) => demo::run(args).await,
            Command::Nodes(args) => look::nodes(args).await,
            Command::Models(args) => look::models(args).await,
            Command::Status(args) => look::status(args).await,
            Command::Key(args) => sign::key(&args),
            Command::Sign(args) => sign::sign(&args),
            Command::Verify(args) => sign::verify(&args),
            Command::Probe(args) => probe::run(*args).await,
            Command::Doctor(args) => doctor::run(*args).await,
            Command::Drain(args) => operate::drain(*args).await,
            Command::Logs(args) => operate::logs(*args).await,
            Command::Config(args) => config::run(&args, cli.config.as_deref()),
            Command::Sched(args) => sched::run(*args).await,
        }
    });
    runtime.shutdown_timeout(SHUTDOWN_WITHIN);
    code
}

/// Half of the processors: the others are the engine's. More than a few would only pass work to each other.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).clamp(1, 8)
}

async fn start(args: StartArgs, collector: TraceArgs) -> Result<ExitCode, CommandError> {
    let (tasks, metrics) = (Tasks::new(), Metrics::new());
    let (mut agent, http) = (args.agent()?, args.http);
    let ending = Ending::new(&tasks, args.drain);
    let config = PeerConfig { via: args.via.via, ..args.peer.config(vec![Role::Node], &ANY_PORT)? };
    let provider = args.provider.settings(&config, &agent.labels)?;
    let config = PeerConfig { provider, ..config };
    let collector = Collector::of(collector, "otela-node")?;
    let (peer, requests) = join(config, &tasks, &metrics).await?;
    end_on_signal(&tasks, &ending)?;
    // Who waits for orders wants some at once.
    let is_idle = agent.process.is_none() && agent.attached.is_none();
    let this = peer.clone();
    let ready = move || if is_idle { Ok(()) } else { agent::readiness(&this) };
    observed(&peer, http, ready, &tasks, &metrics).await?;
    let traces = collector.traces(&peer, &metrics)?;
    agent.traces = traces.clone();
    let outcome = agent::run(agent, peer.clone(), requests, (&tasks, ending), &metrics).await;
    traces.end().await;
    tasks.shutdown(Duration::ZERO).await;
    unless_superseded(&peer, exit::outcome(&outcome))
}

async fn ingress(args: IngressArgs, reloads: Reloads, collector: TraceArgs) -> Result<ExitCode, CommandError> {
    // Before all that takes time: until then the signal would end it.
    let hangups = Hangups::new()?;
    files::raise_limit();
    let (tasks, metrics) = (Tasks::new(), Metrics::new());
    // Clients' connections end before the peer that carries their requests.
    let clients = tasks.child();
    let (mut http, drain, kept) = (args.config()?, args.drain, args.post_mortems);
    let config = PeerConfig { via: args.via.via, ..args.peer.config(vec![Role::Ingress], &ANY_PORT)? };
    let scheme = if http.tls.is_some() { "https" } else { "http" };
    // What cannot be used is told before anybody hears of this peer.
    http.tls.as_ref().map_or(Ok(()), TlsFiles::check).map_err(ListenError::from)?;
    let collector = Collector::of(collector, "otela-ingress")?;
    let (peer, sent) = join(collecting(config, kept.as_ref())?, &tasks, &metrics).await?;
    collect(kept, sent, &tasks, &metrics);
    let traces = collector.traces(&peer, &metrics)?;
    http.traces = traces.clone();
    let ingress = Ingress::start(http, peer.clone(), &clients, &metrics).await?;
    drain_on_stop(&tasks)?;
    tracing::info!("OpenAI base URL: {scheme}://{}/v1", ingress.address());
    if !ingress.address().ip().is_loopback() {
        tracing::warn!(address = %ingress.address(), "open to whoever reaches it: there are no keys yet");
    }
    tokio::select! {
        () = tasks.draining() => {}
        // Another ingress has taken over.
        () = clients.draining() => {}
        () = reloads.follow(hangups, &ingress) => {}
    }
    ingress.stop(drain).await;
    traces.end().await;
    leave(&peer, &tasks).await;
    unless_superseded(&peer, ExitCode::SUCCESS)
}

async fn relay(args: RelayArgs) -> Result<ExitCode, CommandError> {
    files::raise_limit();
    let (tasks, metrics) = (Tasks::new(), Metrics::new());
    let (http, limits, kept) = (args.http, args.limits(), args.post_mortems.clone());
    let config = PeerConfig { relay: limits, ..args.peer.config(vec![Role::Relay], &RELAY_PORT)? };
    let (peer, sent) = join(collecting(config, kept.as_ref())?, &tasks, &metrics).await?;
    collect(kept, sent, &tasks, &metrics);
    drain_on_signal(&tasks)?;
    observed(&peer, http, || Ok(()), &tasks, &metrics).await?;
    for address in peer.addresses() {
        tracing::info!("others join with --bootstrap {address}");
    }
    tasks.draining().await;
    leave(&peer, &tasks).await;
    unless_superseded(&peer, ExitCode::SUCCESS)
}

async fn engine(args: EngineArgs) -> Result<ExitCode, CommandError> {
    let tasks = Tasks::new();
    drain_on_signal(&tasks)?;
    let serving = match otela_sched::engine::serve(args.config(), &tasks).await {
        Ok(serving) => serving,
        Err(EngineError::Stopped) => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(error.into()),
    };
    // All connections are closed by then.
    let outcome = serving.ended().await;
    tasks.shutdown(Duration::ZERO).await;
    Ok(match outcome {
        Outcome::Drained => ExitCode::SUCCESS,
        Outcome::Crashed(code) => code.into(),
    })
}

/// Whoever keeps post-mortems can be sent some.
fn collecting(config: PeerConfig, kept: Option<&PathBuf>) -> Result<PeerConfig, CommandError> {
    if let Some(folder) = kept {
        let unusable = |source| CommandError::PostMortems { flag: "--post-mortems", folder: folder.clone(), source };
        agent::writable(folder).map_err(unusable)?;
    }
    Ok(PeerConfig { serves_http: config.serves_http || kept.is_some(), ..config })
}

fn collect(kept: Option<PathBuf>, sent: mpsc::Receiver<Inbound>, tasks: &Tasks, metrics: &Metrics) {
    if let Some(folder) = kept {
        tasks.spawn(collect::serve(folder, sent, tasks.clone(), metrics.clone()));
    }
}

/// Starts a peer and says so.
pub(crate) async fn join(
    config: PeerConfig,
    tasks: &Tasks,
    metrics: &Metrics,
) -> Result<(Peer, mpsc::Receiver<Inbound>), CommandError> {
    let remembered = config.state.as_ref().is_some_and(|state| state.peers_len() > 0);
    let alone =
        config.bootstrap.is_empty() && config.via.is_empty() && !remembered && !config.roles.contains(&Role::Relay);
    let mesh = config.mesh.clone();
    let (peer, requests) = Peer::start(config, tasks, metrics).await?;
    tracing::info!(%mesh, peer = %peer.id(), "joining the mesh");
    let (twin, stopping) = (peer.clone(), tasks.clone());
    tasks.spawn(async move {
        twin.superseded().await;
        stopping.drain();
    });
    if alone {
        tracing::warn!("no --bootstrap was given: this peer is alone until another one dials it");
    }
    Ok((peer, requests))
}

/// Where the spans of a peer's requests go, if anywhere.
struct Collector {
    at: Option<Url>,
    service: String,
}

impl Collector {
    fn of(args: TraceArgs, service: &str) -> Result<Self, TraceError> {
        let at = args.collector()?;
        Ok(Self { at, service: args.otel_service_name.unwrap_or_else(|| service.to_owned()) })
    }

    fn traces(self, peer: &Peer, metrics: &Metrics) -> Result<Traces, TraceError> {
        let Some(collector) = self.at else { return Ok(Traces::default()) };
        let (instance, mesh) = (peer.id().to_string(), peer.mesh().to_string());
        Traces::start(TraceSettings { collector, service: self.service, instance, mesh }, metrics)
    }
}

/// Serves the registry, health and metrics over HTTP until the tasks are stopped. Who drains is not ready, whatever `ready`
/// says.
pub(crate) async fn observed(
    peer: &Peer,
    address: SocketAddr,
    ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    tasks: &Tasks,
    metrics: &Metrics,
) -> Result<(), CommandError> {
    let listener = TcpListener::bind(address).await.map_err(|source| CommandError::Http { address, source })?;
    let draining = tasks.clone();
    let ready = Arc::new(move || if draining.is_draining() { Err("stopping".to_owned()) } else { ready() });
    tracing::info!("registry: http://{}/v1/registry/nodes", listener.local_addr()?);
    let routes = observe::router(peer.clone(), metrics.clone(), ready, tasks.draining_token());
    observe::serve(listener, routes, tasks);
    Ok(())
}

/// The exit code of a peer that was stopped, perhaps because it has a twin.
pub(crate) fn unless_superseded(peer: &Peer, code: ExitCode) -> Result<ExitCode, CommandError> {
    if peer.is_superseded() { Err(CommandError::Superseded) } else { Ok(code) }
}

pub(crate) async fn leave(peer: &Peer, tasks: &Tasks) {
    peer.leave(SHUTDOWN_WITHIN).await;
    tasks.shutdown(Duration::ZERO).await;
}
