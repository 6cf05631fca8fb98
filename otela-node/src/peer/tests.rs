//! Real peers over loopback.

mod discovery;
mod hostile;
mod probing;

use super::{start::Protocols, *};
use crate::{tasks::Tasks, telemetry::Metrics};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use otela_proto::{
    id::Epoch,
    lifecycle::Lifecycle,
    payload::{ModelCard, Role, Service},
    registry::Belief,
};
use otela_testing::{FAR_BEYOND_PATIENCE, PATIENCE, finishes, repetitions};
use std::convert::Infallible;

struct Running {
    key: libp2p_identity::Keypair,
    metrics: Metrics,
    peer: Peer,
    tasks: Tasks,
    http: Option<mpsc::Receiver<Inbound>>,
}

async fn start(mesh: &str, role: Role, listen: &str, bootstrap: Vec<Multiaddr>) -> Running {
    start_as(mesh, Identity::ephemeral(), role, listen, bootstrap, None).await
}

async fn start_as(
    mesh: &str,
    identity: Identity,
    role: Role,
    listen: &str,
    bootstrap: Vec<Multiaddr>,
    state: Option<State>,
) -> Running {
    run(PeerConfig {
        listen: vec![listen.parse().unwrap()],
        bootstrap: bootstrap.into_iter().map(Into::into).collect(),
        state,
        ..PeerConfig::new(mesh.parse().unwrap(), identity, vec![role])
    })
    .await
}

async fn run(config: PeerConfig) -> Running {
    let key = config.identity.keypair().clone();
    let tasks = Tasks::new();
    let metrics = Metrics::new();
    let (peer, http) = Peer::start(config, &tasks, &metrics).await.unwrap();
    Running { key, metrics, peer, tasks, http: Some(http) }
}

async fn tcp(mesh: &str, role: Role, bootstrap: Vec<Multiaddr>) -> Running {
    start(mesh, role, "/ip4/127.0.0.1/tcp/0", bootstrap).await
}

pub(super) async fn until(peer: &Peer, what: &str, holds: impl Fn(&View) -> bool) {
    let mut changes = peer.view_changes();
    let wait = async {
        while !holds(&peer.view()) {
            changes.changed().await.unwrap();
        }
    };
    finishes(what, wait).await;
}

fn serving(model: &str) -> Announcement {
    let models = vec![ModelCard { id: model.into(), ..ModelCard::default() }];
    let service = Service { name: "llm".into(), models, ..Service::default() };
    Announcement { lifecycle: Lifecycle::Serving, services: vec![service], ..Announcement::default() }
}

fn ready(view: &View, model: &str) -> usize {
    view.model(model).map_or(0, |(_, state)| state.ready.len())
}

/// Answers every request with its own body.
fn echo(running: &mut Running) {
    let service = service_fn(async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    });
    let streams = running.http.take().unwrap();
    running.tasks.spawn(tunnel::serve(streams, service, running.tasks.clone()));
}

async fn ask(from: &Peer, to: &PeerId, text: &'static str) -> Result<Bytes, SendError> {
    let head = Request::post("/echo").header("host", "node").body(()).unwrap().into_parts().0;
    let (response, connection) = from.send(to, head, RequestBody::Whole(Bytes::from_static(text.as_bytes()))).await?;
    assert_eq!(connection.path(), Path::Direct);
    Ok(response.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn a_mesh_of_three_finds_itself_and_carries_requests() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let ingress = tcp("lab", Role::Ingress, relay.peer.addresses()).await;
    let mut node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    echo(&mut node);
    node.peer.announce(serving("org/m")).await.unwrap();
    until(&ingress.peer, "the ingress learns of the model", |view| ready(view, "org/m") == 1).await;
    until(&relay.peer, "and so does the relay", |view| ready(view, "org/m") == 1).await;
    for _ in 0..20 {
        assert_eq!(ask(&ingress.peer, &node.peer.id(), "hello").await.unwrap(), "hello");
    }
    node.peer.announce(Announcement { lifecycle: Lifecycle::Down, ..serving("org/m") }).await.unwrap();
    until(&ingress.peer, "Down is seen", |view| {
        ready(view, "org/m") == 0
            && view.node(&node.peer.id()).is_some_and(|n| n.entry.rank().lifecycle == Lifecycle::Down)
    })
    .await;
    node.peer.leave(PATIENCE).await;
    until(&ingress.peer, "Left is seen", |view| !view.node(&node.peer.id()).unwrap().is_listed()).await;
}

#[tokio::test]
async fn quic_alone_is_enough() {
    let relay = start("lab", Role::Relay, "/ip4/127.0.0.1/udp/0/quic-v1", vec![]).await;
    let mut node = start("lab", Role::Node, "/ip4/127.0.0.1/udp/0/quic-v1", relay.peer.addresses()).await;
    echo(&mut node);
    until(&relay.peer, "the node is seen", |view| view.node(&node.peer.id()).is_some()).await;
    assert_eq!(ask(&relay.peer, &node.peer.id(), "over quic").await.unwrap(), "over quic");
}

#[tokio::test]
async fn p40_a_dead_node_is_out_of_rotation_at_once() {
    // Long before anybody could evict it.
    let mut config = PeerConfig::new(hostile::mesh(), Identity::ephemeral(), vec![Role::Relay]);
    config.listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    (config.patience.grace_near, config.patience.grace_far) = (FAR_BEYOND_PATIENCE, FAR_BEYOND_PATIENCE);
    let relay = run(config).await;
    let node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    node.peer.announce(serving("m")).await.unwrap();
    until(&relay.peer, "the node is seen", |view| ready(view, "m") == 1).await;
    let id = node.peer.id();
    // Nothing is announced: the process is gone.
    node.tasks.shutdown(Duration::ZERO).await;
    drop(node);
    until(&relay.peer, "out of rotation", |view| {
        ready(view, "m") == 0 && view.node(&id).unwrap().belief != Belief::Alive
    })
    .await;
    assert!(ask(&relay.peer, &id, "x").await.is_err_and(|error| !error.delivered()));
}

#[tokio::test]
async fn meshes_do_not_mix() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let stranger = tcp("other", Role::Node, relay.peer.addresses()).await;
    let member = tcp("lab", Role::Node, relay.peer.addresses()).await;
    until(&relay.peer, "the member is seen", |view| view.node(&member.peer.id()).is_some()).await;
    let refused = async {
        let counts = |running: &Running, by: &str| {
            let series = format!("otela_admission_refused_total{{by=\"{by}\",reason=\"other_mesh\"}}");
            running.metrics.render().contains(&series)
        };
        while !(counts(&relay, "us") && counts(&stranger, "them")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    finishes("both sides know why", refused).await;
    assert!(stranger.peer.not_joined().is_some_and(|reason| reason.contains("another mesh")));
    assert!(relay.peer.view().node(&stranger.peer.id()).is_none());
    assert!(stranger.peer.view().node(&relay.peer.id()).is_none());
}

#[tokio::test]
async fn a_taken_port_is_one_clear_error() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = PeerConfig {
        listen: vec![format!("/ip4/127.0.0.1/tcp/{}", holder.local_addr().unwrap().port()).parse().unwrap()],
        ..PeerConfig::new("lab".parse().unwrap(), Identity::ephemeral(), vec![])
    };
    let error = Peer::start(config, &Tasks::new(), &Metrics::new()).await.unwrap_err();
    let line = crate::telemetry::chain(&error);
    assert!(line.contains("cannot listen on /ip4/127.0.0.1/tcp/") && line.contains("in use"), "{line}");
}

#[tokio::test]
async fn sixty_four_requests_at_once_all_arrive() {
    let ingress = tcp("lab", Role::Ingress, vec![]).await;
    let mut node = tcp("lab", Role::Node, ingress.peer.addresses()).await;
    echo(&mut node);
    until(&ingress.peer, "the node is seen", |view| view.node(&node.peer.id()).is_some()).await;
    let id = node.peer.id();
    let all = (0..64).map(|_| ask(&ingress.peer, &id, "hello"));
    for answer in futures::future::join_all(all).await {
        assert_eq!(answer.unwrap(), "hello");
    }
}

#[tokio::test]
async fn requests_end_with_their_connection_though_nobody_is_there_to_close_it() {
    let ingress = tcp("lab", Role::Ingress, vec![]).await;
    let mut node = tcp("lab", Role::Node, ingress.peer.addresses()).await;
    let arrived = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&arrived);
    let hangs = service_fn(move |_: Request<Incoming>| {
        told.notify_one();
        async {
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    node.tasks.spawn(tunnel::serve(node.http.take().unwrap(), hangs, node.tasks.clone()));
    until(&ingress.peer, "the node is seen", |view| view.node(&node.peer.id()).is_some()).await;
    let id = node.peer.id();
    let waits = ask(&ingress.peer, &id, "x");
    let closes = async {
        arrived.notified().await;
        ingress.peer.inner.commands.send(swarm::Command::Disconnect(id)).await.unwrap();
    };
    let (answer, ()) = finishes("a request ends with its connection", async { tokio::join!(waits, closes) }).await;
    assert!(answer.is_err_and(|error| error.delivered()));
}

/// Between the same two ports TCP makes one connection of two that are begun at once, and neither side gets anywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_dial_each_other_at_once_are_connected_at_the_first_try() {
    let dials = async |from: &Running, to: &Running| {
        let (waiter, dialled) = oneshot::channel();
        let dial = swarm::Command::Dial(to.peer.id(), to.peer.addresses(), waiter);
        from.peer.inner.commands.send(dial).await.unwrap();
        finishes("a dial ends", dialled).await.unwrap()
    };
    for _ in 0..repetitions(15, 50) {
        let (ingress, node) = tokio::join!(tcp("lab", Role::Ingress, vec![]), tcp("lab", Role::Node, vec![]));
        let (there, back) = tokio::join!(dials(&ingress, &node), dials(&node, &ingress));
        assert!(there && back);
        for running in [&ingress, &node] {
            running.tasks.shutdown(Duration::ZERO).await;
        }
    }
}

#[tokio::test]
async fn a_restart_finds_the_mesh_though_the_bootstrap_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (key, mesh) = (dir.path().join("key"), "lab".parse().unwrap());
    let near = "/ip4/127.0.0.1/tcp/0";
    let start_again = async |bootstrap| {
        let identity = Identity::load_or_create(&key).unwrap();
        let state = State::open(&dir.path().join("state"), &mesh).unwrap();
        start_as("lab", identity, Role::Node, near, bootstrap, Some(state)).await
    };
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let bootstrap = relay.peer.addresses();
    let other = tcp("lab", Role::Node, bootstrap.clone()).await;
    let node = start_again(bootstrap.clone()).await;
    until(&node.peer, "it knows both", |view| view.node(&other.peer.id()).is_some()).await;
    until(&other.peer, "and is known", |view| view.node(&node.peer.id()).is_some()).await;
    let (me, epoch) = (node.peer.id(), node.peer.session().epoch);
    node.peer.leave(PATIENCE).await;
    node.tasks.shutdown(Duration::ZERO).await;
    drop(node);
    relay.tasks.shutdown(Duration::ZERO).await;
    drop(relay);
    let node = start_again(bootstrap).await;
    until(&node.peer, "the mesh is found", |view| view.node(&other.peer.id()).is_some()).await;
    assert!(node.peer.id() == me && node.peer.session().epoch > epoch);
    until(&other.peer, "the new session is seen", |view| {
        view.node(&me).is_some_and(|node| node.entry.session().epoch > epoch)
    })
    .await;
}

#[tokio::test]
async fn a_clock_set_back_does_not_make_a_restart_look_old() {
    let dir = tempfile::tempdir().unwrap();
    let (key, mesh) = (dir.path().join("key"), "lab".parse().unwrap());
    let identity = Identity::load_or_create(&key).unwrap();
    let me = identity.keypair().public().to_peer_id();
    let ahead = u64::MAX / 2;
    state::remember_epoch(dir.path(), &mesh, me, ahead);
    let state = State::open(dir.path(), &mesh).unwrap();
    let node = start_as("lab", identity, Role::Node, "/ip4/127.0.0.1/tcp/0", vec![], Some(state)).await;
    until(&node.peer, "it has announced itself", |view| view.node(&me).is_some()).await;
    assert_eq!(node.peer.session().epoch, Epoch(ahead + 1));
    node.tasks.shutdown(Duration::ZERO).await;
    drop(node);
    assert_eq!(State::open(dir.path(), &mesh).unwrap().epoch(&me), Some(Epoch(ahead + 1)));
}

#[tokio::test]
async fn a_disk_that_cannot_be_written_is_counted_and_hinders_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let state = State::open(dir.path(), &"lab".parse().unwrap()).unwrap();
    // Permissions would not stop a test that runs as root; a directory in the way does.
    std::fs::create_dir(dir.path().join("state-lab.new")).unwrap();
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let near = "/ip4/127.0.0.1/tcp/0";
    let node = start_as("lab", Identity::ephemeral(), Role::Node, near, relay.peer.addresses(), Some(state)).await;
    until(&node.peer, "there is somebody to remember", |view| view.node(&relay.peer.id()).is_some()).await;
    node.tasks.shutdown(Duration::ZERO).await;
    let counted = node.metrics.render();
    let failed = counted.lines().find_map(|line| line.strip_prefix("otela_state_writes_failed_total "));
    assert!(failed.is_some_and(|failed| failed != "0"), "{counted}");
}

#[tokio::test]
async fn a_state_file_that_cannot_be_used_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state-lab"), "not ours").unwrap();
    let state = State::open(dir.path(), &"lab".parse().unwrap()).unwrap();
    let node = start_as("lab", Identity::ephemeral(), Role::Node, "/ip4/127.0.0.1/tcp/0", vec![], Some(state)).await;
    assert!(node.metrics.render().contains("otela_state_files_set_aside_total 1"));
    assert_eq!(std::fs::read(dir.path().join("state-lab.damaged-1")).unwrap(), b"not ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_write_is_seen_by_many_peers() {
    let count = repetitions(32, 128);
    let mut peers = vec![tcp("lab", Role::Relay, vec![]).await];
    let bootstrap = peers[0].peer.addresses();
    for _ in 1..count {
        peers.push(tcp("lab", Role::Node, bootstrap.clone()).await);
    }
    for running in &peers {
        until(&running.peer, "all know of all", |view| view.nodes().count() == count).await;
    }
    let writer = &peers[count * 3 / 5].peer;
    writer.announce(serving("org/new")).await.unwrap();
    for running in &peers {
        until(&running.peer, "the write is seen", |view| ready(view, "org/new") == 1).await;
    }
    for running in &peers {
        running.tasks.shutdown(Duration::ZERO).await;
    }
}
