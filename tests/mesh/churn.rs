//! Peers that die, stop, and come back: two dozen real processes, killed, frozen and started again.

use crate::support::{Otela, eventually, finishes, get};
use otela_testing::{ReservedPort, repetitions};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path, time::Duration};

/// A peer without an engine, and where its registry is read.
struct Peer {
    process: Otela,
    http: SocketAddr,
    id: String,
}

impl Peer {
    async fn start(arguments: &[&str]) -> Self {
        let all = arguments.iter().chain(&["--mesh", "test", "--threads", "1", "--http", "127.0.0.1:0"]);
        let process = Otela::run(all);
        let registry = process.says("registry: http://").await;
        let http = registry.split('/').next().unwrap().parse().unwrap();
        let id = process.says("mesh=test peer=").await;
        Self { process, http, id }
    }

    async fn relay() -> (Self, String) {
        let relay = Self::start(&["relay", "--peer-listen", "/ip4/127.0.0.1/tcp/0"]).await;
        let bootstrap = relay.process.says("others join with --bootstrap ").await;
        (relay, bootstrap)
    }

    async fn node(bootstrap: &str, flags: &[&str]) -> Self {
        let listens = flags.contains(&"--peer-listen");
        let mut arguments = vec!["start", "--bootstrap", bootstrap];
        arguments.extend(if listens { &[][..] } else { &["--peer-listen", "/ip4/127.0.0.1/tcp/0"] });
        arguments.extend(flags);
        Self::start(&arguments).await
    }

    /// What this peer says of `id`.
    async fn sees(&self, id: &str) -> Value {
        get(self.http, &format!("/v1/registry/nodes/{id}")).await.json()
    }

    /// The ids of the nodes that it lists.
    async fn lists(&self) -> Vec<String> {
        let nodes = get(self.http, "/v1/registry/nodes").await.json();
        nodes["nodes"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap().to_owned()).collect()
    }

    async fn believes(&self, id: &str, states: &[&str]) -> bool {
        self.sees(id).await["belief"]["state"].as_str().is_some_and(|state| states.contains(&state))
    }
}

fn epoch(node: &Value) -> u64 {
    node["session"].as_str().and_then(|session| session.rsplit('.').next()?.parse().ok()).unwrap_or(0)
}

async fn all_list(peers: &[Peer], n: usize, what: &str) {
    for peer in peers {
        eventually(what, async || (peer.lists().await.len() == n).then_some(())).await;
    }
}

#[tokio::test]
async fn many_processes_survive_kills_and_a_long_silence() {
    let count = repetitions(12, 24);
    let (relay, bootstrap) = Peer::relay().await;
    let mut peers = vec![relay];
    for _ in 1..count {
        peers.push(Peer::node(&bootstrap, &[]).await);
    }
    all_list(&peers, count, "everybody lists everybody").await;

    let mut dead = Vec::new();
    for mut peer in peers.drain(count - 4..) {
        peer.process.signal("-KILL");
        assert_eq!(peer.process.ends().await, 128 + 9);
        dead.push(peer.id);
    }
    let finds_out = async |(peer, id): (&Peer, &String)| {
        let out = async || peer.believes(id, &["unreachable", "suspect", "evicted"]).await.then_some(());
        eventually("out of rotation", out).await;
    };
    let everywhere = peers.iter().flat_map(|peer| dead.iter().map(move |id| (peer, id)));
    futures::future::join_all(everywhere.map(finds_out)).await;
    all_list(&peers, count - 4, "the dead are evicted").await;

    // One is frozen for long: it is evicted meanwhile, comes back at once, and accuses no other peer.
    let frozen = peers.pop().unwrap();
    let before = epoch(&frozen.sees(&frozen.id).await);
    frozen.process.signal("-STOP");
    all_list(&peers, count - 5, "the frozen one is evicted").await;
    tokio::time::sleep(Duration::from_secs(repetitions(5, 50))).await;
    frozen.process.signal("-CONT");
    peers.push(frozen);
    all_list(&peers, count - 4, "the frozen one is back, and everybody lists everybody").await;
    let (frozen, others) = peers.split_last().unwrap();
    for peer in others {
        eventually("under a new session, and believed alive", async || {
            let node = peer.sees(&frozen.id).await;
            (epoch(&node) > before && node["belief"]["state"] == "alive").then_some(())
        })
        .await;
        for other in others {
            eventually("and the others too", async || peer.believes(&other.id, &["alive"]).await.then_some(())).await;
        }
    }
    frozen.process.writes("the mesh had evicted this peer", 1).await;
}

#[tokio::test]
async fn p39_a_restart_is_one_node_with_the_old_key_and_with_a_new_one() {
    let (relay, bootstrap) = Peer::relay().await;
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    let port = ReservedPort::new();
    let listen = format!("/ip4/127.0.0.1/tcp/{}", port.address().port());
    let mut last = 0;
    let rounds = repetitions(4, 10);
    for round in 0..rounds {
        let mut node = Peer::node(&bootstrap, &["--peer-listen", &listen, "--key", path(&key)]).await;
        last = eventually(&format!("session {round} wins"), async || {
            let seen = epoch(&relay.sees(&node.id).await);
            (seen > last).then_some(seen)
        })
        .await;
        assert_eq!(relay.lists().await.len(), 2, "the relay and one node");
        node.process.signal("-KILL");
        node.process.ends().await;
    }
    let mut node = Peer::node(&bootstrap, &["--peer-listen", &listen]).await;
    for _ in 1..rounds {
        eventually("the new one is seen", async || relay.believes(&node.id, &["alive"]).await.then_some(())).await;
        node.process.signal("-KILL");
        node.process.ends().await;
        node = Peer::node(&bootstrap, &["--peer-listen", &listen]).await;
    }
    eventually("one live row", async || {
        let listed = relay.lists().await;
        (listed.len() == 2 && listed.contains(&node.id)).then_some(())
    })
    .await;
    // Dead rows can be read as long as they are kept, and are no part of the list.
    let departed = get(relay.http, "/v1/registry/nodes?state=evicted").await.json();
    assert!(departed["nodes"].as_array().unwrap().len() >= rounds - 1, "{departed}");
}

#[tokio::test]
async fn p48_of_two_machines_with_one_key_the_older_process_stops_and_says_why() {
    let (relay, bootstrap) = Peer::relay().await;
    let dir = tempfile::tempdir().unwrap();
    let (key, copy) = (dir.path().join("key"), dir.path().join("copy"));
    let mut older = Peer::node(&bootstrap, &["--key", path(&key)]).await;
    eventually("the older one is seen", async || relay.believes(&older.id, &["alive"]).await.then_some(())).await;
    // The lock on the file cannot hold on another machine's copy.
    std::fs::copy(&key, &copy).unwrap();
    let younger = Peer::node(&bootstrap, &["--key", path(&copy)]).await;
    assert_eq!(younger.id, older.id);
    assert_eq!(older.process.ends().await, 69);
    assert!(
        older.process.output().contains("another otela process uses this peer's key"),
        "{}",
        older.process.output()
    );
    let (mut steady, mut session) = (0, Value::Null);
    let comes_to_rest = async {
        while steady < 20 {
            let mut node = relay.sees(&younger.id).await;
            let good = node["belief"]["state"] == "alive" && node["lifecycle"] == json!("join");
            let before = std::mem::replace(&mut session, node["session"].take());
            steady = if good && before == session { steady + 1 } else { 0 };
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    finishes("the younger one stays, under one session", comes_to_rest).await;
    assert!(!younger.process.output().contains("ERROR"), "{}", younger.process.output());
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
