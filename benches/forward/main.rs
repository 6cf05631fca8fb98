//! What ingress and mesh add to a request: direct to the engine against through `otela ingress` and `otela start`,
//! interleaved in one run on loopback, with two plain TCP relays as a control: they show what two more processes cost
//! on the machine at hand, whatever they do.
//!
//! `cargo bench --bench forward -- [--only PART] [--json] [--check] [--quick]`. The engine is a plain HTTP server (this program
//! again, see `engine.rs`) that `otela start --process` wraps, so both ways end at the same process. Latencies are
//! taken with keep-alive connections; "added" is the difference of the same quantile. `--check` exits with 1 and names
//! the rows that miss their reach.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

mod engine;
mod hop;
mod measure;
mod memory;
mod mesh;
mod report;
mod select;

use measure::{Load, Ways};
use report::Row;
use std::{net::SocketAddr, process::ExitCode, time::Duration};

/// Reach of what is added to a plain request, median and 99th percentile, in milliseconds.
const ADDED_MS: [Option<f64>; 2] = [Some(0.2), Some(1.0)];
/// Reach of what is added to an event of a stream, in milliseconds.
const EVENT_ADDED_MS: [Option<f64>; 2] = [Some(0.1), None];
/// Reach of the requests per second that get through, in per cent of the direct ones.
const THROUGHPUT_SHARE: f64 = 35.0;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match arguments.first().map(String::as_str) {
        Some("engine") => {
            runtime.block_on(engine::serve());
            return ExitCode::SUCCESS;
        }
        Some("relay") => {
            runtime.block_on(engine::relay(arguments[1].parse().unwrap()));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let chosen = arguments.iter().skip_while(|argument| *argument != "--only").nth(1);
    let parts: Vec<_> = PARTS.into_iter().filter(|part| chosen.is_none_or(|chosen| chosen == part)).collect();
    let rows = runtime.block_on(run(&parts, has("--quick")));
    if has("--json") {
        println!("{}", report::json(&rows));
    } else {
        println!("{}", report::table(&rows));
    }
    let missed: Vec<_> = rows.iter().filter(|row| !row.is_reached()).collect();
    for row in &missed {
        eprintln!("missed: {}", row.name());
    }
    if has("--check") && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The parts of the benchmark; `--only` chooses one of them.
const PARTS: [&str; 6] = ["latency", "throughput", "streams", "headers", "memory", "choice"];

async fn run(parts: &[&str], quick: bool) -> Vec<Row> {
    let has = |part: &str| parts.contains(&part);
    let mut rows = Vec::new();
    if parts.iter().any(|part| PARTS[..4].contains(part)) {
        let mesh = mesh::Mesh::start(1).await;
        // Warm: connections, caches, the allocator.
        measure::closed_loop(&mesh.ways, 300).await;
        for part in PARTS[..3].iter().filter(|part| has(part)) {
            rows.extend(ways(part, &mesh.ways, if quick { 5 } else { 1 }).await);
        }
        if has("headers") {
            rows.extend(hop::rows(&mesh).await);
        }
    }
    if has("memory") {
        rows.extend(memory::rows().await);
    }
    if has("choice") {
        rows.extend(select::rows(quick));
    }
    rows
}

/// What is measured each way in turn.
async fn ways(part: &str, ways: &Ways<SocketAddr>, shorter: usize) -> Vec<Row> {
    match part {
        "latency" => {
            let seen = measure::closed_loop(ways, 5_000 / shorter).await;
            let mut rows = Row::latency("closed loop, 1 client", &seen, ADDED_MS);
            for (per_second, seconds) in [(1, 60), (16, 20), (64, 20)] {
                let load = Load { per_second, lasts: Duration::from_secs(seconds / shorter as u64) };
                let seen = measure::open_loop(ways, load).await;
                rows.extend(Row::latency(&format!("{per_second} requests/s"), &seen, ADDED_MS));
            }
            rows
        }
        "throughput" => {
            let rounds = if shorter > 1 { 1 } else { 3 };
            let rates = measure::throughput(ways, 64, Duration::from_secs(2), rounds).await;
            vec![Row::rate("64 clients", &rates, THROUGHPUT_SHARE)]
        }
        _ => {
            let (first, events) = measure::streams(ways, 40 / shorter).await;
            let mut rows = Row::latency("stream, first event", &first, [None, None]);
            rows.extend(Row::latency("stream, each event", &events, EVENT_ADDED_MS));
            rows
        }
    }
}
