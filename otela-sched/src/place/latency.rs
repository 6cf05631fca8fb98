//! The mean time of a request, and the placement that has the least of it (OpenTela, Eq. 1).
//!
//! Each model's requests go to its own replicas, so the mean over all is a sum over models, and what is to be chosen for
//! each is what it takes of each pool. As in the paper, a model's replicas in one pool are all over as many accelerators.

use super::{
    candidates::Candidates,
    choice::{Choice, real},
    cover::TooManyTypes,
    problem::{Placement, Problem, Replicas},
};

/// Requests that an engine has at once, unless the options or its memory say less.
const BATCH_USUAL: u64 = 256;

/// A form of a model's replicas, as what judges placements needs it.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    choice: Choice,
}

/// What a placement is to be judged by, model by model: by a formula, or by simulating it.
pub trait Evaluate {
    /// The mean seconds of a model's requests, of which `rate` come in a second, with so many replicas of these forms;
    /// infinite if they cannot be served. `model` is its place in the problem.
    fn seconds(&self, model: usize, rate: f64, replicas: &[(Form, u32)]) -> f64;
}

impl Form {
    /// All forms that replicas of a model may have.
    pub fn all(problem: &Problem<'_>, model: usize) -> Vec<Self> {
        Choice::all(problem, &problem.demands[model]).into_iter().map(|choice| Self { choice }).collect()
    }

    /// That of these replicas; none if it cannot be.
    pub(super) fn of(problem: &Problem<'_>, model: usize, replicas: Replicas) -> Option<Self> {
        let (pool, demand) = (problem.pools.get(replicas.pool)?, &problem.demands[model]);
        let choice = Choice::new(replicas.pool, pool, replicas.tp, demand, &problem.options)?;
        Some(Self { choice })
    }

    /// Of which pool, by its place in the problem.
    pub fn pool(&self) -> usize {
        self.choice.pool
    }

    /// Accelerators of a replica.
    pub fn tp(&self) -> u32 {
        self.choice.tp
    }

    /// Requests that a replica has at once, at most.
    pub fn batch_max(&self) -> f64 {
        real(self.choice.batch_max().min(BATCH_USUAL))
    }

    /// A batch from its prompts to its last tokens, in seconds.
    pub fn batch_seconds(&self, batch: f64) -> f64 {
        self.choice.batch_seconds(batch)
    }

    /// Requests that a replica does in a second, at most.
    pub fn rate_max(&self) -> f64 {
        self.batch_max() / self.batch_seconds(self.batch_max())
    }
}

/// A formula: replicas share the load by what they can do, and each works with the batch at which as many leave as come.
/// Beside that there is the wait for a place in a batch: that of a queue with as many servers as places (Sakasegawa), and
/// no more than grows in the time of the load; above capacity, half of what is left undone at its end.
#[derive(Debug, Clone, Copy)]
pub struct Queueing {
    /// For how long load comes, in seconds.
    pub seconds: f64,
}

impl Evaluate for Queueing {
    fn seconds(&self, _: usize, rate: f64, replicas: &[(Form, u32)]) -> f64 {
        let of_all =
            |value: fn(&Form) -> f64| replicas.iter().map(|(form, count)| value(form) * f64::from(*count)).sum::<f64>();
        let (capacity, places) = (of_all(Form::rate_max), of_all(Form::batch_max));
        if rate <= 0.0 {
            return 0.0;
        }
        if capacity <= 0.0 {
            return f64::INFINITY;
        }
        let load = rate / capacity;
        let of = |(form, count): &(Form, u32)| {
            let share = form.rate_max() * f64::from(*count) / capacity;
            share * batch_at(form, form.rate_max() * load.min(1.0))
        };
        replicas.iter().map(of).sum::<f64>() + self.wait(load, capacity, places)
    }
}

impl Queueing {
    fn wait(&self, load: f64, capacity: f64, places: f64) -> f64 {
        // At the limit, what waits after a time is the mean of the absolute value of a random walk.
        let grown = 2.0 / 3.0 * (4.0 * self.seconds / (std::f64::consts::PI * capacity)).sqrt();
        if load >= 1.0 {
            return grown + self.seconds / 2.0 * (load - 1.0);
        }
        let steady = load.powf((2.0 * (places + 1.0)).sqrt() - 1.0) / (1.0 - load) / capacity;
        steady.min(grown)
    }
}

/// The time of the batch at which a replica does `rate` requests a second.
fn batch_at(form: &Form, rate: f64) -> f64 {
    let (mut low, mut high) = (1.0, form.batch_max());
    for _ in 0..24 {
        let middle = f64::midpoint(low, high);
        if middle / form.batch_seconds(middle) < rate { low = middle } else { high = middle }
    }
    form.batch_seconds(high)
}

/// A placement and the mean time of requests with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Fastest {
    /// What is placed.
    pub placement: Placement,
    /// The mean time of a request, in seconds.
    pub mean_seconds: f64,
    /// That of each model.
    pub seconds: Vec<f64>,
    /// Whether all combinations were judged. Where there are too many, numbers of replicas were taken from a grid.
    pub is_least: bool,
}

/// The placement with the least mean time, as judged by `evaluate`, with one size of replicas for each model and pool; none
/// if a model to which requests come cannot be served. `rates` are requests of each model in a second.
///
/// # Errors
/// [`TooManyTypes`].
pub fn least_latency(
    problem: &Problem<'_>,
    rates: &[f64],
    evaluate: &dyn Evaluate,
) -> Result<Option<Fastest>, TooManyTypes> {
    let candidates = Candidates::new(problem, rates, evaluate)?;
    let combined = candidates.combine();
    Ok(combined.best.map(|(_, chosen)| candidates.fastest(rates, &chosen, combined.complete)))
}

/// The mean seconds of each model's requests with a placement, as judged by `evaluate`; infinite where it has replicas that
/// cannot be.
pub fn mean_seconds(problem: &Problem<'_>, rates: &[f64], placement: &Placement, evaluate: &dyn Evaluate) -> Vec<f64> {
    let of = |(model, replicas): (usize, &Vec<Replicas>)| {
        let there = replicas.iter().filter(|replicas| replicas.count > 0);
        let forms = there.map(|replicas| Some((Form::of(problem, model, *replicas)?, replicas.count)));
        let forms: Option<Vec<_>> = forms.collect();
        forms.map_or(f64::INFINITY, |forms| evaluate.seconds(model, rates[model], &forms))
    };
    placement.iter().enumerate().map(of).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        catalog::Catalog,
        place::{Demand, Load, Options, Pool, taken},
    };

    /// Two models with answers of 200 tokens.
    pub(in crate::place) fn problem<'a>(catalog: &'a Catalog, pools: &[(&str, u32)], tps: &[u32]) -> Problem<'a> {
        let load = Load { requests: 0, prompt: 500.0, answer: 200.0 };
        let demand = |model| Demand { model: catalog.model(model).unwrap(), load };
        let pool = |(name, count): &(&str, u32)| Pool {
            accelerator: catalog.accelerator(name).unwrap(),
            count: *count,
            block: None,
        };
        Problem {
            demands: ["Llama-3.1-8B", "Qwen2.5-14B"].map(demand).to_vec(),
            pools: pools.iter().map(pool).collect(),
            options: Options { tps: tps.to_vec(), ..Options::default() },
        }
    }

    /// Replicas, and what they take of both pools.
    type Tried = (Vec<(Form, u32)>, [u32; 2]);

    #[test]
    fn no_placement_has_a_smaller_mean() {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, &[("A100-80GB", 3), ("H100", 2)], &[1, 2]);
        let queueing = Queueing { seconds: 300.0 };
        for rates in [[9.0, 4.0], [30.0, 1.0], [200.0, 100.0], [0.5, 0.5]] {
            let found = least_latency(&problem, &rates, &queueing).unwrap().unwrap();
            assert!(found.is_least && taken(&found.placement, 2) <= vec![3, 2]);
            // By trying: for each model and pool a size and a number.
            let options: Vec<Vec<Tried>> = (0..2)
                .map(|model| {
                    let forms =
                        Choice::all(&problem, &problem.demands[model]).into_iter().map(|choice| Form { choice });
                    let forms: Vec<Form> = forms.collect();
                    let of = |pool: usize| -> Vec<Option<(Form, u32)>> {
                        let here = forms.iter().filter(|form| form.pool() == pool);
                        std::iter::once(None).chain(here.flat_map(|f| (1..4).map(|n| Some((*f, n))))).collect()
                    };
                    let both = of(0).into_iter().flat_map(|a| of(1).into_iter().map(move |b| [a, b]));
                    let used = |one: Option<(Form, u32)>| one.map_or(0, |(form, count)| form.tp() * count);
                    both.map(|pair| (pair.into_iter().flatten().collect(), pair.map(used))).collect()
                })
                .collect();
            let mut least = f64::INFINITY;
            for (one, [a, b]) in &options[0] {
                for (other, [c, d]) in &options[1] {
                    if a + c <= 3 && b + d <= 2 {
                        let sum = rates[0] * queueing.seconds(0, rates[0], one)
                            + rates[1] * queueing.seconds(1, rates[1], other);
                        least = least.min(sum / (rates[0] + rates[1]));
                    }
                }
            }
            assert!((found.mean_seconds - least).abs() <= 1e-9 * least, "{found:?} {least}");
        }
    }

    #[test]
    fn waiting_grows_with_the_load_and_nobody_waits_without_any() {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, &[("H100", 1)], &[1]);
        let form = Form { choice: Choice::all(&problem, &problem.demands[0])[0] };
        let mean = |rate: f64| Queueing { seconds: 300.0 }.seconds(0, rate, &[(form, 1)]);
        let alone = form.batch_seconds(1.0);
        assert!((mean(1e-6) / alone - 1.0).abs() < 1e-3, "{} {alone}", mean(1e-6));
        let mut last = 0.0;
        for percent in 1..300 {
            let now = mean(form.rate_max() * f64::from(percent) / 100.0);
            assert!(now >= last && now.is_finite(), "{percent} %: {now} after {last}");
            last = now;
        }
        // Twice as much as it can do: what comes last waits as long again as requests came.
        assert!(mean(2.0 * form.rate_max()) > 150.0 && mean(2.0 * form.rate_max()) < 200.0);
    }

    #[test]
    fn a_model_without_a_place_is_told_and_large_problems_take_a_grid() {
        let catalog = Catalog::builtin();
        let queueing = Queueing { seconds: 300.0 };
        let small = problem(&catalog, &[("H100", 1)], &[1]);
        assert_eq!(least_latency(&small, &[1.0, 1.0], &queueing).unwrap(), None);
        let names = ["A100-40GB", "A100-80GB", "H100", "H200"];
        let large = problem(&catalog, &names.map(|name| (name, 12)), &[1, 2, 4, 8]);
        let found = least_latency(&large, &[200.0, 100.0], &queueing).unwrap().unwrap();
        assert!(!found.is_least && found.mean_seconds.is_finite());
    }
}
