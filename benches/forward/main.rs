//! What ingress and mesh add to a request: direct to the engine against through `otela ingress` and `otela start`,
//! interleaved in one run on loopback, with two plain TCP relays as a control: they show what two more processes cost
//! on the machine at hand, whatever they do.
//!
//! `cargo bench --bench forward -- [--json] [--check] [--quick]`. The engine is a plain HTTP server (this program
//! again, see `engine.rs`) that `otela start --process` wraps, so both ways end at the same process. Latencies are
//! taken with keep-alive connections; "added" is the difference of the same quantile. `--check` exits with 1 and names
//! the rows that miss their reach.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

mod engine;
mod measure;
mod mesh;
mod report;

use measure::Load;
use report::Row;
use std::{process::ExitCode, time::Duration};

/// Reach for a plain request, in milliseconds.
const ADDED_P50_MS: f64 = 0.25;
/// See [`ADDED_P50_MS`].
const ADDED_P99_MS: f64 = 2.0;

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
    let rows = runtime.block_on(run(has("--quick")));
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

async fn run(quick: bool) -> Vec<Row> {
    let mesh = mesh::Mesh::start().await;
    let ways = &mesh.ways;
    let shorter = if quick { 5 } else { 1 };
    let reach = Some((ADDED_P50_MS, ADDED_P99_MS));
    let mut rows = Vec::new();
    // Warm: connections, caches, the allocator.
    measure::closed_loop(ways, 300).await;
    let seen = measure::closed_loop(ways, 5_000 / shorter).await;
    rows.extend(Row::latency("closed loop, 1 client", &seen, reach));
    for (per_second, seconds) in [(1, 60), (16, 20), (64, 20)] {
        let load = Load { per_second, lasts: Duration::from_secs(seconds / shorter as u64) };
        let seen = measure::open_loop(ways, load).await;
        rows.extend(Row::latency(&format!("{per_second} requests/s"), &seen, reach));
    }
    let rates = measure::throughput(ways, 64, Duration::from_secs(2), if quick { 1 } else { 3 }).await;
    rows.push(Row::rate("64 clients", &rates));
    let (first, events) = measure::streams(ways, 40 / shorter).await;
    rows.extend(Row::latency("stream, first event", &first, None));
    rows.extend(Row::latency("stream, each event", &events, None));
    rows
}
