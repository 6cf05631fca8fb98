//! Why a placement is no better, and what would make it so.

use super::{
    makespan::{Limit, Solution, least_makespan, least_within},
    problem::{Problem, taken},
};

/// What holds a placement back.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The model that takes longest, by its place in the problem.
    pub slowest: usize,
    /// Accelerators of each pool that nobody has a use for.
    pub unused: Vec<u32>,
    /// What more accelerators would change, pool by pool: one, and a node of them; or a block, where there are blocks.
    pub more: Vec<More>,
    /// The next best: the least makespan if the slowest model has fewer accelerators of at least one pool. None if it
    /// cannot do with fewer of any.
    pub next_best: Option<NextBest>,
}

/// The best placement that gives the slowest model less of a pool. What is left over is not given out.
#[derive(Debug, Clone, PartialEq)]
pub struct NextBest {
    /// The pool of which it has less, by its place in the problem.
    pub pool: usize,
    /// The placement.
    pub solution: Solution,
}

/// More accelerators of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct More {
    /// The pool, by its place in the problem.
    pub pool: usize,
    /// How many more.
    pub count: u32,
    /// The least makespan then, in seconds.
    pub makespan: f64,
}

/// Explains a solution of a problem, by solving it anew with more accelerators.
pub fn explain(problem: &Problem<'_>, solution: &Solution) -> Explanation {
    let seconds = &solution.seconds;
    let slowest = (0..seconds.len()).max_by(|one, other| seconds[*one].total_cmp(&seconds[*other])).unwrap_or(0);
    let taken = taken(&solution.placement, problem.pools.len());
    let unused = problem.pools.iter().zip(&taken).map(|(pool, taken)| pool.count - taken).collect();
    let mut more = Vec::new();
    for (nth, pool) in problem.pools.iter().enumerate() {
        let mut counts = pool.block.map_or_else(|| vec![1, pool.accelerator.per_node], |block| vec![block]);
        counts.dedup();
        for count in counts {
            let mut larger = problem.clone();
            larger.pools[nth].count += count;
            if let Ok(found) = least_makespan(&larger) {
                more.push(More { pool: nth, count, makespan: found.makespan });
            }
        }
    }
    Explanation { slowest, unused, more, next_best: next_best(problem, solution, slowest) }
}

fn next_best(problem: &Problem<'_>, solution: &Solution, slowest: usize) -> Option<NextBest> {
    let has = taken(&vec![solution.placement[slowest].clone()], problem.pools.len());
    let less = has.into_iter().enumerate().filter(|(_, count)| *count > 0).filter_map(|(pool, count)| {
        let limit = Limit { model: slowest, pool, most: count - 1 };
        least_within(problem, Some(limit)).ok().map(|solution| NextBest { pool, solution })
    });
    less.min_by(|one, other| one.solution.makespan.total_cmp(&other.solution.makespan))
}
