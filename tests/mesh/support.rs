//! Real processes: meshes of the `otela` binary on loopback, and a client that sees bytes.

pub(crate) use crate::process::Otela;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use libp2p::{
    PeerId, Transport,
    core::{muxing::StreamMuxerBox, transport::Boxed, upgrade::Version},
    identity::Keypair,
    noise, tcp, yamux,
};
use otela_node::peer::admission::{AdmissionSettings, guarded};
use otela_testing::lazily;
pub(crate) use otela_testing::{eventually, finishes};
use serde_json::Value;
use std::{net::SocketAddr, path::PathBuf};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// How the ingress and its nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    /// Through a relay and in no other way: they listen where nobody is told of it.
    Relayed,
}

impl Way {
    fn peer_flags(self) -> &'static [&'static str] {
        match self {
            Self::Direct => &["--peer-listen", "/ip4/127.0.0.1/tcp/0"],
            Self::Relayed => &["--peer-listen", "/ip6/::1/tcp/0", "--announce", "192.0.2.0/24"],
        }
    }
}

/// An ingress and nodes that joined through it, or through the relay between them.
pub(crate) struct Mesh {
    way: Way,
    _relay: Option<Otela>,
    pub(crate) ingress: Otela,
    pub(crate) http: SocketAddr,
    pub(crate) bootstrap: String,
    pub(crate) nodes: Vec<Otela>,
    models: Vec<String>,
    pub(crate) dir: TempDir,
}

impl Mesh {
    /// An ingress with further flags, and no node yet.
    pub(crate) async fn ingress(flags: &[&str]) -> Self {
        Self::by(Way::Direct, flags).await
    }

    /// The same, with its nodes on this way.
    pub(crate) async fn by(way: Way, flags: &[&str]) -> Self {
        let relay = (way == Way::Relayed).then(|| {
            let listen = ["--peer-listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0", "--mesh", "test"];
            Otela::run(["relay"].iter().chain(&listen))
        });
        let through = match &relay {
            Some(relay) => Some(relay.says("--bootstrap ").await),
            None => None,
        };
        let mut arguments = vec!["ingress", "--listen", "127.0.0.1:0", "--mesh", "test"];
        arguments.extend(way.peer_flags());
        arguments.extend(through.iter().flat_map(|relay| ["--bootstrap", relay]));
        arguments.extend(flags);
        let ingress = Otela::run(arguments);
        let base = ingress.says("OpenAI base URL: http://").await;
        let http: SocketAddr = base.trim_end_matches("/v1").parse().unwrap();
        if way == Way::Relayed {
            let ready = async || (get(http, "/ready").await.status == 200).then_some(());
            eventually("the ingress has joined", ready).await;
        }
        let bootstrap = match through {
            Some(relay) => relay,
            None => {
                eventually("the ingress' own address", async || {
                    let answer = get(http, "/v1/dnt/bootstraps").await.json();
                    Some(answer["bootstraps"][0].as_str()?.to_owned())
                })
                .await
            }
        };
        Self {
            way,
            _relay: relay,
            ingress,
            http,
            bootstrap,
            nodes: Vec::new(),
            models: Vec::new(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Adds a node that wraps `engine`.
    pub(crate) fn add(&mut self, flags: &[&str], engine: &[&str]) -> &Otela {
        let mut arguments = vec!["start", "--mesh", "test"];
        arguments.extend(self.way.peer_flags());
        arguments.extend(["--bootstrap", &self.bootstrap, "--linger", "1s"]);
        arguments.extend(flags);
        arguments.push("--process");
        arguments.extend(engine);
        self.nodes.push(Otela::run(arguments));
        self.nodes.last().unwrap()
    }

    /// Adds a node with a simulated engine, and waits until it serves.
    pub(crate) async fn simulated(&mut self, model: &str, flags: &[&str]) {
        let mut engine = vec![env!("CARGO_BIN_EXE_otela"), "engine", model, "--port", "0"];
        engine.extend(flags);
        self.add(&[], &engine);
        self.serves_one_more(model).await;
    }

    /// Adds a node with flags of its own and a simulated engine, and waits until it serves.
    pub(crate) async fn start(&mut self, node: &[&str], model: &str, engine: &[&str]) {
        let mut command = vec![env!("CARGO_BIN_EXE_otela"), "engine", model, "--port", "0"];
        command.extend(engine);
        self.add(node, &command);
        self.serves_one_more(model).await;
    }

    /// Adds a node with a scripted engine, and waits until it serves. Its log is `scripted-N`.
    pub(crate) async fn scripted(&mut self, model: &str) -> ScriptedLog {
        self.scripted_with(model, &[], &[]).await
    }

    /// The same, with flags of the node and further arguments of the engine.
    pub(crate) async fn scripted_with(&mut self, model: &str, node: &[&str], engine: &[&str]) -> ScriptedLog {
        let log = self.dir.path().join(format!("scripted-{}", self.nodes.len()));
        self.add(node, &[&["python3", ScriptedLog::ENGINE, log.to_str().unwrap(), model], engine].concat());
        self.serves_one_more(model).await;
        ScriptedLog(log)
    }

    async fn serves_one_more(&mut self, model: &str) {
        self.models.push(model.to_owned());
        if self.way == Way::Relayed {
            eventually("a way through the relay", async || {
                let status = get(self.http, "/v1/registry/status").await.json();
                let connections = status["connections"].as_array()?.iter();
                (connections.filter(|to| to["path"] == "relayed").count() > 0).then_some(())
            })
            .await;
        }
        let replicas = self.models.iter().filter(|served| *served == model).count();
        self.serves(model, replicas).await;
    }

    /// Waits until `model` has `replicas` that are ready.
    pub(crate) async fn serves(&self, model: &str, replicas: usize) {
        let what = lazily(|| format!("{replicas} replicas of {model}; nodes say {}", self.complaints()));
        eventually(what, async || (self.ready(model).await == replicas).then_some(())).await;
    }

    pub(crate) async fn ready(&self, model: &str) -> usize {
        let models = get(self.http, "/v1/registry/models").await.json();
        let models = models["models"].as_array().unwrap().iter();
        models.filter(|m| m["id"] == model).map(|m| m["ready"].as_u64().unwrap() as usize).sum()
    }

    /// The listed nodes, as the ingress sees them.
    pub(crate) async fn listed(&self) -> Vec<Value> {
        let nodes = get(self.http, "/v1/registry/nodes").await.json()["nodes"].as_array().unwrap().clone();
        nodes.into_iter().filter(|node| node["roles"][0] == "node").collect()
    }

    fn complaints(&self) -> String {
        self.nodes.iter().map(Otela::output).collect::<Vec<_>>().join("\n")
    }

    /// A metric of the ingress: the sum over its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = get(self.http, "/metrics").await;
        sum_metric(std::str::from_utf8(&text.body).unwrap(), name)
    }
}

/// The sum of all samples whose name and labels start with `name`.
pub(crate) fn sum_metric(text: &str, name: &str) -> f64 {
    let samples = text.lines().filter(|line| line.starts_with(name));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// What a scripted engine has seen.
pub(crate) struct ScriptedLog(PathBuf);

impl ScriptedLog {
    /// The engine that writes such a log.
    pub(crate) const ENGINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mesh/scripted_engine.py");

    /// The log of an engine that was told to write it there.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        let text = self.text();
        let complete = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        complete.filter(|event| event["event"] == kind).collect()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap_or_default()
    }

    /// Lets those go on who wait for `name`.
    pub(crate) fn allow(&self, name: &str) {
        std::fs::write(format!("{}.{name}", self.0.display()), "").unwrap();
    }

    /// Makes the engine print a line.
    pub(crate) fn print(&self, line: &str) {
        let (new, file) = (format!("{}.new", self.0.display()), format!("{}.print", self.0.display()));
        std::fs::write(&new, line).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// Waits for the n-th event of a kind, counted from 1.
    pub(crate) async fn nth(&self, kind: &str, n: usize) -> Value {
        let what = lazily(|| format!("event {n} of kind {kind} in {}", self.text()));
        eventually(what, async || self.events(kind).into_iter().nth(n - 1)).await
    }
}

/// A whole HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    try_get(to, path).await.unwrap()
}

pub(crate) async fn try_get(to: SocketAddr, path: &str) -> Result<Answer, String> {
    let request = http::Request::get(path).header("host", "test").body(Full::new(Bytes::new())).unwrap();
    send(to, request).await
}

pub(crate) async fn post(to: SocketAddr, path: &str, body: &Value) -> Answer {
    try_post(to, path, body).await.unwrap()
}

pub(crate) async fn try_post(to: SocketAddr, path: &str, body: &Value) -> Result<Answer, String> {
    let request = http::Request::post(path).header("host", "test").header("content-type", "application/json");
    send(to, request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

/// Sends one request on a connection of its own; an error if the answer does not end as it should.
#[expect(clippy::disallowed_methods, reason = "the connection's task ends with the connection")]
pub(crate) async fn send(to: SocketAddr, request: http::Request<Full<Bytes>>) -> Result<Answer, String> {
    let exchange = async {
        let tcp = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
        tcp.set_nodelay(true).unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| format!("{e:?} in the body"))?.to_bytes();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
    };
    finishes("the answer to a request", exchange).await
}

/// Opens a connection and writes `bytes`.
pub(crate) async fn raw(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut tcp = TcpStream::connect(to).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    tcp.write_all(bytes).await.unwrap();
    tcp
}

/// A POST with a JSON body, as bytes.
pub(crate) fn post_bytes(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Reads until `mark` has been seen; all that was read.
pub(crate) async fn read_until(tcp: &mut TcpStream, mark: &str) -> String {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    let read = async {
        while !String::from_utf8_lossy(&seen).contains(mark) {
            let n = tcp.read(&mut buffer).await.unwrap_or(0);
            assert!(n > 0, "{mark:?} does not come: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..n]);
        }
    };
    finishes(format_args!("{mark:?} in an answer"), read).await;
    String::from_utf8_lossy(&seen).into_owned()
}

/// Reads to the end, however it comes; the bytes, and whether it was a clean end of the connection.
pub(crate) async fn read_to_end(tcp: &mut TcpStream) -> (String, bool) {
    let mut seen = Vec::new();
    let clean = finishes("the end of a connection", tcp.read_to_end(&mut seen)).await.is_ok();
    (String::from_utf8_lossy(&seen).into_owned(), clean)
}

/// The transport of somebody who names a mesh, shows nothing, and is no otela; and who that is.
pub(crate) fn foreign(mesh: &str) -> (PeerId, Boxed<(PeerId, StreamMuxerBox)>) {
    let key = Keypair::generate_ed25519();
    let transport = tcp::tokio::Transport::new(tcp::Config::default())
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(&key).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed();
    let door = AdmissionSettings::open(mesh.parse().unwrap());
    (key.public().to_peer_id(), guarded(transport, &key, &door))
}

/// The steps of a script that answers with an event stream of `events`, each a whole chunk.
pub(crate) fn stream_of(events: &[&str]) -> Vec<Value> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut steps = vec![serde_json::json!(["send", head])];
    steps.extend(events.iter().map(|event| serde_json::json!(["send", chunk(event)])));
    steps
}

/// One chunk of a chunked body. Text is Latin-1: each `char` is a byte.
pub(crate) fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.chars().count())
}

/// An event of a stream of completions.
pub(crate) const EVENT: &str = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";

/// Steps of the scripted engine that answer with a stream of two events, the second once `allowed` is.
pub(crate) fn in_halves(allowed: &str) -> Vec<Value> {
    let mut steps = stream_of(&[EVENT]);
    steps.push(serde_json::json!(["await", allowed]));
    let rest = [chunk(EVENT), chunk("data: [DONE]\n\n"), "0\r\n\r\n".to_owned()];
    steps.extend(rest.map(|text| serde_json::json!(["send", text])));
    steps
}
