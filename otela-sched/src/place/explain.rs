//! Why a placement is no better, and what would make it so.

use super::{
    makespan::{Solution, least_makespan},
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
    Explanation { slowest, unused, more }
}
