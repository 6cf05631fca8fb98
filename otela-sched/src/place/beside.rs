//! Placements beside what runs already. Running models stay as they are unless somebody says that they may move.
//!
//! What a change costs is a maximum over the models that change (Autopoiesis, Eq. 10 and 11), so only a few changes are of
//! use: those that place the `j` models anew that are cheapest to move, for each `j`, and leave the others.

use super::{
    makespan::{Infeasible, Solution, least_makespan},
    problem::{Placement, Problem, taken},
    serve::serve_seconds,
    total::groups,
};
use crate::sim::{LoadScope, reconfiguration, transfer_seconds};

/// A placement that changes some of what runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// For each model of the problem, whether it was placed anew.
    pub moved: Vec<bool>,
    /// The whole placement; the bound is that of placements that move only these.
    pub solution: Solution,
    /// Seconds of terminating and loading.
    pub reconfiguration_seconds: f64,
}

/// The least makespan if running models for which `moves` holds are placed anew, and the others stay as they are. Models that
/// do not run are placed in any case, and a model that stays without a use for its requests takes for ever.
///
/// # Errors
/// [`Infeasible`]: those that are to be placed cannot be served with what is left.
pub fn change(problem: &Problem<'_>, running: &Placement, moves: impl Fn(usize) -> bool) -> Result<Change, Infeasible> {
    let runs = |model: usize| running[model].iter().any(|replicas| replicas.count > 0);
    let moved: Vec<bool> = (0..problem.demands.len()).map(|model| !runs(model) || moves(model)).collect();
    let staying: Placement = running
        .iter()
        .zip(&moved)
        .map(|(replicas, moved)| if *moved { Vec::new() } else { replicas.clone() })
        .collect();
    let left = left(problem, &staying);
    let mut rest = left.clone();
    let mut nth = moved.iter();
    rest.demands.retain(|_| *nth.next().expect("one for each"));
    let found = least_makespan(&rest)?;
    let mut placement = staying;
    let mut new = found.placement.into_iter();
    for (replicas, _) in placement.iter_mut().zip(&moved).filter(|(_, moved)| **moved) {
        *replicas = new.next().expect("one for each that was placed");
    }
    let seconds = serve_seconds(problem, &placement);
    let slowest = |moves: bool| {
        let some = seconds.iter().zip(&moved).filter(|(_, moved)| **moved == moves);
        some.map(|(seconds, _)| *seconds).fold(0.0, f64::max)
    };
    let cost = reconfiguration(&groups(problem, running), &groups(problem, &placement), LoadScope::Changed);
    let makespan = slowest(true).max(slowest(false));
    let bound = found.bound.max(slowest(false));
    Ok(Change {
        moved,
        solution: Solution { placement, makespan, bound, seconds },
        reconfiguration_seconds: cost.total_seconds(),
    })
}

/// The changes that place the `j` running models anew that are cheapest to move, from none of them to all, as far as there
/// are any.
pub fn changes(problem: &Problem<'_>, running: &Placement) -> Vec<Change> {
    let mut by_cost: Vec<(f64, usize)> = Vec::new();
    for (model, replicas) in running.iter().enumerate() {
        let on = replicas.iter().filter(|replicas| replicas.count > 0);
        let seconds = on.map(|of| transfer_seconds(problem.demands[model].model, problem.pools[of.pool].accelerator));
        by_cost.extend(seconds.reduce(f64::max).map(|seconds| (seconds, model)));
    }
    by_cost.sort_by(|one, other| one.0.total_cmp(&other.0));
    let moves = |count: usize| {
        let moved = &by_cost[..count];
        move |model: usize| moved.iter().any(|(_, moved)| *moved == model)
    };
    (0..=by_cost.len()).filter_map(|count| change(problem, running, moves(count)).ok()).collect()
}

/// The problem with the accelerators that a placement leaves.
fn left<'a>(problem: &Problem<'a>, placement: &Placement) -> Problem<'a> {
    let mut left = problem.clone();
    for (pool, taken) in left.pools.iter_mut().zip(taken(placement, problem.pools.len())) {
        pool.count = pool.count.saturating_sub(taken);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::Catalog,
        place::{Demand, Load, Options, Pool},
    };

    fn problem<'a>(catalog: &'a Catalog, small: u64) -> Problem<'a> {
        let demand = |(model, requests, answer): (&str, u64, f64)| Demand {
            model: catalog.model(model).unwrap(),
            load: Load { requests, prompt: 256.0, answer },
        };
        let pool = |name| Pool { accelerator: catalog.accelerator(name).unwrap(), count: 16, block: None };
        let loads =
            [("Qwen2.5-1.5B", small, 512.0), ("Qwen2.5-7B", 128, 1024.0), ("Qwen2.5-72B", 16, 512.0)].map(demand);
        Problem { demands: loads.to_vec(), pools: vec![pool("A100-80GB"), pool("H100")], options: Options::default() }
    }

    #[test]
    fn moving_more_models_is_never_slower_and_what_may_not_move_stays() {
        let catalog = Catalog::builtin();
        let before = problem(&catalog, 64);
        let running = least_makespan(&before).unwrap().placement;
        let after = problem(&catalog, 4000);
        let changes = changes(&after, &running);
        assert_eq!(changes.len(), 4);
        assert!(changes[0].solution.placement == running && changes[0].reconfiguration_seconds == 0.0);
        for (count, change) in changes.iter().enumerate() {
            assert_eq!(change.moved, [count > 0, count > 1, count > 2], "the smaller, the cheaper to move");
            for (model, moved) in change.moved.iter().enumerate() {
                assert!(*moved || change.solution.placement[model] == running[model]);
            }
            let taken = taken(&change.solution.placement, 2);
            assert!(taken.iter().zip(&after.pools).all(|(taken, pool)| *taken <= pool.count));
        }
        for pair in changes.windows(2) {
            assert!(pair[1].solution.makespan <= pair[0].solution.makespan * (1.0 + 1e-12), "{changes:?}");
        }
        let best = least_makespan(&after).unwrap();
        assert_eq!(changes[3].solution.makespan, best.makespan);
    }

    #[test]
    fn what_does_not_run_is_placed_beside_what_does() {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, 64);
        let large = vec![crate::place::Replicas { pool: 0, tp: 4, count: 1 }];
        let running = vec![Vec::new(), Vec::new(), large.clone()];
        let change = change(&problem, &running, |_| false).unwrap();
        assert_eq!((change.moved.as_slice(), &change.solution.placement[2]), ([true, true, false].as_slice(), &large));
        assert!(change.solution.seconds.iter().all(|seconds| seconds.is_finite()));
        let free = super::change(&problem, &running, |_| true).unwrap();
        assert!(free.solution.makespan < change.solution.makespan);
    }
}
