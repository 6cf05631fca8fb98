//! The placement with the least makespan: the time until the last model has served all its load, all of it at once
//! (Autopoiesis, appendix B). Exact, with proof.
//!
//! A deadline can be kept if each model can have accelerators that serve its load within it, and that is decided exactly
//! ([`fit`]). The makespan is the latency of some batch on some replica; so when the greatest latency below a deadline that
//! can be kept cannot be kept itself, that deadline is the least.
//!
//! Where there are too many types and accelerators to go through all their combinations, accelerators are given out in
//! larger units. Then the result is the best of those placements, and a bound from prices of accelerators says how far from
//! the least it may be at most ([`lower_bound`]).

use super::{
    bound::lower_bound,
    choice::{Choice, real},
    combine::{self, Capacities, fit},
    knapsack,
    problem::{Placement, Problem, Replicas},
    serve::{Waves, serve_model},
};

/// Grids with more cells than this take too long, each being gone through for many deadlines.
const CELLS_MAX: usize = 1 << 14;
/// Deadlines are halved until they are this close, then stepped down.
const CLOSE: f64 = 1e-6;

/// A placement, and how good it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// What is placed.
    pub placement: Placement,
    /// Seconds until the last model has served its load.
    pub makespan: f64,
    /// No placement takes less than this many seconds; the makespan itself, if the placement is proved to be the best.
    pub bound: f64,
    /// Seconds that each model takes.
    pub seconds: Vec<f64>,
}

/// No placement serves all loads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Infeasible {
    /// One model cannot be served even with all accelerators.
    #[error("{model}: its load cannot be served at once, even with all accelerators: {why}")]
    Model {
        /// Its name.
        model: String,
        /// Why not.
        why: &'static str,
    },
    /// Each alone could be.
    #[error(
        "there are not enough accelerators for all models at once: add some, leave out a model, or give loads in parts"
    )]
    Together,
}

/// The placement with the least makespan. Accelerators that it has no need of go to whom they help most.
///
/// # Errors
/// [`Infeasible`].
pub fn least_makespan(problem: &Problem<'_>) -> Result<Solution, Infeasible> {
    let mut found = least_within(problem, None)?;
    super::spread::spread(problem, &mut found.placement);
    let models = problem.demands.iter().zip(&found.placement);
    found.seconds = models.map(|(demand, replicas)| serve_model(problem, demand, replicas, Waves::One)).collect();
    found.makespan = found.seconds.iter().copied().fold(0.0, f64::max);
    found.bound = found.bound.min(found.makespan);
    Ok(found)
}

/// Of one pool a model may have no more than this.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) model: usize,
    pub(super) pool: usize,
    pub(super) most: u32,
}

/// The least makespan within a limit, without what is left over.
pub(super) fn least_within(problem: &Problem<'_>, limit: Option<Limit>) -> Result<Solution, Infeasible> {
    let choices: Vec<Vec<Choice>> = problem.demands.iter().map(|demand| Choice::all(problem, demand)).collect();
    let units = units(problem);
    let search = Search { problem, choices: &choices, units, limit };
    search.alone()?;
    let mut high = choices.iter().flatten().map(Choice::longest).fold(0.0, f64::max);
    let mut best = search.at(high).ok_or(Infeasible::Together)?;
    let mut low = 0.0;
    high = search.makespan(&best).min(high);
    while high - low > CLOSE * high {
        let middle = f64::midpoint(low, high);
        match search.at(middle) {
            Some(placement) => {
                high = search.makespan(&placement).min(middle);
                best = placement;
            }
            None => low = middle,
        }
    }
    // Step by step from here on: the greatest latency below decides.
    while let Some(next) = search.latency_below(high).filter(|next| *next > low) {
        match search.at(next) {
            Some(placement) => {
                high = search.makespan(&placement).min(next);
                best = placement;
            }
            None => break,
        }
    }
    let is_exact = search.units.iter().all(|unit| *unit == 1);
    let bound = if is_exact { high } else { lower_bound(problem, &choices, high) };
    let seconds = search.seconds(&best);
    let makespan = seconds.iter().copied().fold(0.0, f64::max);
    Ok(Solution { placement: best, makespan, bound: bound.min(makespan), seconds })
}

/// In which units accelerators of each pool are given out: one, unless there are too many combinations.
fn units(problem: &Problem<'_>) -> Vec<u32> {
    let mut units = vec![1; problem.pools.len()];
    let counts = |units: &[u32]| -> Vec<usize> {
        problem.pools.iter().zip(units).map(|(pool, unit)| (pool.count / unit) as usize).collect()
    };
    while combine::cells(&counts(&units)) > CELLS_MAX {
        // The pool with most units gets larger ones.
        let Some(most) = (0..units.len()).max_by_key(|pool| problem.pools[*pool].count / units[*pool]) else { break };
        units[most] *= 2;
    }
    units
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    choices: &'a [Vec<Choice>],
    units: Vec<u32>,
    limit: Option<Limit>,
}

impl Search<'_> {
    /// Whether each model could be served if it were alone.
    fn alone(&self) -> Result<(), Infeasible> {
        for (demand, choices) in self.problem.demands.iter().zip(self.choices) {
            let no = |why| Err(Infeasible::Model { model: demand.model.name.clone(), why });
            if choices.is_empty() {
                return no("its weights fit nowhere, or a request's keys and values do not");
            }
            let most: f64 = (0..self.problem.pools.len())
                .filter_map(|pool| self.capacity(choices, pool, f64::INFINITY).last().copied())
                .sum();
            if most < real(demand.load.requests) {
                return no("keys and values do not fit at once");
            }
        }
        Ok(())
    }

    fn capacity(&self, choices: &[Choice], pool: usize, deadline: f64) -> Vec<f64> {
        let all = knapsack::capacities(&knapsack::forms(choices, pool, deadline), self.problem.pools[pool].count);
        all.into_iter().step_by(self.units[pool] as usize).collect()
    }

    /// A placement that keeps a deadline, if there is one.
    fn at(&self, deadline: f64) -> Option<Placement> {
        let pools = 0..self.problem.pools.len();
        let of = |(model, choices): (usize, &Vec<Choice>)| {
            let of_pool = |pool| {
                let mut all = self.capacity(choices, pool, deadline);
                let most = (self.most(model, pool) / self.units[pool]) as usize;
                (most + 1..all.len()).for_each(|beyond| all[beyond] = all[most]);
                all
            };
            pools.clone().map(of_pool).collect()
        };
        let capacities: Capacities = self.choices.iter().enumerate().map(of).collect();
        let needs: Vec<f64> = self.problem.demands.iter().map(|demand| real(demand.load.requests)).collect();
        let counts: Vec<usize> =
            pools.clone().map(|pool| (self.problem.pools[pool].count / self.units[pool]) as usize).collect();
        let given = fit(&capacities, &needs, &counts)?;
        let replicas = given.iter().zip(self.choices).enumerate().map(|(model, (given, choices))| {
            let of_pool = |(pool, units): (usize, &usize)| {
                let k = u32::try_from(*units).unwrap_or(u32::MAX) * self.units[pool];
                let k = k.min(self.most(model, pool));
                let forms = knapsack::replicas(&knapsack::forms(choices, pool, deadline), k);
                forms.into_iter().map(move |(tp, count)| Replicas { pool, tp, count })
            };
            given.iter().enumerate().flat_map(of_pool).collect()
        });
        Some(replicas.collect())
    }

    /// How many accelerators of a pool a model may have.
    fn most(&self, model: usize, pool: usize) -> u32 {
        match self.limit {
            Some(limit) if (limit.model, limit.pool) == (model, pool) => limit.most,
            _ => self.problem.pools[pool].count,
        }
    }

    fn seconds(&self, placement: &Placement) -> Vec<f64> {
        let models = self.problem.demands.iter().zip(placement);
        models.map(|(demand, replicas)| serve_model(self.problem, demand, replicas, Waves::One)).collect()
    }

    fn makespan(&self, placement: &Placement) -> f64 {
        self.seconds(placement).into_iter().fold(0.0, f64::max)
    }

    /// The greatest latency of any batch on any replica that is below a deadline.
    fn latency_below(&self, deadline: f64) -> Option<f64> {
        let below = |choice: &Choice| {
            let mut batch = choice.batch_within(deadline);
            while batch > 0 && choice.seconds(batch) >= deadline {
                batch -= 1;
            }
            (batch > 0).then(|| choice.seconds(batch))
        };
        self.choices.iter().flatten().filter_map(below).max_by(f64::total_cmp)
    }
}
