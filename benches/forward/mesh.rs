//! The processes under measurement: an ingress, nodes that wrap the benchmark's own engine, and two plain relays.

use crate::measure::Ways;
use std::{net::SocketAddr, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdout, Command},
};

/// Ends with its value: the engine goes with its node.
pub(crate) struct Mesh {
    pub(crate) ways: Ways<SocketAddr>,
    pub(crate) ingress: Child,
    pub(crate) nodes: Vec<Child>,
    /// Where the ingress meets other peers.
    pub(crate) bootstrap: String,
    _relays: [Child; 2],
}

/// The name of the mesh.
pub(crate) const NAME: &str = "bench";

impl Mesh {
    /// A mesh with so many nodes, at least one.
    pub(crate) async fn start(nodes: usize) -> Self {
        let near = ["--peer-listen", "/ip4/127.0.0.1/tcp/0", "--mesh", NAME, "--log", "warn,otela=info"];
        let (ingress_process, mut log, _) = run(OTELA, &[&["ingress", "--listen", "127.0.0.1:0"], &near[..]].concat());
        let peer = said(&mut log, "listening address=").await;
        let ingress: SocketAddr =
            said(&mut log, "OpenAI base URL: http://").await.trim_end_matches("/v1").parse().unwrap();
        keep_reading(log);
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        let node = [&["start", "--bootstrap", &peer], &near[..], &["--process", own, "engine"]].concat();
        let (mut node_processes, mut engines) = (Vec::new(), Vec::<SocketAddr>::new());
        for _ in 0..nodes {
            let (process, mut log, mut out) = run(OTELA, &node);
            engines.push(said(&mut out, "bench engine on ").await.parse().unwrap());
            said(&mut log, "serving models=").await;
            keep_reading(log);
            keep_reading(out);
            node_processes.push(process);
        }
        let (inner_process, inner) = relay(own, engines[0]).await;
        let (outer_process, outer) = relay(own, inner).await;
        Self {
            ways: Ways { direct: engines[0], relays: outer, mesh: ingress },
            ingress: ingress_process,
            nodes: node_processes,
            bootstrap: peer,
            _relays: [inner_process, outer_process],
        }
    }
}

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

async fn relay(own: &str, to: SocketAddr) -> (Child, SocketAddr) {
    let (process, log, mut out) = run(own, &["relay", &to.to_string()]);
    let address = said(&mut out, "bench relay on ").await.parse().unwrap();
    keep_reading(log);
    keep_reading(out);
    (process, address)
}

type Read<P> = Lines<BufReader<P>>;

fn run(program: &str, arguments: &[&str]) -> (Child, Read<ChildStderr>, Read<ChildStdout>) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (out, log) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    (child, BufReader::new(log).lines(), BufReader::new(out).lines())
}

/// The word after `mark` in the first line that has it.
async fn said<P: AsyncRead + Unpin>(lines: &mut Read<P>, mark: &str) -> String {
    let wait = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, rest)) = line.split_once(mark) {
                return rest.split_whitespace().next().unwrap_or_default().to_owned();
            }
        }
        panic!("the process ended before it said {mark:?}");
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("{mark:?} was not said"))
}

#[expect(clippy::disallowed_methods, reason = "readers of a child's pipes end with the child")]
fn keep_reading<P: AsyncRead + Send + Unpin + 'static>(mut lines: Read<P>) {
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
}
