//! Ways into the mesh: lists on the web, names in DNS, and Kademlia when every bootstrap is gone.

use super::{
    hostile::{Hostile, counted, mesh, page},
    *,
};
use crate::{
    peer::{bootstrap::Dns, observe},
    tasks::Tasks,
};
use axum::{Router, extract::State as Shared, http::StatusCode, routing::get};
use hickory_resolver::proto::{
    op::{Message, OpCode, ResponseCode},
    rr::{RData, Record, RecordType, rdata::TXT},
};
use otela_proto::{
    entry::{Draft, Entry, Rank},
    payload::Payload,
    registry::{DEPARTED_MAX, Node},
};
use std::{collections::HashSet, sync::Mutex};
use tokio::net::{TcpListener, UdpSocket};

const NEAR: &str = "/ip4/127.0.0.1/tcp/0";

/// A node that knows one way into the mesh.
fn knows(bootstrap: Bootstrap) -> PeerConfig {
    PeerConfig {
        listen: vec![NEAR.parse().unwrap()],
        bootstrap: vec![bootstrap],
        ..PeerConfig::new(mesh(), Identity::ephemeral(), vec![Role::Node])
    }
}

async fn sees(from: &Running, other: &PeerId) {
    finds(from, other, "the mesh is found").await;
}

async fn finds(from: &Running, other: &PeerId, what: &str) {
    until(&from.peer, what, |view| view.node(other).is_some_and(Node::is_listed)).await;
}

fn number(running: &Running, metric: &str) -> u64 {
    let text = running.metrics.render();
    // With labels or without.
    let values =
        text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix([' ', '{'])?.split(' ').next_back());
    let values: Vec<u64> = values.map(|value| value.parse().unwrap()).collect();
    assert!(!values.is_empty(), "{metric} in\n{text}");
    values.iter().sum()
}

/// A server whose answers are changed while it runs.
#[derive(Clone, Default)]
struct Web {
    answer: Arc<Mutex<(u16, String)>>,
}

impl Web {
    async fn start(&self, tasks: &Tasks) -> Bootstrap {
        let answer = async |Shared(web): Shared<Web>| {
            let (status, body) = web.answer.lock().unwrap().clone();
            (StatusCode::from_u16(status).unwrap(), body)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/list", listener.local_addr().unwrap());
        let routes = Router::new().route("/list", get(answer)).with_state(self.clone());
        tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        url.parse().unwrap()
    }

    fn says(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }
}

#[tokio::test]
async fn the_bootstraps_that_any_otela_tells_are_a_list_to_join_by() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let list = format!("http://{}/v1/dnt/bootstraps", listener.local_addr().unwrap());
    let stop = relay.tasks.stopped_token();
    let routes = observe::router(relay.peer.clone(), relay.metrics.clone(), Arc::new(|| Ok(())), stop);
    observe::serve(listener, routes, &relay.tasks);
    until(&relay.peer, "it has announced itself", |view| view.node(&relay.peer.id()).is_some()).await;
    let node = run(knows(list.parse().unwrap())).await;
    sees(&node, &relay.peer.id()).await;
    assert!(node.peer.connection(&relay.peer.id()).is_some());
}

#[tokio::test]
async fn a_list_that_is_no_good_is_counted_and_read_again() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let addresses: Vec<_> = relay.peer.addresses().iter().map(ToString::to_string).collect();
    let (good, tasks) = (format!("# ours\n{}\n", addresses.join("\n")), Tasks::new());
    let endless = "\n".repeat(100_000);
    for (status, bad) in [(503, good.as_str()), (200, "<html>Please log in</html>"), (200, &endless), (200, "[]")] {
        let web = Web::default();
        web.says(status, bad);
        let node = run(knows(web.start(&tasks).await)).await;
        counted(&node, "otela_peer_bootstrap_lists_failed_total").await;
        assert!(!node.peer.has_joined() && node.peer.connections().is_empty(), "{status} {bad:.20}");
        web.says(200, &good);
        sees(&node, &relay.peer.id()).await;
    }
    tasks.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_list_of_which_nobody_answers_is_read_again() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let (web, tasks) = (Web::default(), Tasks::new());
    web.says(200, r#"["/ip4/127.0.0.1/tcp/1"]"#);
    let node = run(knows(web.start(&tasks).await)).await;
    counted(&node, "otela_peer_dials_failed_total").await;
    let addresses: Vec<_> = relay.peer.addresses().iter().map(ToString::to_string).collect();
    web.says(200, &format!("{addresses:?}"));
    sees(&node, &relay.peer.id()).await;
    assert_eq!(number(&node, "otela_peer_bootstrap_lists_failed_total"), 0);
    tasks.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn the_last_good_list_outlives_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let (web, tasks) = (Web::default(), Tasks::new());
    let list = web.start(&tasks).await;
    let addresses: Vec<_> = relay.peer.addresses().iter().map(ToString::to_string).collect();
    web.says(200, &addresses.join("\n"));
    let open = |dir: &std::path::Path| Some(State::open(dir, &mesh()).unwrap());
    let node = run(PeerConfig { state: open(dir.path()), ..knows(list.clone()) }).await;
    sees(&node, &relay.peer.id()).await;
    node.tasks.shutdown(Duration::ZERO).await;
    drop(node);
    let lists = open(dir.path()).unwrap().lists(std::slice::from_ref(&list));
    assert_eq!(lists.get(&list.to_string()), Some(&relay.peer.addresses()));
    let other: Bootstrap = "http://127.0.0.1:1/other".parse().unwrap();
    assert!(open(dir.path()).unwrap().lists(&[other]).is_empty(), "what is not configured is not used");
    tasks.shutdown(Duration::ZERO).await;
    // Peers are remembered too; here there is nothing but the list.
    let bare = tempfile::tempdir().unwrap();
    state::remember_list(bare.path(), &mesh(), &list, relay.peer.addresses());
    web.says(500, "");
    let node = run(PeerConfig { state: open(bare.path()), ..knows(list) }).await;
    sees(&node, &relay.peer.id()).await;
}

/// Answers TXT questions from `zone` until the tasks are stopped.
async fn name_server(zone: Vec<(&'static str, Vec<String>)>, tasks: &Tasks) -> Dns {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = socket.local_addr().unwrap();
    tasks.spawn(async move {
        let mut buffer = [0; 4_096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let query = question.queries[0].clone();
            assert_eq!(query.query_type(), RecordType::TXT);
            let name = query.name().to_string();
            let mut answer = Message::response(question.metadata.id, OpCode::Query);
            answer.add_query(query.clone());
            match zone.iter().find(|(known, _)| *known == name) {
                Some((_, records)) => {
                    for text in records {
                        let texts = text.as_bytes().chunks(255).map(|part| String::from_utf8(part.to_vec()).unwrap());
                        let data = RData::TXT(TXT::new(texts.collect()));
                        answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
                    }
                }
                None => answer.metadata.response_code = ResponseCode::NXDomain,
            }
            socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    });
    Dns::Server(at)
}

#[tokio::test]
async fn a_name_in_dns_leads_to_the_mesh() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let address = relay.peer.addresses()[0].clone();
    let tasks = Tasks::new();
    let zone = vec![
        (
            "_dnsaddr.mesh.test.",
            vec!["dnsaddr=/dnsaddr/more.mesh.test".to_owned(), "dnsaddr=/dnsaddr/gone.mesh.test".to_owned()],
        ),
        ("_dnsaddr.more.mesh.test.", vec![format!("dnsaddr={address}"), "dnsaddr=/dnsaddr/mesh.test".to_owned()]),
    ];
    let dns = name_server(zone, &tasks).await;
    let node = run(PeerConfig { dns, ..knows("/dnsaddr/mesh.test".parse().unwrap()) }).await;
    sees(&node, &relay.peer.id()).await;
    // Of one peer only: of the other there is nothing.
    let id = relay.peer.id();
    let node = run(PeerConfig { dns, ..knows(format!("/dnsaddr/mesh.test/p2p/{id}").parse().unwrap()) }).await;
    sees(&node, &id).await;
    let stranger = PeerId::random();
    let node = run(PeerConfig { dns, ..knows(format!("/dnsaddr/mesh.test/p2p/{stranger}").parse().unwrap()) }).await;
    counted(&node, "otela_peer_bootstrap_lists_failed_total").await;
    assert!(node.peer.connections().is_empty());
    tasks.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_peer_starts_though_there_is_no_name_server() {
    // A port that was free a moment ago: nobody answers there.
    let gone = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let mut config = knows("/dnsaddr/mesh.test".parse().unwrap());
    config.bootstrap.extend(relay.peer.addresses().into_iter().map(Bootstrap::from));
    let node = run(PeerConfig { dns: Dns::Server(gone), ..config }).await;
    sees(&node, &relay.peer.id()).await;
    counted(&node, "otela_peer_bootstrap_lists_failed_total").await;
}

/// A page of departed peers that nobody has ever heard of.
fn departed(count: usize) -> Vec<Vec<u8>> {
    let entry = |_| {
        let now_ms = gossip::unix_ms();
        let rank = Rank { epoch: Epoch(now_ms), lifecycle: Lifecycle::Left, version: 1 };
        let draft = Draft { rank, issued_at_ms: now_ms, payload: Payload::default() };
        Entry::sign(&libp2p_identity::Keypair::generate_ed25519(), &mesh(), draft).unwrap().signed().to_vec()
    };
    (0..count).map(entry).collect()
}

/// The registry keeps the addresses of those that are gone for a day, and of the last thousand. Here a public peer has
/// been gone for longer, and the only bootstrap that it and the others had is no more: nobody would ever dial it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kademlia_finds_a_public_peer_that_the_registry_has_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    let public = tcp("lab", Role::Relay, vec![]).await;
    let bootstrap = tcp("lab", Role::Relay, public.peer.addresses()).await;
    let only_way = bootstrap.peer.addresses();
    let identity = Identity::load_or_create(&key).unwrap();
    let lost = start_as("lab", identity, Role::Relay, NEAR, only_way.clone(), None).await;
    let (id, address) = (lost.peer.id(), lost.peer.addresses()[0].to_string());
    finds(&public, &id, "it was there").await;
    let remembered = async {
        while number(&public, "otela_kademlia_peers") != 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    finishes("the two others are public", remembered).await;
    lost.peer.leave(PATIENCE).await;
    lost.tasks.shutdown(Duration::ZERO).await;
    drop(lost);
    until(&public.peer, "it has left", |view| !view.node(&id).unwrap().is_listed()).await;
    // So many have left since that only a tombstone is kept of it.
    let mut hostile = Hostile::new(&public).await;
    for signed in departed(DEPARTED_MAX + 64).chunks(128) {
        hostile.say(page(signed.to_vec(), vec![])).await;
    }
    for running in [&public, &bootstrap] {
        until(&running.peer, "it is forgotten", |view| view.node(&id).is_none()).await;
    }
    // Somebody who has never heard of it.
    let node = tcp("lab", Role::Node, only_way.clone()).await;
    finds(&node, &public.peer.id(), "the node joins").await;
    assert!(node.peer.view().node(&id).is_none());
    bootstrap.tasks.shutdown(Duration::ZERO).await;
    drop(bootstrap);
    let identity = Identity::load_or_create(&key).unwrap();
    let listen = address.split("/p2p/").next().unwrap();
    let back = start_as("lab", identity, Role::Relay, listen, only_way, None).await;
    assert_eq!(back.peer.id(), id);
    finds(&back, &node.peer.id(), "the lost one is found").await;
    finds(&back, &public.peer.id(), "and learns of the others").await;
    finds(&public, &id, "and they of it").await;
    assert!(number(&node, "otela_kademlia_found_total") > 0, "the one without any memory of it has found it");
    assert!(number(&public, "otela_kademlia_answered_total") > 0);
    assert_eq!(number(&public, "otela_kademlia_searches_total"), 0, "who was given no bootstrap misses none");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kademlia_asks_nobody_while_bootstraps_answer() {
    let mut peers = vec![tcp("lab", Role::Relay, vec![]).await];
    let bootstrap = peers[0].peer.addresses();
    for n in 1..16 {
        let role = if n % 4 == 0 { Role::Relay } else { Role::Node };
        peers.push(tcp("lab", role, bootstrap.clone()).await);
    }
    for running in &peers {
        until(&running.peer, "all know of all", |view| view.nodes().count() == 16).await;
    }
    let opened = || peers.iter().map(|running| number(running, "otela_peer_connections_opened_total")).collect();
    // libp2p's Kademlia would refresh its table half a second after each new peer in it. There is no event to wait for
    // when nothing is to happen.
    let mut before: Vec<u64> = opened();
    let quiet = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            let now: Vec<u64> = opened();
            if std::mem::replace(&mut before, now.clone()) == now {
                break;
            }
        }
    };
    finishes("connections come to rest", quiet).await;
    for running in &peers {
        assert_eq!(number(running, "otela_kademlia_answered_total"), 0);
        assert_eq!(number(running, "otela_kademlia_searches_total"), 0);
    }
    // Two that dialled each other at once have two connections for a while.
    let others = |running: &Running| -> HashSet<_> { running.peer.connections().iter().map(|c| c.peer()).collect() };
    let held: usize = peers.iter().map(|running| others(running).len()).sum();
    assert!(held < 16 * 15, "{held}: not a full mesh");
}
