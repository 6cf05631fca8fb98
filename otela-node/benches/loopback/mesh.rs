//! A mesh of real peers in this process.

use futures::future::join_all;
use otela_node::{
    peer::{Announcement, Identity, Peer, PeerConfig},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::{
    Multiaddr,
    lifecycle::Lifecycle,
    payload::{ModelCard, Role, Service},
};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// All peers know all others within this, or the machine cannot.
const START_WITHIN: Duration = Duration::from_secs(180);
/// Within this a write is seen by all, or something is broken.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

struct Running {
    peer: Peer,
    metrics: Metrics,
}

pub(crate) struct Mesh {
    peers: Vec<Running>,
    tasks: Tasks,
}

impl Mesh {
    /// A relay and `size - 1` nodes that know of each other. An error says what the machine cannot.
    pub(crate) async fn start(size: usize) -> Result<Self, String> {
        let mut mesh = Self { peers: Vec::new(), tasks: Tasks::new() };
        let mut bootstrap = Vec::new();
        for n in 0..size {
            let role = if n == 0 { Role::Relay } else { Role::Node };
            match start(role, bootstrap.clone(), &mesh.tasks).await {
                Ok(running) => mesh.peers.push(running),
                Err(cause) => {
                    mesh.stop().await;
                    return Err(format!("peer {n} does not start: {cause}"));
                }
            }
            bootstrap = mesh.peers[0].peer.addresses();
        }
        let known = join_all(mesh.peers.iter().map(|running| knows(&running.peer, size)));
        if timeout(START_WITHIN, known).await.is_err() {
            let complete = mesh.peers.iter().filter(|running| running.peer.view().nodes().count() == size).count();
            mesh.stop().await;
            return Err(format!("after {START_WITHIN:?} only {complete} of {size} peers know all others"));
        }
        Ok(mesh)
    }

    /// One peer announces the `n`-th model; how long each other peer takes to see it.
    pub(crate) async fn write(&self, n: usize) -> Option<Vec<Duration>> {
        let model = format!("bench/{n}");
        // Another one each time, and not the relay, to which everybody is connected.
        let writer = 1 + n * 37 % (self.peers.len() - 1);
        let others = self.peers.iter().enumerate().filter(|(at, _)| *at != writer);
        let began = Instant::now();
        let seen = join_all(others.map(|(_, running)| sees(&running.peer, &model, began)));
        let write = async {
            self.peers[writer].peer.announce(serving(&model)).await.unwrap();
            seen.await
        };
        timeout(SEEN_WITHIN, write).await.ok()
    }

    /// A counter, summed over all peers.
    fn counter(&self, name: &str) -> f64 {
        let of = |running: &Running| {
            let text = running.metrics.render();
            let samples = text.lines().filter_map(|line| line.strip_prefix(name));
            let samples = samples.filter(|rest| rest.starts_with([' ', '{']));
            samples.map(|rest| rest.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum::<f64>()
        };
        self.peers.iter().map(of).sum()
    }

    /// Bytes of gossip frames that all peers have sent.
    pub(crate) fn gossip_sent(&self) -> f64 {
        self.counter("otela_gossip_sent_bytes_total")
    }

    /// Connections that all peers have ever had, each counted at both ends.
    pub(crate) fn connections_opened(&self) -> f64 {
        self.counter("otela_peer_connections_opened_total")
    }

    /// Views that all peers have published.
    pub(crate) fn views(&self) -> f64 {
        self.peers.iter().map(|running| running.peer.view().generation as f64).sum()
    }

    /// Connections of all peers, each counted at both ends.
    pub(crate) fn connections(&self) -> usize {
        self.peers.iter().map(|running| running.peer.connections().len()).sum()
    }

    pub(crate) async fn stop(self) {
        self.tasks.shutdown(Duration::ZERO).await;
    }
}

async fn start(role: Role, bootstrap: Vec<Multiaddr>, tasks: &Tasks) -> Result<Running, String> {
    let config = PeerConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        bootstrap: bootstrap.into_iter().map(Into::into).collect(),
        ..PeerConfig::new("bench".parse().unwrap(), Identity::ephemeral(), vec![role])
    };
    let metrics = Metrics::new();
    // Nobody sends requests here, so nobody takes them.
    let (peer, _) = Peer::start(config, tasks, &metrics).await.map_err(|error| error.to_string())?;
    Ok(Running { peer, metrics })
}

async fn knows(peer: &Peer, size: usize) {
    let mut changes = peer.view_changes();
    while peer.view().nodes().count() < size {
        changes.changed().await.unwrap();
    }
}

async fn sees(peer: &Peer, model: &str, began: Instant) -> Duration {
    let mut changes = peer.view_changes();
    while peer.view().model(model).is_none() {
        changes.changed().await.unwrap();
    }
    began.elapsed()
}

fn serving(model: &str) -> Announcement {
    let models = vec![ModelCard { id: model.into(), ..ModelCard::default() }];
    let service = Service { name: "llm".into(), models, ..Service::default() };
    Announcement { lifecycle: Lifecycle::Serving, services: vec![service], ..Announcement::default() }
}
