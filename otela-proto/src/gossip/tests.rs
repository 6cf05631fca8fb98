//! A small mesh in virtual time: the core as it runs in production, over links that delay and drop.

use super::*;
use crate::{
    entry::{Draft, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::Payload,
};
use libp2p_identity::Keypair;
use std::{cmp::Reverse, collections::BinaryHeap};

struct Mesh {
    keys: Vec<Keypair>,
    peers: Vec<Gossip>,
    /// (arrival, order, from, to, frame)
    wire: BinaryHeap<Reverse<(Duration, u64, usize, usize)>>,
    frames: BTreeMap<u64, Frame>,
    now: Duration,
    sent: u64,
    sent_bytes: usize,
    loss_ratio: f64,
    cut: Option<usize>,
    rng: SmallRng,
}

impl Mesh {
    /// `n` peers, each linked to its ring neighbours and some random ones.
    fn new(n: usize, seed: u64) -> Self {
        let keys: Vec<_> = (0..n)
            .map(|i| {
                let mut secret = [7; 32];
                secret[..8].copy_from_slice(&(i as u64).to_be_bytes());
                Keypair::ed25519_from_bytes(secret).unwrap()
            })
            .collect();
        let peers = keys.iter().map(|key| Gossip::new(key.public().to_peer_id(), seed)).collect();
        let mut mesh = Self {
            keys,
            peers,
            wire: BinaryHeap::new(),
            frames: BTreeMap::new(),
            now: Duration::ZERO,
            sent: 0,
            sent_bytes: 0,
            loss_ratio: 0.0,
            cut: None,
            rng: SmallRng::seed_from_u64(seed),
        };
        let ids: Vec<_> = mesh.peers.iter().map(|p| p.me).collect();
        for i in 0..n {
            for other in mesh.peers[i].wanted_links(ids.iter().copied(), 4) {
                let j = ids.iter().position(|id| *id == other).unwrap();
                mesh.link(i, j);
            }
        }
        mesh
    }

    fn link(&mut self, a: usize, b: usize) {
        for (x, y) in [(a, b), (b, a)] {
            let peer = self.peers[y].me;
            self.input(x, Input::LinkUp { peer, rtt: Some(Duration::from_millis(1)) });
        }
    }

    fn input(&mut self, at: usize, input: Input) {
        let mut out = Vec::new();
        self.peers[at].handle(self.now, input, &mut out);
        for output in out {
            match output {
                Output::Send { to, frame } => self.send(at, to, frame),
                Output::Malformed(peer) => panic!("{peer} sent a malformed frame"),
                Output::Full(_) | Output::Changed(_) => {}
            }
        }
    }

    fn send(&mut self, from: usize, to: PeerId, frame: Frame) {
        let to = self.peers.iter().position(|p| p.me == to).unwrap();
        let across = self.cut.is_some_and(|cut| (from < cut) != (to < cut));
        if across || self.rng.random_bool(self.loss_ratio) {
            return;
        }
        self.sent += 1;
        self.sent_bytes += prost::Message::encoded_len(&frame);
        let delay = Duration::from_micros(self.rng.random_range(200..15_000));
        self.wire.push(Reverse((self.now + delay, self.sent, from, to)));
        self.frames.insert(self.sent, frame);
    }

    fn run_until(&mut self, end: Duration) {
        loop {
            let timer = self.peers.iter().enumerate().map(|(i, p)| (p.wake_at(), i)).min();
            let arrival = self.wire.peek().map(|Reverse((at, ..))| *at);
            let (timer_at, i) = timer.unwrap();
            let next = arrival.map_or(timer_at, |at| at.min(timer_at));
            if next > end {
                self.now = end;
                return;
            }
            self.now = next.max(self.now);
            if arrival.is_some_and(|at| at <= timer_at) {
                let Reverse((_, id, from, to)) = self.wire.pop().unwrap();
                let frame = self.frames.remove(&id).unwrap();
                let from = self.peers[from].me;
                let input = match frame.say.unwrap() {
                    Say::Entries(page) => {
                        let open = |bytes: &Vec<u8>| Entry::open(bytes, &mesh_name(), 1_000).unwrap();
                        Input::Entries { from, entries: page.signed.iter().map(open).collect() }
                    }
                    say => Input::Say { from, say },
                };
                self.input(to, input);
            } else {
                self.input(i, Input::Tick);
            }
        }
    }

    fn publish(&mut self, at: usize, version: u64) {
        let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version };
        let draft = Draft { rank, issued_at_ms: 1_000, payload: Payload::default() };
        let entry = Entry::sign(&self.keys[at], &mesh_name(), draft).unwrap();
        self.input(at, Input::Own(Box::new(entry)));
    }

    fn all_equal(&self) -> bool {
        self.peers.iter().all(|p| p.registry.root() == self.peers[0].registry.root())
    }
}

fn mesh_name() -> MeshName {
    "lab".parse().unwrap()
}

#[test]
fn one_write_reaches_everybody_within_250_ms_though_frames_get_lost() {
    for seed in 0..20 {
        let mut mesh = Mesh::new(64, seed);
        mesh.loss_ratio = 0.01;
        mesh.publish(3, 1);
        mesh.run_until(Duration::from_millis(250));
        let missing = mesh.peers.iter().filter(|p| p.registry.len() != 1).count();
        assert_eq!(missing, 0, "seed {seed}");
    }
}

#[test]
fn halves_that_wrote_apart_become_equal_after_healing() {
    let mut mesh = Mesh::new(24, 1);
    mesh.cut = Some(12);
    for i in 0..24 {
        mesh.publish(i, 1);
    }
    mesh.run_until(Duration::from_secs(5));
    assert!(!mesh.all_equal());
    mesh.cut = None;
    mesh.run_until(Duration::from_secs(25));
    assert!(mesh.all_equal());
    assert_eq!(mesh.peers[0].registry.len(), 24);
}

#[test]
fn a_joiner_gets_a_large_registry_in_pages_through_buckets() {
    let mut mesh = Mesh::new(2, 5);
    let other = mesh.peers[1].me;
    mesh.input(0, Input::LinkDown(other));
    let first = mesh.peers[0].me;
    mesh.input(1, Input::LinkDown(first));
    for i in 0..600_u64 {
        let mut secret = [9; 32];
        secret[..8].copy_from_slice(&i.to_be_bytes());
        let key = Keypair::ed25519_from_bytes(secret).unwrap();
        let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version: 1 };
        let payload = Payload { software: "x".repeat(400), ..Payload::default() };
        let entry = Entry::sign(&key, &mesh_name(), Draft { rank, issued_at_ms: 1_000, payload }).unwrap();
        let mut out = Vec::new();
        mesh.peers[0].handle(mesh.now, Input::Own(Box::new(entry)), &mut out);
    }
    mesh.run_until(Duration::from_secs(1));
    let before = mesh.sent;
    mesh.link(0, 1);
    mesh.run_until(Duration::from_millis(1_200));
    assert!(mesh.all_equal());
    assert_eq!(mesh.peers[1].registry.len(), 600);
    assert!(mesh.sent - before < 60, "{} frames", mesh.sent - before);
}

#[test]
fn silence_costs_one_root_every_ten_seconds() {
    let mut mesh = Mesh::new(16, 2);
    for i in 0..16 {
        mesh.publish(i, 1);
    }
    mesh.run_until(Duration::from_secs(20));
    let (sent, bytes) = (mesh.sent, mesh.sent_bytes);
    mesh.run_until(Duration::from_secs(120));
    let per_peer = (mesh.sent - sent) as f64 / 16.0 / 100.0;
    assert!(per_peer < 0.13, "{per_peer} frames per peer and second");
    assert!((mesh.sent_bytes - bytes) / 16 / 100 < 10);
}

#[test]
fn malformed_frames_are_named_and_change_nothing() {
    let mut gossip = Gossip::new(Keypair::generate_ed25519().public().to_peer_id(), 1);
    let from = Keypair::generate_ed25519().public().to_peer_id();
    let digest = |places: Vec<u64>, buckets| crate::wire::Digest { buckets, places, ..Default::default() };
    for say in [
        Say::Root(Root { hash: vec![0; 3], count: 0 }),
        Say::Buckets(crate::wire::Buckets { hashes: vec![vec![0; 16]; 3] }),
        Say::Buckets(crate::wire::Buckets { hashes: vec![vec![0; 15]; 16] }),
        Say::Digest(digest(vec![1, 2], 0xffff)),
    ] {
        let mut out = Vec::new();
        gossip.handle(Duration::ZERO, Input::Say { from, say }, &mut out);
        assert_eq!(out, [Output::Malformed(from)]);
    }
}
