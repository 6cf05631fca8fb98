use super::*;
use crate::peer::{Identity, PeerConfig, gossip, tests::until};
use libp2p_identity::Keypair;
use otela_proto::{
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::Payload,
    provider::ProviderRules,
    registry::{Belief, DEPARTED_MAX, Registry, View},
};
use std::{collections::HashMap, time::Duration};

pub(super) fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

/// A peer's key; the same number gives the same key.
pub(super) fn key(number: u32) -> Keypair {
    let mut seed = [7; 32];
    seed[..4].copy_from_slice(&number.to_be_bytes());
    Keypair::ed25519_from_bytes(seed).unwrap()
}

pub(super) fn id(number: u32) -> PeerId {
    key(number).public().to_peer_id()
}

pub(super) fn entry(number: u32, lifecycle: Lifecycle, version: u64, payload: Payload) -> Entry {
    let rank = Rank { epoch: Epoch(1), lifecycle, version };
    Entry::sign(&key(number), &mesh(), Draft { rank, issued_at_ms: crate::peer::gossip::unix_ms(), payload }).unwrap()
}

/// A view of these entries; who is not in `beliefs` is alive.
pub(super) fn view(generation: u64, entries: &[Entry], beliefs: &[(u32, Belief)]) -> View {
    let mut registry = Registry::default();
    for entry in entries {
        registry.learn(entry.clone(), Duration::ZERO);
    }
    let beliefs: HashMap<_, _> = beliefs.iter().map(|(number, belief)| (id(*number), *belief)).collect();
    let now = Now { mono: Duration::ZERO, wall_ms: crate::peer::gossip::unix_ms() };
    View::build(&registry, &beliefs, &ProviderRules::new(mesh()), now, Duration::from_hours(1), generation)
}

/// A peer that is alone, with what observers see of it.
pub(super) struct Scene {
    pub(super) observed: Observed,
    tasks: Tasks,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let config = PeerConfig {
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
            ..PeerConfig::new(mesh(), Identity::ephemeral(), vec![])
        };
        let (tasks, metrics) = (Tasks::new(), Metrics::new());
        let (peer, _) = Peer::start(config, &tasks, &metrics).await.unwrap();
        until(&peer, "it knows itself", |view| view.node(&peer.id()).is_some()).await;
        let observed = Observed::new(peer, metrics, Arc::new(|| Ok(())), tasks.draining_token());
        Self { observed, tasks }
    }

    /// Lets the peer hear of `entries`, and waits until it shows the last of them.
    pub(super) async fn learn(&self, entries: Vec<Entry>) {
        let last = entries.last().unwrap().clone();
        let peer = &self.observed.peer;
        peer.inner.events.send(gossip::Event::Entries(last.owner(), entries, Vec::new())).await.unwrap();
        until(peer, "it is known", |view| {
            view.node(&last.owner()).is_some_and(|node| node.entry.rank() == last.rank())
        })
        .await;
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}

/// The samples of a text in Prometheus' classic format, by name and labels; every line must be in it.
fn samples(text: &str) -> HashMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with("# HELP ") && !line.starts_with("# TYPE "));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a series and a value");
            let name = series.split('{').next().unwrap();
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{line}");
            assert!(series.len() == name.len() || series.ends_with("\"}"), "{line}");
            (series, value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

#[tokio::test]
async fn p56_metrics_stay_small_while_5000_peers_join_and_leave() {
    const PEERS: u32 = 5_000;
    const AT_ONCE: u32 = 250;
    let scene = Scene::new().await;
    let (peer, metrics) = (&scene.observed.peer, &scene.observed.metrics);
    let before = metrics.render();
    for first in (0..PEERS).step_by(AT_ONCE as usize) {
        for (lifecycle, version) in [(Lifecycle::Join, 1), (Lifecycle::Serving, 2), (Lifecycle::Left, 3)] {
            let numbers = first..first + AT_ONCE;
            scene.learn(numbers.map(|n| entry(n, lifecycle, version, Payload::default())).collect()).await;
        }
    }
    let after = metrics.render();
    let (series, series_before) = (samples(&after), samples(&before));
    assert!(series["otela_registry_entries_learned_total"] >= f64::from(3 * PEERS), "they were seen");
    let new: Vec<_> = series.keys().filter(|name| !series_before.contains_key(*name)).collect();
    assert!(new.len() <= 4, "no series for each peer: {new:?}");
    assert!(after.len() < 8 * 1024, "{} bytes", after.len());
    assert!(!after.contains("12D3KooW"), "no peer id");
    let unlisted = peer.view().nodes().filter(|(_, node)| !node.is_listed()).count();
    assert!(unlisted <= DEPARTED_MAX, "those that have left are let go of: {unlisted}");
}
