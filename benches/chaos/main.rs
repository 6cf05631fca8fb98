//! What clients notice while nodes die: six nodes with simulated engines, requests all the time, streaming and not, and
//! every few seconds a node that is killed, or one that comes.
//!
//! `cargo bench --bench chaos -- [--minutes N] [--rate N] [--json] [--check]`. Every answer is compared with what an
//! engine outside of the mesh says to the same request. `--check` exits with 1 and names the rows that miss their reach.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

mod clients;
mod fleet;
#[path = "../../tests/mesh/process.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod process;
#[path = "../../otela-node/benches/loopback/report.rs"]
#[allow(dead_code, reason = "others measure more")]
mod report;
#[path = "../../tests/mesh/support.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod support;

use clients::{Clients, Seen};
use fleet::Fleet;
use report::Row;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// Requests a second.
const RATE: f64 = 50.0;
/// What an ingress may grow by, against a third of the way: it has seen everything by then.
const GROWTH_MAX_PERCENT: f64 = 115.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1)?.parse::<f64>().ok()
    };
    let lasts = Duration::from_secs_f64(60.0 * value("--minutes").unwrap_or(10.0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rows = runtime.block_on(run(lasts, value("--rate").unwrap_or(RATE)));
    if has("--json") {
        println!("{}", report::json(&rows));
    } else {
        println!("{}", report::table(&rows));
    }
    report::verdict(&rows, has("--check"))
}

async fn run(lasts: Duration, rate: f64) -> Vec<Row> {
    let mut fleet = Fleet::start().await;
    let clients = Clients::start(fleet.http(), fleet.reference(), rate).await;
    let began = Instant::now();
    let mut early = None;
    while began.elapsed() < lasts {
        fleet.strike().await;
        if early.is_none() && began.elapsed() > lasts / 3 {
            early = Some(fleet.memory_mib());
        }
    }
    let seen = clients.stop().await;
    let left = fleet.settled().await;
    rows(&seen, &fleet, left, early.unwrap_or_else(|| fleet.memory_mib())).await
}

async fn rows(seen: &Seen, fleet: &Fleet, left: f64, early: f64) -> Vec<Row> {
    for failure in seen.failures.iter().take(5) {
        eprintln!("{failure}");
    }
    let (kills, starts) = fleet.strikes();
    let metric = async |name: &str| fleet.metric(name).await;
    let growth = 100.0 * fleet.memory_mib() / early;
    let continued = metric("otela_ingress_streams_broken_total{reason=\"continued\"}").await;
    vec![
        Row::new("requests, streaming and not", seen.requests as f64, ""),
        Row::new("nodes killed", f64::from(kills), ""),
        Row::new("nodes started", f64::from(starts), ""),
        Row::new("streams continued", continued, ""),
        Row::new("attempts on a further node", metric("otela_ingress_retries_total").await, ""),
        Row::new("errors at clients", seen.failures.len() as f64, "").reach(0.0),
        Row::new("answers that differ from the engine's", seen.different as f64, "").reach(0.0),
        Row::new("requests in flight afterwards", left, "").reach(0.0),
        Row::new("memory of the ingress at the end, of that at a third", growth, "%").reach(GROWTH_MAX_PERCENT),
        Row::new("memory of the ingress", fleet.memory_mib(), "MiB"),
    ]
}
