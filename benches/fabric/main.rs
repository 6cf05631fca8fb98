//! How peers reach each other: what the door costs and what a relay, and how soon and how surely peers behind NATs are reached.
//!
//! `cargo bench --bench fabric -- [--json] [--check] [--quick]`. Both is measured with peers of this
//! process over loopback, with and without, in turn. The rest runs `otela` itself in network namespaces, which needs
//! root, iproute2 and nftables; where they are missing the rows say so and count as missed. `--check` exits with 1 and
//! names the rows that miss their reach.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

mod admission;
#[path = "../../tests/mesh/nat/lab.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod lab;
mod nat;
#[path = "../../tests/mesh/process.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod process;
mod relayed;
#[path = "../../otela-node/benches/loopback/report.rs"]
mod report;
#[path = "../../tests/mesh/support.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod support;

use report::Row;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rows = runtime.block_on(run(has("--quick")));
    if has("--json") {
        println!("{}", report::json(&rows));
    } else {
        println!("{}", report::table(&rows));
    }
    report::verdict(&rows, has("--check"))
}

async fn run(quick: bool) -> Vec<Row> {
    let mut rows = admission::rows(quick).await;
    rows.extend(relayed::rows(quick).await);
    match nat::missing() {
        Some(cause) => rows.push(Row::unmeasured("peers behind NATs", &cause)),
        None => rows.extend(nat::rows(quick).await),
    }
    rows
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = ((sorted.len() as f64 * q).ceil() as usize).clamp(1, sorted.len());
    sorted[at - 1]
}
