//! How fast the simulator serves: requests of virtual traffic for each second of one core.
//!
//! `cargo bench -p otela-sched --bench serving`, with `-- --json` for programs and `-- --check` to fail if a number is not
//! reached. Rows take turns, and each counts its best turn: what else the machine does only makes one slower. The first row
//! is the baseline, the same traffic with answers of one token.

mod report;

use otela_sched::{
    calibrate::Table as Factors,
    catalog::Catalog,
    sim::{
        StepCosts, Variant,
        serving::{
            Arrival, Arrivals, Batching, Dispatch, Length, Limits, Member, Random, Rules, TwoChoices, Workload, serve,
        },
    },
};
use report::{Reach, Row, report};
use std::{process::ExitCode, time::Instant};

const TURNS: usize = 5;
/// Requests of a second that are to be reached.
const REACH: f64 = 1e6;

struct Traffic {
    what: &'static str,
    reach: Option<f64>,
    members: Vec<Member>,
    arrivals: Vec<Arrival>,
    dispatch: fn() -> Box<dyn Dispatch>,
    best: f64,
}

fn member(batching: Batching) -> Member {
    let catalog = Catalog::builtin();
    let model = catalog.model("Llama-3.1-8B").expect("in the catalog");
    let accelerator = catalog.accelerator("H100").expect("in the catalog");
    let variant = Variant::new(model, accelerator, 1).expect("tp is not 0");
    let (factors, _) = Factors::builtin().factors(accelerator, "vLLM", "");
    let limits = Limits { batching, ..Limits::of(&variant).expect("it fits") };
    Member::new(StepCosts::new(&variant, factors), limits)
}

/// Ten requests a second for each replica: about half of what one can do.
fn arrivals(replicas: u32, answer: Length) -> Vec<Arrival> {
    let workload = Workload {
        arrivals: Arrivals { rates: vec![(0.0, 10.0 * f64::from(replicas))], burstiness: 1.0 },
        prompt: Length::LogNormal { mean: 700.0, deviation: 600.0 },
        answer,
        shared: None,
    };
    workload.requests(400_000.0 / (10.0 * f64::from(replicas)), 1).expect("a workload").collect()
}

fn rows() -> Vec<Traffic> {
    let answer = || Length::LogNormal { mean: 200.0, deviation: 180.0 };
    let row = |what, reach, replicas: u32, batching, answer, dispatch| Traffic {
        what,
        reach,
        members: vec![member(batching); replicas as usize],
        arrivals: arrivals(replicas, answer),
        dispatch,
        best: 0.0,
    };
    let random: fn() -> Box<dyn Dispatch> = || Box::new(Random::new(1));
    let two: fn() -> Box<dyn Dispatch> = || Box::new(TwoChoices::new(1));
    vec![
        row("1 replica, answers of one token", None, 1, Batching::Chunked, Length::Fixed(1), random),
        row("1 replica, chunked", Some(REACH), 1, Batching::Chunked, answer(), random),
        row("1 replica, whole prompts", Some(REACH), 1, Batching::WholePrompts, answer(), random),
        row("1 replica, answers ten times as long", None, 1, Batching::Chunked, Length::Fixed(2000), random),
        row("16 replicas, random", Some(REACH), 16, Batching::Chunked, answer(), random),
        row("16 replicas, the less busy of two", None, 16, Batching::Chunked, answer(), two),
    ]
}

fn main() -> ExitCode {
    let mut rows = rows();
    for _ in 0..TURNS {
        for row in &mut rows {
            let began = Instant::now();
            let outcome =
                serve(&row.members, row.arrivals.iter().copied(), (row.dispatch)().as_mut(), Rules::default());
            let seconds = began.elapsed().as_secs_f64();
            assert_eq!(outcome.served.len(), row.arrivals.len(), "{}: everybody is served", row.what);
            row.best = row.best.max(row.arrivals.len() as f64 / seconds);
        }
    }
    let rows = rows.iter().map(|row| Row {
        what: row.what.to_owned(),
        value: row.best,
        unit: "requests/s",
        reach: row.reach.map(Reach::AtLeast),
    });
    report(&rows.collect::<Vec<_>>())
}
