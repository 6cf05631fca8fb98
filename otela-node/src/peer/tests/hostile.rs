//! Neighbours that break the rules, and registries full of ghosts, over real sockets.

use super::*;
use crate::peer::streams::Connection;
use futures::SinkExt;
use otela_proto::{
    accusation::{Accusation, Charge, Verdict},
    entry::{Draft, Entry, Rank},
    id::MeshName,
    payload::Payload,
    wire::{Entries, Frame, Say},
};
use otela_testing::lazily;
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio_util::codec::{FramedWrite, LengthDelimitedCodec};

/// A member whose gossip stream to `victim` is in our hands.
pub(super) struct Hostile {
    running: Running,
    frames: FramedWrite<EndingIo, LengthDelimitedCodec>,
}

impl Hostile {
    pub(super) async fn new(victim: &Running) -> Self {
        let running = tcp("lab", Role::Node, victim.peer.addresses()).await;
        until(&victim.peer, "it joins", |view| view.node(&running.peer.id()).is_some()).await;
        let frames = FramedWrite::new(stream(&running, victim).await, LengthDelimitedCodec::new());
        Self { running, frames }
    }

    pub(super) async fn say(&mut self, say: Say) {
        self.frames.send(Bytes::from(Frame { say: Some(say) }.encode_to_vec())).await.unwrap();
    }

    fn key(&self) -> libp2p_identity::Keypair {
        self.running.key.clone()
    }
}

async fn stream(from: &Running, to: &Running) -> EndingIo {
    let connection: Arc<Connection> = from.peer.inner.streams.best(&to.peer.id()).unwrap();
    connection.open(Protocols::of(&mesh()).gossip).await.unwrap()
}

pub(super) fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

pub(super) fn page(signed: Vec<Vec<u8>>, accusations: Vec<Vec<u8>>) -> Say {
    let bytes = |list: Vec<Vec<u8>>| list.into_iter().map(Bytes::from).collect();
    Say::Entries(Entries { signed: bytes(signed), accusations: bytes(accusations) })
}

fn entry(key: &libp2p_identity::Keypair, version: u64, payload: Payload) -> Vec<u8> {
    let now_ms = gossip::unix_ms();
    let rank = Rank { epoch: Epoch(now_ms), lifecycle: Lifecycle::Serving, version };
    Entry::sign(key, &mesh(), Draft { rank, issued_at_ms: now_ms, payload }).unwrap().signed().to_vec()
}

pub(super) async fn counted(running: &Running, metric: &str) {
    let seen = async {
        while !running.metrics.render().lines().any(|line| line.starts_with(metric) && !line.ends_with(" 0")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    finishes(lazily(|| format!("{metric} in\n{}", running.metrics.render())), seen).await;
}

#[tokio::test]
async fn garbage_and_endless_frames_cost_their_sender_the_stream_and_nobody_else() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let hostile = Hostile::new(&relay).await;
    for bytes in [
        // A frame that says it is 300 KiB long; one that is no protobuf; one that ends in the middle.
        [&300_000_u32.to_be_bytes()[..], &[0; 64]].concat(),
        [&8_u32.to_be_bytes()[..], &[0xff; 8]].concat(),
        [&100_u32.to_be_bytes()[..], &[0x0a; 5]].concat(),
    ] {
        let mut stream = stream(&hostile.running, &relay).await;
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    counted(&relay, "otela_gossip_frames_malformed_total").await;
    let node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    node.peer.announce(serving("m")).await.unwrap();
    until(&relay.peer, "others are served as before", |view| ready(view, "m") == 1).await;
}

#[tokio::test]
async fn p28_what_others_sign_for_a_peer_is_refused_and_counted() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    node.peer.announce(serving("m")).await.unwrap();
    until(&relay.peer, "the node is seen", |view| ready(view, "m") == 1).await;
    // Its own address and that at the relay: it says no more.
    let addresses = |view: &View| view.node(&node.peer.id()).map_or(0, |node| node.entry.payload().addresses.len());
    until(&relay.peer, "its addresses are seen", |view| addresses(view) == 2).await;
    let mut hostile = Hostile::new(&relay).await;
    let genuine = relay.peer.view().node(&node.peer.id()).unwrap().entry.signed().to_vec();
    let mut forged = genuine.clone();
    let middle = forged.len() / 2;
    forged[middle] ^= 1;
    let other_mesh = {
        let rank = Rank { epoch: Epoch(u64::MAX), lifecycle: Lifecycle::Serving, version: 1 };
        let draft = Draft { rank, issued_at_ms: gossip::unix_ms(), payload: Payload::default() };
        Entry::sign(&hostile.key(), &"other".parse().unwrap(), draft).unwrap().signed().to_vec()
    };
    hostile.say(page(vec![forged, other_mesh, vec![7; 5_000]], vec![])).await;
    for reason in ["bad_signature", "too_large"] {
        counted(&relay, &format!("otela_registry_entries_refused_total{{reason=\"{reason}\"}}")).await;
    }
    let stands = relay.peer.view().node(&node.peer.id()).unwrap().entry.signed().to_vec();
    assert_eq!(stands, genuine);
    assert_eq!(ready(&relay.peer.view(), "m"), 1);
}

#[tokio::test]
async fn one_liar_among_real_peers_takes_nobody_out() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let mut nodes = Vec::new();
    for _ in 0..4 {
        let mut node = tcp("lab", Role::Node, relay.peer.addresses()).await;
        echo(&mut node);
        node.peer.announce(serving("m")).await.unwrap();
        nodes.push(node);
    }
    until(&relay.peer, "all serve", |view| ready(view, "m") == 4).await;
    let mut liar = Hostile::new(&relay).await;
    let key = liar.key();
    for _ in 0..50 {
        let view = relay.peer.view();
        let lies = nodes.iter().map(|node| {
            let rank = view.node(&node.peer.id()).unwrap().entry.rank();
            let (subject, verdict) = (node.peer.id(), Verdict::Evict);
            let charge = Charge { subject, epoch: rank.epoch, version: rank.version, verdict };
            Accusation::sign(&key, &mesh(), charge, gossip::unix_ms()).unwrap().signed().to_vec()
        });
        let lies = lies.collect();
        liar.say(page(vec![], lies)).await;
        for node in &nodes {
            let sessions = node.metrics.render();
            assert!(sessions.contains("otela_peer_evictions_of_self_total 0"), "nobody is evicted");
            assert_eq!(ask(&relay.peer, &node.peer.id(), "still here").await.unwrap(), "still here");
        }
    }
    until(&relay.peer, "all serve", |view| ready(view, "m") == 4).await;
}

#[tokio::test]
async fn a_flood_of_valid_entries_reaches_others_thinned() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let mut node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    echo(&mut node);
    until(&relay.peer, "the node is seen", |view| view.node(&node.peer.id()).is_some()).await;
    let mut flooder = Hostile::new(&relay).await;
    let key = flooder.key();
    // Signed beforehand: what is slow is no flood. That its reader pauses is shown beside the reader, where time is virtual.
    let flood: Vec<_> = (1..=2_500).map(|version| entry(&key, version, Payload::default())).collect();
    let last = Entry::open(flood.last().unwrap(), &mesh(), gossip::unix_ms()).unwrap().rank();
    let before = frames_sent(&relay);
    for signed in flood {
        flooder.say(page(vec![signed], vec![])).await;
    }
    let id = flooder.running.peer.id();
    until(&node.peer, "the last has come through", |view| view.node(&id).is_some_and(|n| n.entry.rank() >= last)).await;
    assert_eq!(ask(&relay.peer, &node.peer.id(), "through it").await.unwrap(), "through it");
    let sent = frames_sent(&relay) - before;
    assert!(sent < 2_500.0, "{sent} frames were sent on, to two neighbours, for 2,500 publications");
}

fn frames_sent(running: &Running) -> f64 {
    let text = running.metrics.render();
    let line = text.lines().find(|line| line.starts_with("otela_gossip_frames_sent_total ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
/// One dial of a ghost after the other would take a quarter of an hour, which is longer than any wait here.
async fn p42_a_registry_full_of_ghosts_delays_neither_the_join_nor_requests() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    // Ghosts live where nobody accepts: the kernel takes the connections, and then nothing is said on them.
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{}", hole.local_addr().unwrap().port()).parse().unwrap();
    let ghosts: Vec<_> = (0..495)
        .map(|_| {
            let payload =
                Payload { addresses: vec![address.to_vec()], roles: vec![Role::Node as i32], ..Payload::default() };
            let bytes = entry(&libp2p_identity::Keypair::generate_ed25519(), 1, payload);
            Entry::open(&bytes, &mesh(), gossip::unix_ms()).unwrap()
        })
        .collect();
    let id = relay.peer.id();
    relay.peer.inner.events.send(gossip::Event::Entries(id, ghosts, vec![])).await.unwrap();
    until(&relay.peer, "the relay knows the ghosts", |view| view.nodes().count() >= 496).await;
    let mut node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    echo(&mut node);
    node.peer.announce(serving("m")).await.unwrap();
    until(&relay.peer, "the node is seen", |view| ready(view, "m") == 1).await;
    until(&node.peer, "the node knows the mesh", |view| view.nodes().count() >= 497).await;
    assert_eq!(ask(&relay.peer, &node.peer.id(), "x").await.unwrap(), "x");
}
