//! OpenTela's Table 1: its problem, what it published, and what is found here, judged by the same simulation.

use otela_sched::{
    calibrate::Table,
    catalog::Catalog,
    place::{
        Curves, Demand, Evaluate, Form, Judged, Load, Options, Placement, Pool, Problem, Replicas, Requests, Simulated,
        Simulation, least_judged, mean_seconds,
    },
    sim::{Factors, serving::Length},
};

/// Requests of each model in a second.
pub(crate) const RATES: [f64; 3] = [110.0, 185.5, 221.0];
/// Over how many accelerators the paper has each model's replicas.
const SIZES: [u32; 3] = [1, 2, 4];
/// Mean and deviation of prompts and of answers, in tokens: the published experiment's.
const LENGTHS: [[(f64, f64); 2]; 3] =
    [[(599.0, 822.0), (74.0, 211.0)], [(1169.0, 1276.0), (532.0, 435.0)], [(727.0, 777.0), (64.0, 190.0)]];

/// The problem: three models, 24 A100 and 32 GH200.
pub(crate) fn problem(catalog: &Catalog) -> Problem<'_> {
    let demand = |(name, [(prompt, _), (answer, _)]): (&str, [(f64, f64); 2])| Demand {
        model: catalog.model(name).expect("in the catalog"),
        load: Load { requests: 0, prompt, answer },
    };
    let pool = |(name, count): (&str, u32)| Pool {
        accelerator: catalog.accelerator(name).expect("in the catalog"),
        count,
        block: None,
    };
    let names = ["Llama-2-13b", "CodeLlama-34b", "Llama-2-70b"];
    Problem {
        demands: names.into_iter().zip(LENGTHS).map(demand).collect(),
        pools: [("A100-80GB", 24), ("GH200", 32)].map(pool).to_vec(),
        options: Options { tps: SIZES.to_vec(), ..Options::default() },
    }
}

/// The simulation: Poisson arrivals, lengths from normal distributions that are cut below one token.
pub(crate) fn simulated<'p, 'a>(
    problem: &'p Problem<'a>,
    factors: Vec<Factors>,
    simulation: Simulation,
) -> Simulated<'p, 'a> {
    let normal = |(mean, deviation): (f64, f64)| Length::Normal { mean, deviation };
    let requests =
        LENGTHS.map(|[prompt, answer]| Requests { prompt: normal(prompt), answer: normal(answer), burstiness: 1.0 });
    Simulated::new(problem, requests.to_vec(), factors, simulation).expect("means and deviations can be")
}

/// The factors of vLLM on both types.
pub(crate) fn factors(problem: &Problem<'_>, table: &Table) -> Vec<Factors> {
    problem.pools.iter().map(|pool| table.factors(pool.accelerator, "vLLM", "").0).collect()
}

/// Accelerators of both types for each model as replicas of the paper's sizes.
fn placement(accelerators: [[u32; 2]; 3]) -> Placement {
    let of = |([a100, gh200], tp): ([u32; 2], u32)| {
        let both = [(0, a100), (1, gh200)].into_iter().filter(|(_, count)| *count > 0);
        both.map(|(pool, count)| Replicas { pool, tp, count: count / tp }).collect()
    };
    accelerators.into_iter().zip(SIZES).map(of).collect()
}

/// What OpenTela published as its own.
pub(crate) fn published() -> Placement {
    placement([[6, 0], [10, 16], [8, 16]])
}

/// What it compares that with: accelerators by memory and rate.
pub(crate) fn by_memory() -> Placement {
    placement([[4, 0], [16, 0], [4, 32]])
}

/// Mean seconds over all requests.
pub(crate) fn mean(problem: &Problem<'_>, rates: &[f64], placement: &Placement, judge: &dyn Evaluate) -> f64 {
    let seconds = mean_seconds(problem, rates, placement, judge);
    seconds.iter().zip(rates).map(|(seconds, rate)| seconds * rate).sum::<f64>() / rates.iter().sum::<f64>()
}

/// Which replicas there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// As the paper has them: 13B over one accelerator, 34B over two, 70B over four.
    OfPaper,
    /// Over one, two or four for each model and type.
    Any,
}

/// The best that is found.
pub(crate) fn ours(simulated: &Simulated<'_, '_>, problem: &Problem<'_>, rates: &[f64], sizes: Sizes) -> Judged {
    let rank = Within(&Curves::new(simulated), sizes);
    let found = least_judged(problem, rates, (&rank, simulated), 300).expect("types are few");
    found.expect("there is a placement")
}

/// What has no use for replicas of other sizes.
pub(crate) struct Within<'c>(pub(crate) &'c dyn Evaluate, pub(crate) Sizes);

impl Evaluate for Within<'_> {
    fn seconds(&self, model: usize, rate: f64, replicas: &[(Form, u32)]) -> f64 {
        let fits = self.1 == Sizes::Any || replicas.iter().all(|(form, _)| form.tp() == SIZES[model]);
        if fits { self.0.seconds(model, rate, replicas) } else { f64::INFINITY }
    }
}
