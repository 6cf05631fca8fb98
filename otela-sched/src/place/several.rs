//! One placement for several workloads: the least sum of their makespans, each with its weight.
//!
//! Deadlines that can be kept together are a region that has, with a point, everything above it. It is approached from below
//! by corners (the polyblock algorithm): from the corner with the least sum, all deadlines are put off by the same share
//! until they can be kept. What is better than that point must be later than it for one workload at least, which makes one
//! new corner for each. The least sum of all corners is what no placement is better than.

use super::{
    choice::{Choice, real},
    cover::{Counts, Cover, CoverWay, TooManyTypes, Verdict},
    makespan::{Infeasible, least_makespan},
    problem::{Placement, Problem, Replicas},
    serve::{Waves, serve_model},
};

/// A placement for several workloads. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Several {
    /// What is placed.
    pub placement: Placement,
    /// The makespan of each workload.
    pub makespans: Vec<f64>,
    /// What each could have alone, at best.
    pub alone: Vec<f64>,
    /// The sum of the makespans with their weights.
    pub sum: f64,
    /// No placement has a smaller sum.
    pub bound: f64,
}

/// Why nothing was placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotPlaced {
    /// There is no placement.
    #[error(transparent)]
    Infeasible(#[from] Infeasible),
    /// There is one for each workload, and none for all.
    #[error("no placement serves all workloads: each alone can be served")]
    NoneForAll,
    /// None was found.
    #[error("no placement was found with the work that was allowed: allow more")]
    NotFound,
    /// Too large.
    #[error(transparent)]
    TooManyTypes(#[from] TooManyTypes),
}

/// How near to the best a placement must be, and how much may be done for that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    /// The share by which it may be off.
    pub tolerance_ratio: f64,
    /// Corners that are looked at.
    pub corners_max: usize,
    /// Work for one question; a hundred million is about a second.
    pub work: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { tolerance_ratio: 0.01, corners_max: 200, work: super::USUAL_WORK }
    }
}

/// Workloads with the forms of replicas that all of them can have.
pub(super) struct Workloads<'p, 'a> {
    problems: &'p [Problem<'a>],
    /// By model and form, one choice for each workload.
    choices: Vec<Vec<Vec<Choice>>>,
}

impl<'p, 'a> Workloads<'p, 'a> {
    /// Of problems that differ in their loads alone.
    pub(super) fn new(problems: &'p [Problem<'a>]) -> Self {
        let forms = |model: usize| {
            let all: Vec<Vec<Choice>> =
                problems.iter().map(|problem| Choice::all(problem, &problem.demands[model])).collect();
            let same = |choice: &Choice| {
                let is = |other: &&Choice| (other.pool, other.tp) == (choice.pool, choice.tp);
                all.iter().map(|choices| choices.iter().find(is).copied()).collect::<Option<Vec<Choice>>>()
            };
            all[0].iter().filter_map(same).collect()
        };
        Self { problems, choices: (0..problems[0].demands.len()).map(forms).collect() }
    }

    /// The covering problem of these deadlines.
    pub(super) fn cover(&self, deadlines: &[f64]) -> Cover {
        let way = |choices: &Vec<Choice>| CoverWay {
            pool: choices[0].pool,
            used: choices[0].tp,
            covers: choices
                .iter()
                .zip(deadlines)
                .map(|(choice, deadline)| real(choice.batch_within(*deadline)))
                .collect(),
        };
        let demands = |model: usize| {
            self.problems.iter().map(move |problem| real(problem.demands[model].load.requests)).collect()
        };
        Cover {
            stock: self.problems[0].pools.iter().map(|pool| pool.count).collect(),
            demands: (0..self.choices.len()).map(demands).collect(),
            ways: self.choices.iter().map(|forms| forms.iter().map(way).collect()).collect(),
        }
    }

    pub(super) fn placement(&self, counts: &Counts) -> Placement {
        let of = |(forms, counts): (&Vec<Vec<Choice>>, &Vec<u32>)| {
            let there = forms.iter().zip(counts).filter(|(_, count)| **count > 0);
            let mut replicas: Vec<Replicas> =
                there.map(|(of, count)| Replicas { pool: of[0].pool, tp: of[0].tp, count: *count }).collect();
            replicas.sort_unstable();
            replicas
        };
        self.choices.iter().zip(counts).map(of).collect()
    }

    fn makespans(&self, placement: &Placement) -> Vec<f64> {
        let of = |problem: &Problem<'_>| {
            let models = problem.demands.iter().zip(placement);
            let seconds = models.map(|(demand, replicas)| serve_model(problem, demand, replicas, Waves::One));
            seconds.fold(0.0, f64::max)
        };
        self.problems.iter().map(of).collect()
    }
}

/// The placement with the least sum of makespans, each with its weight. The problems differ in their loads alone: models,
/// accelerators and options are the same, in the same order.
///
/// # Errors
/// [`NotPlaced`].
pub fn least_sum(problems: &[Problem<'_>], weights: &[f64], effort: Effort) -> Result<Several, NotPlaced> {
    let alone = problems.iter().map(|problem| least_makespan(problem).map(|found| found.bound));
    let alone: Vec<f64> = alone.collect::<Result<_, _>>()?;
    let workloads = Workloads::new(problems);
    let mut search = Search { workloads: &workloads, weights, effort, best: None };
    // A workload without requests has no direction to be put off in.
    let start: Vec<f64> = alone.iter().map(|seconds| seconds.max(f64::MIN_POSITIVE)).collect();
    let bound = search.corners(start)?;
    let (sum, placement) = search.best.expect("found before corners are looked at");
    Ok(Several { makespans: workloads.makespans(&placement), placement, alone, sum, bound: bound.min(sum) })
}

struct Search<'w, 'p, 'a> {
    workloads: &'w Workloads<'p, 'a>,
    weights: &'w [f64],
    effort: Effort,
    best: Option<(f64, Placement)>,
}

impl Search<'_, '_, '_> {
    fn sum(&self, times: &[f64]) -> f64 {
        times.iter().zip(self.weights).map(|(time, weight)| time * weight).sum()
    }

    /// Whether deadlines can be kept, put off by a share; a placement that keeps them may be the best so far.
    fn try_at(&mut self, corner: &[f64], share: f64) -> Result<Verdict, TooManyTypes> {
        let deadlines: Vec<f64> = corner.iter().map(|time| time * share).collect();
        let (verdict, _) = self.workloads.cover(&deadlines).solve(self.effort.work)?;
        if let Verdict::Covered(counts) = &verdict {
            let placement = self.workloads.placement(counts);
            let sum = self.sum(&self.workloads.makespans(&placement));
            if self.best.as_ref().is_none_or(|(best, _)| sum < *best) {
                self.best = Some((sum, placement));
            }
        }
        Ok(verdict)
    }

    /// Any placement.
    fn first(&mut self, start: &[f64]) -> Result<f64, NotPlaced> {
        let mut share = 1.0;
        let mut last = Verdict::Impossible;
        // Up to where every batch is within the deadline.
        while share < 1e18 {
            last = self.try_at(start, share)?;
            if let Some((best, _)) = &self.best {
                return Ok(*best);
            }
            share *= if share < 100.0 { 1.5 } else { 100.0 };
        }
        Err(if last == Verdict::Impossible { NotPlaced::NoneForAll } else { NotPlaced::NotFound })
    }

    /// Looks at corners until the best is near enough; what none is better than.
    fn corners(&mut self, start: Vec<f64>) -> Result<f64, NotPlaced> {
        let mut best = self.first(&start)?;
        let tolerance = self.effort.tolerance_ratio;
        let mut bound = self.sum(&start);
        let mut corners = vec![start];
        for _ in 0..self.effort.corners_max {
            let least = (0..corners.len()).min_by(|a, b| self.sum(&corners[*a]).total_cmp(&self.sum(&corners[*b])));
            let Some(least) = least else { break };
            let corner = corners.swap_remove(least);
            bound = self.sum(&corner);
            if bound * (1.0 + tolerance) >= best {
                break;
            }
            let (mut low, mut high) = (1.0, best / bound);
            while high > low * (1.0 + tolerance / 4.0) {
                let middle = f64::midpoint(low, high);
                match self.try_at(&corner, middle)? {
                    Verdict::Covered(_) => high = middle,
                    Verdict::Impossible => low = middle,
                    // Nothing may be cut off beyond the last point that is known to be impossible.
                    Verdict::Unknown => break,
                }
            }
            best = self.best.as_ref().map_or(best, |(found, _)| *found);
            if low <= 1.0 {
                break;
            }
            for nth in 0..corner.len() {
                let mut next = corner.clone();
                next[nth] *= low;
                corners.push(next);
            }
        }
        Ok(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::Catalog,
        place::{Demand, Load, Options, Pool, taken},
    };

    fn problem<'a>(catalog: &'a Catalog, requests: [u64; 2], count: u32) -> Problem<'a> {
        let demand = |(model, requests): (&str, u64)| Demand {
            model: catalog.model(model).unwrap(),
            load: Load { requests, prompt: 256.0, answer: 512.0 },
        };
        Problem {
            demands: ["Qwen2.5-1.5B", "Qwen2.5-14B"].into_iter().zip(requests).map(demand).collect(),
            pools: vec![Pool { accelerator: catalog.accelerator("H100").unwrap(), count, block: None }],
            options: Options { tps: vec![1, 2], ..Options::default() },
        }
    }

    /// The least sum, by trying all replicas of both sizes for both models.
    fn by_trying(problems: &[Problem<'_>], weights: &[f64], count: u32) -> f64 {
        let workloads = Workloads::new(problems);
        let mut least = f64::INFINITY;
        for code in 0..(count + 1).pow(4) {
            let of = |nth: u32| code / (count + 1).pow(nth) % (count + 1);
            let placement = workloads.placement(&vec![vec![of(0), of(1)], vec![of(2), of(3)]]);
            if taken(&placement, 1)[0] <= count {
                let makespans = workloads.makespans(&placement);
                least = least.min(makespans.iter().zip(weights).map(|(time, weight)| time * weight).sum());
            }
        }
        least
    }

    #[test]
    fn no_placement_has_a_smaller_sum() {
        let catalog = Catalog::builtin();
        for (one, other, weights) in [
            ([400, 10], [20, 200], [1.0, 1.0]),
            ([400, 10], [20, 200], [1.0, 5.0]),
            ([100, 100], [100, 100], [1.0, 1.0]),
            ([300, 0], [0, 90], [2.0, 1.0]),
        ] {
            let problems = [problem(&catalog, one, 6), problem(&catalog, other, 6)];
            let effort = Effort { tolerance_ratio: 0.001, ..Effort::default() };
            let found = least_sum(&problems, &weights, effort).unwrap();
            let least = by_trying(&problems, &weights, 6);
            assert!(found.bound <= least * (1.0 + 1e-9) && found.sum >= least * (1.0 - 1e-9), "{found:?} {least}");
            assert!(found.sum <= least * 1.002, "{found:?} {least}");
            assert!(
                found.makespans.iter().zip(&found.alone).all(|(makespan, alone)| *makespan >= alone * (1.0 - 1e-9))
            );
        }
    }

    #[test]
    fn what_cannot_be_for_all_is_told() {
        let catalog = Catalog::builtin();
        // On one accelerator either model fits, and not both.
        let problems = [problem(&catalog, [1, 0], 1), problem(&catalog, [0, 1], 1)];
        assert_eq!(least_sum(&problems, &[1.0, 1.0], Effort::default()), Err(NotPlaced::NoneForAll));
    }
}
