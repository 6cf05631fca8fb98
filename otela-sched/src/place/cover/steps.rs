//! What so many accelerators of one pool can do for a model at most: an unbounded knapsack over the ways to use them.
//!
//! With several workloads at once what they can do is a vector, and the knapsack keeps every one that no other is above.

/// What is missing of a demand by rounding alone.
const ROUNDING: f64 = 1e-12;

/// One way to use accelerators of a pool, such as a replica over two of them.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::place) struct CoverWay {
    /// From which pool it takes.
    pub(in crate::place) pool: usize,
    /// How many accelerators it takes.
    pub(in crate::place) used: u32,
    /// How much of the demand it covers, for each workload.
    pub(in crate::place) covers: Vec<f64>,
}

/// A number of accelerators with which more can be covered than with fewer.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) used: u32,
    pub(super) covers: Vec<f64>,
    /// The step before, and the way that was added.
    from: (usize, usize),
}

/// The steps of one model in one pool, by accelerators; the first is none at all.
#[derive(Debug)]
pub(super) struct Steps {
    all: Vec<Step>,
    /// Those that count, by `used`.
    kept: Vec<usize>,
}

/// Whether `covers` is enough, but for rounding.
pub(super) fn is_enough(covers: f64, demand: f64) -> bool {
    covers >= demand - ROUNDING * demand.abs()
}

impl Steps {
    /// Of the `ways`, those that take from `pool`, of which there are `stock`.
    pub(super) fn new(ways: &[CoverWay], pool: usize, stock: u32, demand: &[f64]) -> Self {
        let mine: Vec<(usize, &CoverWay)> = ways.iter().enumerate().filter(|(_, way)| way.pool == pool).collect();
        let mut all = vec![Step { used: 0, covers: vec![0.0; demand.len()], from: (0, usize::MAX) }];
        let mut kept = vec![0];
        let mut reach: Vec<Vec<usize>> = vec![vec![0]];
        for count in 1..=stock as usize {
            let mut now = reach[count - 1].clone();
            let first = all.len();
            for (nth, way) in &mine {
                let Some(before) = count.checked_sub(way.used as usize) else { continue };
                for &from in &reach[before] {
                    let covers = sum(&all[from].covers, &way.covers, demand);
                    if now.iter().any(|&other| is_above(&all[other].covers, &covers)) {
                        continue;
                    }
                    now.retain(|&other| !is_above(&covers, &all[other].covers));
                    now.push(all.len());
                    all.push(Step { used: all[from].used + way.used, covers, from: (from, *nth) });
                }
            }
            kept.extend(now.iter().copied().filter(|&step| step >= first));
            let done = now.len() == 1 && all[now[0]].covers.iter().zip(demand).all(|(covers, demand)| covers >= demand);
            reach.push(now);
            if done {
                break;
            }
        }
        Self { all, kept }
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn get(&self, nth: usize) -> &Step {
        &self.all[self.kept[nth]]
    }

    /// The first step that covers all of `rest`, if there is one.
    pub(super) fn first_above(&self, rest: &[f64], demand: &[f64]) -> Option<usize> {
        let enough = |step: &Step| {
            step.covers.iter().zip(rest).zip(demand).all(|((covers, rest), demand)| covers + ROUNDING * demand >= *rest)
        };
        if demand.len() == 1 {
            // One workload: each step covers more than the one before.
            let nth = self.kept.partition_point(|&step| !enough(&self.all[step]));
            return (nth < self.kept.len()).then_some(nth);
        }
        self.kept.iter().position(|&step| enough(&self.all[step]))
    }

    /// Adds to `counts` the replicas of a step, by way.
    pub(super) fn count(&self, nth: usize, counts: &mut [u32]) {
        let mut step = self.kept[nth];
        while step != 0 {
            let (before, way) = self.all[step].from;
            counts[way] += 1;
            step = before;
        }
    }
}

/// The sum, cut at the demand: what is beyond it is of no use.
fn sum(one: &[f64], other: &[f64], demand: &[f64]) -> Vec<f64> {
    let cut = |((one, other), demand): ((&f64, &f64), &f64)| {
        let sum = one + other;
        if is_enough(sum, *demand) { *demand } else { sum }
    };
    one.iter().zip(other).zip(demand).map(cut).collect()
}

fn is_above(one: &[f64], other: &[f64]) -> bool {
    one.iter().zip(other).all(|(one, other)| one >= other)
}
