//! A registry full of peers whose addresses swallow packets.

use crate::support::{Otela, eventually, foreign, get, post};
use futures::{AsyncWriteExt, StreamExt};
use libp2p::{
    Multiaddr, StreamProtocol, Swarm,
    identity::Keypair,
    multiaddr::Protocol,
    swarm::{self, SwarmEvent},
};
use otela_proto::{
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::{Payload, Role},
    wire::{Entries, Frame, Say, gossip_protocol},
};
use otela_testing::{Stopwatch, are_comparable, assert_comparable, repetitions};
use prost::Message;
use serde_json::json;
use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

const GHOSTS: usize = 495;

/// A port whose queue is full: the kernel drops what opens a connection to it, as a firewall does.
struct Hole {
    address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Hole {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        // No connection is ever accepted, and the first one or two fill the queue.
        let mut queued = Vec::new();
        loop {
            tokio::select! {
                connected = TcpStream::connect(address) => queued.push(connected.unwrap()),
                () = tokio::time::sleep(Duration::from_millis(500)) => break,
            }
        }
        Self { address, _listener: listener, _queued: queued }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis().try_into().unwrap()
}

/// Entries that are valid, of owners that are not there.
fn ghosts(holes: &[Hole]) -> Vec<Vec<u8>> {
    let mesh: MeshName = "test".parse().unwrap();
    let ghost = |n: usize| {
        let at = holes[n % holes.len()].address;
        let address = Multiaddr::empty().with(at.ip().into()).with(Protocol::Tcp(at.port()));
        let payload =
            Payload { addresses: vec![address.to_vec()], roles: vec![Role::Node as i32], ..Payload::default() };
        let rank = Rank { epoch: Epoch(unix_ms()), lifecycle: Lifecycle::Serving, version: 1 };
        let draft = Draft { rank, issued_at_ms: unix_ms(), payload };
        Entry::sign(&Keypair::generate_ed25519(), &mesh, draft).unwrap().signed().to_vec()
    };
    (0..GHOSTS).map(ghost).collect()
}

/// Tells the peer at `to` of `entries` by gossip, as a member that knows them would. The connection stays until the
/// returned task is dropped.
async fn tell(to: &str, entries: Vec<Vec<u8>>) -> tokio::task::JoinSet<()> {
    let protocol = StreamProtocol::try_from_owned(gossip_protocol(&"test".parse().unwrap())).unwrap();
    let (me, transport) = foreign("test");
    let config = swarm::Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
    let mut swarm = Swarm::new(transport, libp2p_stream::Behaviour::new(), me, config);
    let mut control = swarm.behaviour().new_control();
    // Who does not take part in gossip is a stranger and is closed.
    let mut inbound = control.accept(protocol.clone()).unwrap();
    swarm.dial(to.parse::<Multiaddr>().unwrap()).unwrap();
    let peer = loop {
        match swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { peer_id, .. } => break peer_id,
            SwarmEvent::OutgoingConnectionError { error, .. } => panic!("{error}"),
            _ => {}
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut accepted = Vec::new();
        loop {
            tokio::select! {
                _event = swarm.select_next_some() => {}
                Some(stream) = inbound.next() => accepted.push(stream),
            }
        }
    });
    let mut stream = control.open_stream(peer, protocol).await.unwrap();
    for page in entries.chunks(100) {
        let signed = page.iter().cloned().map(Into::into).collect();
        let frame = Frame { say: Some(Say::Entries(Entries { signed, accusations: vec![] })) }.encode_to_vec();
        stream.write_all(&u32::try_from(frame.len()).unwrap().to_be_bytes()).await.unwrap();
        stream.write_all(&frame).await.unwrap();
    }
    stream.flush().await.unwrap();
    // The stream stays open as long as the connection.
    tasks.spawn(async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    tasks
}

/// How long after the start of the processes each was seen.
#[derive(Debug)]
struct Times {
    /// The API of an ingress answers.
    api: Duration,
    /// The registry of the node answers.
    registry: Duration,
    /// The engine is started and the node has said so.
    serving: Duration,
    /// A client has its first completion, through the ingress.
    completion: Duration,
}

/// Starts a relay, and an ingress and a node that join through it once it knows the ghosts.
async fn start(ghosts: Vec<Vec<u8>>) -> Times {
    let n = ghosts.len();
    let relay =
        Otela::run(["relay", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0"]);
    let address = |line: String| line.split('/').next().unwrap().parse::<SocketAddr>().unwrap();
    let relay_http = address(relay.says("registry: http://").await);
    let bootstrap = relay.says("others join with --bootstrap ").await;
    let _told = tell(&bootstrap, ghosts).await;
    let known =
        async |http: SocketAddr| get(http, "/v1/registry/status").await.json()["nodes"]["listed"].as_u64().unwrap();
    eventually("the relay knows the ghosts", async || (known(relay_http).await > n as u64).then_some(())).await;

    let began = Stopwatch::start();
    let common = ["--mesh", "test", "--bootstrap", &bootstrap, "--peer-listen", "/ip4/127.0.0.1/tcp/0"];
    let ingress = Otela::run(["ingress", "--listen", "127.0.0.1:0"].iter().chain(&common));
    let engine = ["--http", "127.0.0.1:0", "--process", env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
    let node = Otela::run(["start"].iter().chain(&common).chain(&engine));
    let api = async {
        let base = ingress.says("OpenAI base URL: http://").await;
        let http = address(base);
        assert_eq!(get(http, "/v1/registry/status").await.status, 200);
        (http, began.read())
    };
    let registry = async {
        let http = address(node.says("registry: http://").await);
        assert_eq!(get(http, "/v1/registry/nodes").await.status, 200);
        (http, began.read())
    };
    let serving = async {
        node.says("serving").await;
        began.read()
    };
    let ((http, api), (node_http, registry), serving) = tokio::join!(api, registry, serving);
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1});
    eventually("a completion", async || (post(http, "/v1/chat/completions", &chat).await.status == 200).then_some(()))
        .await;
    let times = Times { api, registry, serving, completion: began.read() };
    for http in [http, node_http] {
        eventually("it knows the whole mesh", async || (known(http).await >= n as u64 + 3).then_some(())).await;
    }
    times
}

#[tokio::test]
async fn p42_a_node_and_an_ingress_beside_495_ghosts_start_as_fast_as_without() {
    let mut holes = Vec::new();
    for _ in 0..8 {
        holes.push(Hole::new().await);
    }
    let stages = [
        ("the ingress' API", (|times| times.api) as fn(&Times) -> Duration),
        ("the node's registry", |times| times.registry),
        ("the engine", |times| times.serving),
        ("a completion", |times| times.completion),
    ];
    let (mut alone, mut haunted): (Vec<Times>, Vec<Times>) = Default::default();
    let all = |times: &[Times], of: fn(&Times) -> Duration| times.iter().map(of).collect::<Vec<_>>();
    // One dial of a ghost takes two seconds, which is more than a whole start.
    const TIMES: u32 = 2;
    for round in 1..=10 {
        // In turn, so that both see the same machine.
        alone.push(start(vec![]).await);
        haunted.push(start(ghosts(&holes)).await);
        let good = stages.iter().all(|(_, of)| are_comparable(&all(&haunted, *of), &all(&alone, *of), TIMES));
        if good && round >= repetitions(2, 5) {
            break;
        }
    }
    for (what, of) in stages {
        assert_comparable(what, &all(&haunted, of), &all(&alone, of), TIMES);
    }
}
