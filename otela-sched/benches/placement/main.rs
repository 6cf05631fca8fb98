//! How long the placement solver takes, and how good what it finds is.
//!
//! `cargo bench -p otela-sched --bench placement`, with `-- --json` for programs and `-- --check` to fail if a number is not
//! reached. Each row is the best of a few turns. What is not proved to be the best has a second row: how far from it the
//! placement may be at most. The baseline is a greedy placement: its makespan over ours. Mean latencies stand beside those of the placement that OpenTela
//! published.

#[path = "../serving/report.rs"]
mod report;
mod table1;

use otela_sched::{
    calibrate::Table,
    catalog::Catalog,
    place::{
        Demand, Load, Options, Placement, Pool, Problem, Queueing, Simulation, greedy, least_latency, least_makespan,
        serve_seconds,
    },
};
use report::{Reach, Row, report};
use std::{process::ExitCode, time::Instant};
use table1::{Sizes, Within};

const TURNS: usize = 5;
/// The model's number, requests, tokens of a prompt and of an answer: Autopoiesis' Tables 10 and 11.
type Loads = [(usize, u64, f64, f64)];
const HEAVY: &Loads = &[
    (0, 64, 256.0, 2048.0),
    (1, 64, 256.0, 1536.0),
    (2, 64, 256.0, 3072.0),
    (3, 384, 512.0, 8192.0),
    (4, 256, 512.0, 6144.0),
    (5, 128, 512.0, 5120.0),
];
const LIGHT: &Loads = &[
    (0, 960, 256.0, 4096.0),
    (1, 480, 256.0, 3072.0),
    (2, 288, 256.0, 6144.0),
    (3, 64, 256.0, 2048.0),
    (4, 32, 256.0, 1536.0),
    (5, 16, 256.0, 1280.0),
];
const MODELS: [&str; 6] = ["Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen2.5-72B"];

fn problem<'a>(catalog: &'a Catalog, loads: &Loads, pools: &[(&str, u32)]) -> Problem<'a> {
    let demand = |(model, requests, prompt, answer): &(usize, u64, f64, f64)| Demand {
        model: catalog.model(MODELS[*model]).expect("in the catalog"),
        load: Load { requests: *requests, prompt: *prompt, answer: *answer },
    };
    let pool = |(name, count): &(&str, u32)| Pool {
        accelerator: catalog.accelerator(name).expect("in the catalog"),
        count: *count,
        block: None,
    };
    // As in the paper: over up to eight accelerators of any type.
    let options = Options { divides: false, within_nodes: false, ..Options::default() };
    Problem { demands: loads.iter().map(demand).collect(), pools: pools.iter().map(pool).collect(), options }
}

fn rows(what: &str, problem: &Problem<'_>, most_ms: f64, rows: &mut Vec<Row>) {
    let mut best_ms = f64::INFINITY;
    let mut found = None;
    for _ in 0..TURNS {
        let began = Instant::now();
        found = Some(least_makespan(problem).expect("there is a placement"));
        best_ms = best_ms.min(began.elapsed().as_secs_f64() * 1e3);
    }
    let found = found.expect("there are turns");
    let mut row = |of: &str, value, unit, reach| rows.push(Row { what: format!("{what}: {of}"), value, unit, reach });
    row("time", best_ms, "ms", Some(Reach::AtMost(most_ms)));
    if found.bound < found.makespan {
        row("above the bound", (found.makespan / found.bound - 1.0) * 100.0, "%", Some(Reach::AtMost(1.0)));
    }
    let by_rule = greedy(problem).expect("there is a placement");
    let by_rule = serve_seconds(problem, &by_rule).into_iter().fold(0.0, f64::max);
    row("greedy takes", by_rule / found.makespan, "times as long", None);
}

/// The least mean latency of what OpenTela's Table 1 places, by the formula.
fn latency(catalog: &Catalog, rows: &mut Vec<Row>) {
    let problem = table1::problem(catalog);
    let mut best_ms = f64::INFINITY;
    for _ in 0..TURNS {
        let began = Instant::now();
        let found = least_latency(&problem, &table1::RATES, &Queueing { seconds: 300.0 });
        let found = found.expect("types are few").expect("there is a placement");
        assert!(found.is_least, "all was judged");
        best_ms = best_ms.min(began.elapsed().as_secs_f64() * 1e3);
    }
    let what = "mean latency, OpenTela's Table 1, by the formula: time".to_owned();
    rows.push(Row { what, value: best_ms, unit: "ms", reach: Some(Reach::AtMost(2000.0)) });
}

/// The same by the simulator, beside what the paper publishes, at a share of its load. What is chosen by some requests is
/// judged by others.
fn simulated(catalog: &Catalog, load: f64, rows: &mut Vec<Row>) {
    let problem = table1::problem(catalog);
    let factors = table1::factors(&problem, &Table::builtin());
    let by = |seed| table1::simulated(&problem, factors.clone(), Simulation { seconds: 300.0, seed });
    let (chosen_by, judged_by) = (by(1), by(2));
    let rates = table1::RATES.map(|rate| rate * load);
    let mut row = |of: &str, value, unit, reach| {
        let what = format!("simulated, OpenTela's Table 1, {:.0} % of its load: {of}", load * 100.0);
        rows.push(Row { what, value, unit, reach });
    };
    let mean = |placement: &Placement| table1::mean(&problem, &rates, placement, &judged_by);
    let began = Instant::now();
    let found = table1::ours(&chosen_by, &problem, &rates, Sizes::OfPaper);
    row("time", began.elapsed().as_secs_f64() * 1e3, "ms", Some(Reach::AtMost(5000.0)));
    let any = table1::ours(&chosen_by, &problem, &rates, Sizes::Any);
    // To the digits that are printed.
    let published = (mean(&table1::published()) * 100.0).round() / 100.0;
    row("by memory, as published", mean(&table1::by_memory()), "s", None);
    row("OpenTela's, as published", published, "s", None);
    row("ours, replicas of the paper's sizes", mean(&found.fastest.placement), "s", Some(Reach::AtMost(published)));
    row("ours, replicas of any size", mean(&any.fastest.placement), "s", Some(Reach::AtMost(published)));
    if load <= 0.1 {
        let all = least_latency(&problem, &rates, &Within(&chosen_by, Sizes::OfPaper));
        let all = all.expect("types are few").expect("there is a placement");
        let above = (found.fastest.mean_seconds / all.mean_seconds - 1.0) * 100.0;
        row("above the least of all, all of them simulated", above, "%", Some(Reach::AtMost(0.0)));
    }
}

fn main() -> ExitCode {
    let catalog = Catalog::builtin();
    let mut all = Vec::new();
    let swiss = [("A100-80GB", 24), ("GH200", 32)];
    let four = [("A100-40GB", 20), ("A100-80GB", 20), ("H100", 8), ("H20", 16)];
    let five = [("A100-40GB", 64), ("A100-80GB", 64), ("H100", 64), ("H20", 64), ("H200", 64)];
    rows("24 A100 + 32 GH200, 6 models, heavy", &problem(&catalog, HEAVY, &swiss), 50.0, &mut all);
    rows("24 A100 + 32 GH200, 6 models, light", &problem(&catalog, LIGHT, &swiss), 50.0, &mut all);
    rows("64 of four types, 6 models, heavy", &problem(&catalog, HEAVY, &four), 300.0, &mut all);
    rows("64 of four types, 6 models, light", &problem(&catalog, LIGHT, &four), 300.0, &mut all);
    rows("five types x 64, 6 models", &problem(&catalog, HEAVY, &five), 5000.0, &mut all);
    let many: Vec<_> = LIGHT.iter().chain(HEAVY).chain(LIGHT).chain(&HEAVY[..2]).copied().collect();
    let larger = [("A100-80GB", 96), ("GH200", 128), ("H100", 32)];
    rows("256 of three types, 20 models", &problem(&catalog, &many, &larger), 5000.0, &mut all);
    latency(&catalog, &mut all);
    for load in [0.05, 0.1, 0.2, 0.3, 0.5, 1.0] {
        simulated(&catalog, load, &mut all);
    }
    report(&all)
}
