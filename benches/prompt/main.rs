//! How soon what must happen at once happens: engines that are let go of when their clients leave, streams that break with
//! their nodes, watchers that are sent home, starts that nothing holds up.
//!
//! `cargo bench --bench prompt -- [--json] [--check]`. `--check` exits with 1 and names the rows that miss their reach. Each
//! round takes every row once, so that all of them, and the client that leaves the engine itself, see the same machine.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

mod leave;
#[path = "../../tests/mesh/process.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod process;
mod profile;
#[path = "../../otela-node/benches/loopback/report.rs"]
#[allow(dead_code, reason = "others measure more")]
mod report;
#[path = "../../tests/mesh/support.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod support;

use leave::Leavers;
use otela_testing::Stopwatch;
use process::Otela;
use report::Row;
use serde_json::json;
use std::{collections::BTreeMap, process::ExitCode, time::Duration};
use support::{Mesh, Way, eventually, post, post_bytes, raw, read_to_end, read_until, stream_of};

const ROUNDS: usize = 20;
/// Profiles of an engine, of which each takes several seconds.
const PROFILES: usize = 3;
const WATCHERS: usize = 100;
const EVENT: &str = "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
/// A proxy that refuses every connection.
const DEAD_PROXY: &str = "https_proxy=http://127.0.0.1:9";

/// Rows in their order, by what they are, and each with its reach in milliseconds.
const REACHES: [(&str, Option<f64>); 9] = [
    ("a client leaves the engine itself", None),
    ("a client leaves a stream, until its engine is let go of", Some(1_000.0)),
    ("the same through a relay", Some(1_000.0)),
    ("a client of HTTP/2 resets a stream, until its engine is let go of", Some(1_000.0)),
    ("a client leaves while it waits, until its engine is let go of", Some(1_000.0)),
    ("a node is killed, until its stream has ended at the client", Some(3_000.0)),
    ("the same through a relay", Some(3_000.0)),
    ("an ingress with 100 watchers, from its stop to its end", Some(1_000.0)),
    ("a request whose first node hangs, with --hedge-after 200ms", Some(1_000.0)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rows = runtime.block_on(run());
    if has("--json") {
        println!("{}", report::json(&rows));
    } else {
        println!("{}", report::table(&rows));
    }
    report::verdict(&rows, has("--check"))
}

async fn run() -> Vec<Row> {
    let mut near = Leavers::new(Way::Direct).await;
    let mut far = Leavers::new(Way::Relayed).await;
    let mut took: [Vec<Duration>; 9] = Default::default();
    let mut starts: BTreeMap<bool, Vec<Duration>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let all = [
            near.leaves_the_engine().await,
            near.leaves_a_stream().await,
            far.leaves_a_stream().await,
            near.resets_a_stream().await,
            near.leaves_while_it_waits().await,
            killed(Way::Direct).await,
            killed(Way::Relayed).await,
            stopped().await,
            hedged().await,
        ];
        took.iter_mut().zip(all).for_each(|(row, took)| row.push(took));
        for with_proxy in [round % 2 == 0, round % 2 != 0] {
            starts.entry(with_proxy).or_default().push(started(with_proxy).await);
        }
    }
    let mut errors = Vec::new();
    for _ in 0..PROFILES {
        errors.push(profile::error_of_batches().await);
    }
    let error = errors.into_iter().fold(0.0, f64::max) * 100.0;
    let rows = REACHES.iter().zip(took).flat_map(|((what, reach), took)| spread(what, &took, *reach));
    let middle = |with_proxy| middle(&starts[&with_proxy]);
    let ratio = middle(true) / middle(false);
    rows.chain([
        Row::new("a node's start until it serves, p50", middle(false), "ms").samples(ROUNDS),
        Row::new("the same beside a dead proxy, times as long", ratio, "").samples(ROUNDS).reach(1.5),
        Row::new("what `otela sched profile` is off for whole answers, most", error, "%").samples(PROFILES).reach(10.0),
    ])
    .collect()
}

fn middle(all: &[Duration]) -> f64 {
    let mut all = all.to_vec();
    all.sort();
    all[all.len() / 2].as_secs_f64() * 1e3
}

/// The middle and the largest, of which the latter has a reach.
fn spread(what: &str, all: &[Duration], reach: Option<f64>) -> [Row; 2] {
    let most = all.iter().max().unwrap().as_secs_f64() * 1e3;
    let last = Row::new(&format!("{what}, most"), most, "ms").samples(all.len());
    let last = if let Some(reach) = reach { last.reach(reach) } else { last };
    [Row::new(&format!("{what}, p50"), middle(all), "ms").samples(all.len()), last]
}

/// From a node's SIGKILL to the end of a stream of its engine at the client, which is silent otherwise.
async fn killed(way: Way) -> Duration {
    let mut mesh = Mesh::by(way, &["--no-resume", "--keep-alive", "10h"]).await;
    mesh.scripted("m").await;
    let steps = [stream_of(&[EVENT]), vec![json!(["gone"])]].concat();
    let body = json!({"model": "m", "stream": true, "prompt": "x", "script": steps});
    let mut client = raw(mesh.http, &post_bytes("/v1/completions", &body)).await;
    read_until(&mut client, "data: {").await;
    let watch = Stopwatch::start();
    mesh.nodes[0].signal("-KILL");
    read_to_end(&mut client).await;
    watch.read()
}

/// From an ingress' SIGTERM to its end, with clients that watch the registry.
async fn stopped() -> Duration {
    let mut mesh = Mesh::ingress(&[]).await;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        let mut watcher = raw(mesh.http, b"GET /v1/registry/watch HTTP/1.1\r\nhost: x\r\n\r\n").await;
        read_until(&mut watcher, "event: snapshot").await;
        watchers.push(watcher);
    }
    let watch = Stopwatch::start();
    mesh.ingress.signal("-TERM");
    mesh.ingress.ends().await;
    watch.read()
}

/// A request that is given to an engine that hangs, and then to another one too.
async fn hedged() -> Duration {
    let mut mesh = Mesh::ingress(&["--hedge-after", "200ms", "--policy", "round-robin"]).await;
    let (hangs, _other) = (mesh.scripted("m").await, mesh.scripted("m").await);
    hangs.allow("hang");
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 2});
    let mut took = Vec::new();
    // One of the two is the hanging one's turn.
    for _ in 0..2 {
        let watch = Stopwatch::start();
        assert_eq!(post(mesh.http, "/v1/completions", &body).await.status, 200);
        took.push(watch.read());
    }
    took.into_iter().max().unwrap()
}

/// From a node's start to the first answer of its engine through the ingress.
async fn started(with_proxy: bool) -> Duration {
    let mesh = Mesh::ingress(&[]).await;
    let variables = [DEAD_PROXY, "http_proxy=http://127.0.0.1:9", "all_proxy=http://127.0.0.1:9"];
    let otela = env!("CARGO_BIN_EXE_otela");
    let start = ["start", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", &mesh.bootstrap];
    let engine = ["--process", otela, "engine", "m", "--port", "0"];
    let variables = if with_proxy { &variables[..] } else { &[] };
    let watch = Stopwatch::start();
    let _node = Otela::run_program("env", [variables, &[otela], &start, &engine].concat());
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 1});
    eventually("an answer", async || (post(mesh.http, "/v1/completions", &body).await.status == 200).then_some(()))
        .await;
    watch.read()
}
