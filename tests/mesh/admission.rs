//! Meshes that admit signed binaries, or members, only: set up with otela's own commands, as an operator does it.

use crate::support::{Otela, eventually, foreign, get, post, sum_metric};
use libp2p::{
    Multiaddr, Transport,
    core::{
        Endpoint,
        transport::{DialOpts, PortUse},
    },
    multiaddr::Protocol,
};
use otela_testing::repetitions;
use serde_json::{Value, json};
use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};
use tempfile::TempDir;

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

/// A directory with keys, a signed binary and a mesh file.
struct Office {
    dir: TempDir,
    maintainer: String,
}

fn run(binary: &Path, arguments: &[&str]) -> Output {
    Command::new(binary).args(arguments).output().unwrap()
}

/// What a command printed, which must have gone well.
fn printed(binary: &Path, arguments: &[&str]) -> String {
    let output = run(binary, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Office {
    fn new(mesh: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("otela");
        // A name of its own for the same file: copying a hundred megabytes for each test would tell nothing more.
        fs::hard_link(OTELA, &binary).or_else(|_| fs::copy(OTELA, &binary).map(drop)).unwrap();
        let key = dir.path().join("maintainer.key");
        let maintainer = printed(&binary, &["key", key.to_str().unwrap()]);
        let office = Self { dir, maintainer };
        printed(&office.binary(), &["sign", "--key", key.to_str().unwrap()]);
        office.write_mesh(&format!("name = \"{mesh}\"\n[release]\nkeys = [\"{}\"]\n", office.maintainer));
        office
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn binary(&self) -> PathBuf {
        self.path("otela")
    }

    fn write_mesh(&self, text: &str) {
        // Renamed into place, as somebody does it who does not want half a file to be read.
        fs::write(self.path("mesh.toml.new"), text).unwrap();
        fs::rename(self.path("mesh.toml.new"), self.path("mesh.toml")).unwrap();
    }

    fn read_mesh(&self) -> String {
        fs::read_to_string(self.path("mesh.toml")).unwrap()
    }

    /// Starts a peer with the signed binary.
    async fn peer(&self, arguments: &[&str]) -> Peer {
        Peer::start(&self.binary(), &self.path("mesh.toml"), arguments).await
    }
}

struct Peer {
    process: Otela,
    http: SocketAddr,
    id: String,
}

impl Peer {
    async fn start(binary: &Path, mesh: &Path, arguments: &[&str]) -> Self {
        let is_ingress = arguments[0] == "ingress";
        let listen = if is_ingress { "--listen" } else { "--http" };
        let common = ["--mesh-file", mesh.to_str().unwrap(), "--threads", "1", listen, "127.0.0.1:0"];
        // An engine's command line comes last.
        let at = arguments.iter().position(|argument| *argument == "--process").unwrap_or(arguments.len());
        let peers = ["--peer-listen", "/ip4/127.0.0.1/tcp/0"];
        let all = [&arguments[..at], &common, &peers, &arguments[at..]].concat();
        let process = Otela::run_program(binary.to_str().unwrap(), all);
        let mark = if is_ingress { "OpenAI base URL: http://" } else { "registry: http://" };
        let http = process.says(mark).await;
        let http = http.split('/').next().unwrap().parse().unwrap();
        let id = process.says(" peer=").await;
        Self { process, http, id }
    }

    async fn status(&self) -> Value {
        get(self.http, "/v1/registry/status").await.json()
    }

    async fn lists(&self) -> Vec<String> {
        let nodes = get(self.http, "/v1/registry/nodes").await.json();
        nodes["nodes"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the peer has refused others, or was refused, for `reason`.
    async fn has_refused(&self, what: &str, reason: &str) {
        eventually(&format!("{what} refused: {reason}"), async || {
            let status = self.status().await;
            let refused = status["refused"].as_array()?.iter();
            refused.clone().any(|r| r["what"] == what && r["reason"] == reason).then_some(())
        })
        .await;
    }
}

/// A relay, an ingress and a node that serves `m`.
async fn serving(office: &Office) -> [Peer; 3] {
    let relay = office.peer(&["relay"]).await;
    let bootstrap = relay.process.says("others join with --bootstrap ").await;
    let ingress = office.peer(&["ingress", "--bootstrap", &bootstrap]).await;
    let engine = ["--process", OTELA, "engine", "m", "--port", "0", "--ttft", "1ms", "--itl", "1ms"];
    let node = office.peer(&[&["start", "--bootstrap", &bootstrap], &engine[..]].concat()).await;
    serves(&ingress, true).await;
    [relay, ingress, node]
}

async fn serves(ingress: &Peer, good: bool) {
    eventually(if good { "an answer" } else { "no answer" }, async || {
        let answer =
            post(ingress.http, "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 2})).await;
        ((answer.status == 200) == good).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_signed_mesh_serves_and_whoever_is_not_signed_gets_nothing_of_it() {
    let office = Office::new("lab");
    let [relay, ingress, node] = serving(&office).await;
    // The same program without a signature, whose own mesh file asks for none.
    let open = office.path("open.toml");
    fs::write(&open, "name = \"lab\"").unwrap();
    let bootstrap = relay.process.says("others join with --bootstrap ").await;
    let stranger = Peer::start(Path::new(OTELA), &open, &["start", "--bootstrap", &bootstrap]).await;
    stranger.has_refused("us", "unsigned").await;
    relay.has_refused("peers", "unsigned").await;
    let warned = stranger.status().await["warnings"].to_string();
    assert!(warned.contains("not signed") && warned.contains("refused_by_peers"), "{warned}");
    stranger.process.writes("its binary is not signed", 1).await;
    relay.process.writes("refused a peer: its binary is not signed", 1).await;
    assert_eq!(stranger.lists().await, [stranger.id.as_str()], "it has received no entry");
    for peer in [&relay, &ingress, &node] {
        let listed = peer.lists().await;
        assert!(listed.len() == 3 && !listed.contains(&stranger.id), "{listed:?}");
        let admission = peer.status().await["admission"].clone();
        assert_eq!(admission["require_signed"], true);
        assert_eq!(admission["release"]["key"], office.maintainer.as_str());
    }
    let metrics = String::from_utf8(get(relay.http, "/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("otela_admission_refused_total{by=\"us\",reason=\"unsigned\"}"), "{metrics}");
}

#[tokio::test]
async fn two_meshes_of_one_name_and_different_keys_never_mix_on_one_host() {
    let (one, other) = (Office::new("lab"), Office::new("lab"));
    let relay = one.peer(&["relay"]).await;
    let bootstrap = relay.process.says("others join with --bootstrap ").await;
    let neighbour = other.peer(&["start", "--bootstrap", &bootstrap]).await;
    neighbour.has_refused("us", "unknown_key").await;
    relay.has_refused("peers", "unknown_key").await;
    assert_eq!((relay.lists().await.len(), neighbour.lists().await.len()), (1, 1));
    let third = Office::new("lab3");
    let other_name = third.peer(&["start", "--bootstrap", &bootstrap]).await;
    other_name.has_refused("us", "other_mesh").await;
    assert_eq!((relay.lists().await.len(), other_name.lists().await.len()), (1, 1));
}

#[tokio::test]
async fn who_is_revoked_is_put_out_at_once_and_let_in_again() {
    let office = Office::new("lab");
    let [relay, ingress, node] = serving(&office).await;
    let before = office.read_mesh();
    office.write_mesh(&format!("{before}[revoked]\npeers = [\"{}\"]\n", node.id));
    serves(&ingress, false).await;
    for peer in [&relay, &ingress] {
        peer.has_refused("peers", "revoked_peer").await;
    }
    node.has_refused("us", "revoked_peer").await;
    eventually("the mesh gives it up", async || {
        let listed = ingress.lists().await;
        (!listed.contains(&node.id)).then_some(())
    })
    .await;
    office.write_mesh(&before);
    serves(&ingress, true).await;
}

/// Runs a command that must not start a peer; what it said on its one line.
fn refused_at_start(binary: &Path, mesh: &Path, more: &[&str]) -> String {
    let arguments = [&["relay", "--mesh-file", mesh.to_str().unwrap(), "--peer-listen", "127.0.0.1:0"], more].concat();
    let output = run(binary, &arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(78), 1), "{said}");
    said
}

#[tokio::test]
async fn a_binary_that_is_not_what_was_signed_does_not_start() {
    let office = Office::new("lab");
    let (mesh, key) = (office.path("mesh.toml"), office.path("maintainer.key"));
    let tampered = office.path("tampered");
    fs::copy(OTELA, &tampered).unwrap();
    let said = refused_at_start(&tampered, &mesh, &[]);
    assert!(said.contains("its binary is not signed"), "{said}");
    fs::OpenOptions::new().append(true).open(&tampered).unwrap().write_all(b"!").unwrap();
    // The signature of the binary that it was a copy of.
    fs::copy(office.path("otela.release"), office.path("tampered.release")).unwrap();
    let said = refused_at_start(&tampered, &mesh, &[]);
    assert!(said.contains("is for another binary"), "{said}");
    let sign = |more: &[&str]| {
        printed(&office.binary(), &[&["sign", "--key", key.to_str().unwrap()], more].concat());
    };
    sign(&["--from", "2020-01-01T00:00:00Z", "--for", "1d"]);
    let said = refused_at_start(&office.binary(), &mesh, &[]);
    assert!(said.contains("has expired"), "{said}");
    let stranger = office.path("stranger.key");
    printed(&office.binary(), &["key", stranger.to_str().unwrap()]);
    printed(&office.binary(), &["sign", "--key", stranger.to_str().unwrap()]);
    let said = refused_at_start(&office.binary(), &mesh, &[]);
    assert!(said.contains("not a release key"), "{said}");
    sign(&[]);
    office.write_mesh(&format!("{}min_version = \"99.0.0\"\n", office.read_mesh()));
    let said = refused_at_start(&office.binary(), &mesh, &[]);
    assert!(said.contains("version is older"), "{said}");
    office.write_mesh("name = \"lab\"\n[release]\nkeyz = []\n");
    let said = refused_at_start(&office.binary(), &mesh, &[]);
    assert!(said.contains("mesh.toml is not right: line 3: unknown field `keyz`"), "{said}");
}

#[tokio::test]
async fn a_private_mesh_admits_members_only() {
    let office = Office::new("lab");
    let (authority, alice) = (office.path("authority.key"), office.path("alice.key"));
    let id = |key: &Path| printed(&office.binary(), &["key", key.to_str().unwrap()]);
    let (authority_id, alice_id) = (id(&authority), id(&alice));
    office.write_mesh(&format!("{}[membership]\nkeys = [\"{authority_id}\"]\n", office.read_mesh()));
    let member = |peer: &str, out: &Path| {
        let key = authority.to_str().unwrap();
        let arguments = ["sign", "--member", peer, "--mesh", "lab", "--key", key, "--out", out.to_str().unwrap()];
        printed(&office.binary(), &arguments)
    };
    let mesh = office.path("mesh.toml");
    let said = refused_at_start(&office.binary(), &mesh, &[]);
    assert!(said.contains("has no membership"), "{said}");
    let (alices, bob, bobs) = (office.path("alice"), office.path("bob.key"), office.path("bob"));
    member(&alice_id, &alices);
    member(&id(&bob), &bobs);
    let show = |key: &Path, membership: &Path| {
        ["--key", key.to_str().unwrap(), "--membership", membership.to_str().unwrap()].map(str::to_owned)
    };
    let wrong = show(&alice, &bobs);
    let said = refused_at_start(&office.binary(), &mesh, &wrong.each_ref().map(String::as_str));
    assert!(said.contains("is for peer"), "{said}");
    let right = show(&alice, &alices);
    let relay = office.peer(&[&["relay"], &right.each_ref().map(String::as_str)[..]].concat()).await;
    assert_eq!(relay.id, alice_id);
    let bootstrap = relay.process.says("others join with --bootstrap ").await;
    let right = show(&bob, &bobs);
    let node =
        office.peer(&[&["start", "--bootstrap", &bootstrap], &right.each_ref().map(String::as_str)[..]].concat()).await;
    eventually("both are there", async || (relay.lists().await.len() == 2).then_some(())).await;
    assert_eq!(node.status().await["admission"]["members_only"], true);
    // One who brings a signed binary and no membership, and whose own rules do not ask for one.
    let lax = office.path("lax.toml");
    fs::write(&lax, format!("name = \"lab\"\n[release]\nkeys = [\"{}\"]\n", office.maintainer)).unwrap();
    let stranger = Peer::start(&office.binary(), &lax, &["start", "--bootstrap", &bootstrap]).await;
    stranger.has_refused("us", "not_a_member").await;
    assert_eq!(relay.lists().await.len(), 2);
}

#[test]
fn what_is_said_of_a_binary_can_be_checked_by_anybody() {
    let office = Office::new("lab");
    let (binary, mesh) = (office.binary(), office.path("mesh.toml"));
    let shown = printed(&binary, &["verify"]);
    for part in ["version", "digest   sha256:", "valid", &office.maintainer, "verdict  good"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let by_rules = ["verify", binary.to_str().unwrap(), "--mesh-file", mesh.to_str().unwrap()];
    assert!(printed(Path::new(OTELA), &by_rules).contains("mesh     lab"));
    let other = Office::new("lab");
    let by_others = ["verify", "--mesh-file", other.path("mesh.toml").to_str().unwrap()].map(str::to_owned);
    let output = run(&binary, &by_others.each_ref().map(String::as_str));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("not good: its binary is signed by a key"), "{said}");
    fs::remove_file(office.path("otela.release")).unwrap();
    let output = run(&binary, &["verify"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("there is no "));
    // Keys are neither overwritten nor read by everybody.
    let key = office.path("maintainer.key");
    assert_eq!(printed(&binary, &["key", key.to_str().unwrap()]), office.maintainer);
    let output = run(&binary, &["sign", "--key", office.path("nobody.key").to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(78) && said.contains("make one with `otela key"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_who_come_by_the_hundred_disturb_no_request() {
    let office = Office::new("lab");
    let [relay, ingress, node] = serving(&office).await;
    let mut doors: Vec<Multiaddr> = Vec::new();
    for peer in [&relay, &ingress, &node] {
        let addresses = peer.status().await["addresses"].clone();
        let own = addresses.as_array().unwrap().iter().map(|address| address.as_str().unwrap());
        let own = own.into_iter().find(|address| !address.contains("p2p-circuit")).unwrap();
        doors.push(own.parse::<Multiaddr>().unwrap().iter().take(2).collect());
    }
    let (done, mut stop) = tokio::sync::watch::channel(false);
    let strangers = async {
        let (mut tick, mut dials) = (tokio::time::interval(Duration::from_millis(10)), tokio::task::JoinSet::new());
        let (_, mut transport) = foreign("lab");
        for n in 0..repetitions(300, 1_000) {
            tick.tick().await;
            let door = &doors[n % doors.len()];
            // One that asks to be let in, and one that connects and says nothing.
            let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
            let dial = transport.dial(door.clone(), options).unwrap();
            dials.spawn(async move { assert!(dial.await.is_err(), "a stranger was let in") });
            let port = door.iter().find_map(|part| match part {
                Protocol::Tcp(port) => Some(port),
                _ => None,
            });
            dials.spawn(async move {
                let silent = tokio::net::TcpStream::connect(("127.0.0.1", port.unwrap())).await;
                let _ = tokio::io::AsyncReadExt::read(&mut silent.unwrap(), &mut [0; 64]).await;
            });
        }
        done.send(true).unwrap();
        dials.join_all().await;
    };
    let clients = async {
        let mut answered = 0;
        while !*stop.borrow_and_update() {
            let body = json!({"model": "m", "prompt": "x", "max_tokens": 4});
            let answer = post(ingress.http, "/v1/completions", &body).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            answered += 1;
        }
        answered
    };
    let ((), answered) = tokio::join!(strangers, clients);
    assert!(answered > 0, "clients are answered meanwhile");
    for peer in [&relay, &ingress, &node] {
        assert_eq!(peer.lists().await.len(), 3);
        assert!(peer.status().await["joined"] == true);
        let text = String::from_utf8(get(peer.http, "/metrics").await.body.to_vec()).unwrap();
        let turned_away = sum_metric(&text, "otela_admission_refused_total")
            + sum_metric(&text, "otela_peer_connections_denied_total");
        assert!(turned_away >= f64::from(repetitions(30, 100)), "{turned_away}");
    }
}
