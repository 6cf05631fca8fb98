//! When to place anew, and how: parts of rescheduling policies over a trace of loads (Autopoiesis, section 8.1).

use super::{
    beside::{Change, changes},
    choice::Choice,
    problem::{Placement, Problem, Replicas, taken},
    serve::serve_seconds,
    spread::add,
    total::{Slot, Total, total},
};

/// What a trace costs if `policy` is asked at each of its loads, with the placement that is there then; with none it stays.
/// Each new placement takes `schedule_seconds` to be found.
pub fn follow<'a>(
    trace: &[Problem<'a>],
    schedule_seconds: f64,
    mut policy: impl FnMut(&Problem<'a>, Option<&Placement>) -> Option<Placement>,
) -> Total {
    let mut placed: Option<Placement> = None;
    let mut slots = Vec::new();
    for problem in trace {
        let placement = policy(problem, placed.as_ref());
        placed = placement.clone().or(placed);
        slots.push(Slot { problem: problem.clone(), placement });
    }
    total(&slots, schedule_seconds)
}

/// The change that is worth most: what it saves of the makespan, `times` over, less what it takes to change. `times` is how
/// often a load like this one is expected before the next change. Models are placed anew as [`changes`] has it, those that
/// are cheapest to move. None if every change costs more than it saves.
pub fn worthwhile(problem: &Problem<'_>, running: &Placement, times: f64) -> Option<Change> {
    let stays = serve_seconds(problem, running).into_iter().fold(0.0, f64::max);
    // What does not run at all is placed at any cost.
    let worth = |change: &Change| match stays - change.solution.makespan {
        saved if saved.is_nan() => f64::NEG_INFINITY,
        saved => times * saved - change.reconfiguration_seconds,
    };
    let worth = changes(problem, running).into_iter().map(|change| (worth(&change), change));
    let best = worth
        .max_by(|(one, a), (other, b)| one.total_cmp(other).then(b.solution.makespan.total_cmp(&a.solution.makespan)));
    best.filter(|(worth, _)| *worth > 0.0).map(|(_, change)| change)
}

/// A placement by rule of thumb: the largest model first, each gets its smallest replica where most accelerators are free;
/// then the slowest, again and again, the one more that saves most time for each accelerator, as long as there is one. None
/// if a model finds no place.
pub fn greedy(problem: &Problem<'_>) -> Option<Placement> {
    let free = |placement: &Placement| -> Vec<u32> {
        let taken = taken(placement, problem.pools.len());
        problem.pools.iter().zip(taken).map(|(pool, taken)| pool.count - taken).collect()
    };
    let mut placement: Placement = vec![Vec::new(); problem.demands.len()];
    let forms: Vec<Vec<Choice>> = problem.demands.iter().map(|demand| Choice::all(problem, demand)).collect();
    let mut largest: Vec<usize> = (0..problem.demands.len()).collect();
    let size = |model: usize| problem.demands[model].model.weight_bytes_eq2();
    largest.sort_by(|one, other| size(*other).total_cmp(&size(*one)));
    for model in largest {
        let free = free(&placement);
        let fits = forms[model].iter().filter(|form| form.tp <= free[form.pool]);
        let first = fits.min_by_key(|form| (u32::MAX - free[form.pool], form.pool, form.tp))?;
        placement[model].push(Replicas { pool: first.pool, tp: first.tp, count: 1 });
    }
    loop {
        let (free, seconds) = (free(&placement), serve_seconds(problem, &placement));
        let slowest = (0..seconds.len()).max_by(|one, other| seconds[*one].total_cmp(&seconds[*other]))?;
        let more = forms[slowest].iter().filter(|form| form.tp <= free[form.pool]).map(|form| {
            let mut placement = placement.clone();
            placement[slowest] = add(&placement[slowest], form.pool, form.tp);
            let after = serve_seconds(problem, &placement)[slowest];
            ((seconds[slowest] - after) / f64::from(form.tp), placement)
        });
        match more.filter(|(saved, _)| *saved > 0.0).max_by(|(one, _), (other, _)| one.total_cmp(other)) {
            Some((_, more)) => placement = more,
            None => return Some(placement),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::Catalog,
        place::{Demand, Load, Options, Pool, least_makespan},
    };

    fn problem<'a>(catalog: &'a Catalog, small: u64, count: u32) -> Problem<'a> {
        let demand = |(model, requests): (&str, u64)| Demand {
            model: catalog.model(model).unwrap(),
            load: Load { requests, prompt: 256.0, answer: 512.0 },
        };
        Problem {
            demands: [("Qwen2.5-1.5B", small), ("Qwen2.5-14B", 64)].map(demand).to_vec(),
            pools: vec![Pool { accelerator: catalog.accelerator("H100").unwrap(), count, block: None }],
            options: Options::default(),
        }
    }

    #[test]
    fn a_change_is_worthwhile_if_it_saves_more_than_it_costs() {
        let catalog = Catalog::builtin();
        let running = least_makespan(&problem(&catalog, 64, 8)).unwrap().placement;
        assert_eq!(worthwhile(&problem(&catalog, 64, 8), &running, 1e9), None, "nothing is better than the best");
        let after = problem(&catalog, 20_000, 8);
        let stays = serve_seconds(&after, &running).into_iter().fold(0.0, f64::max);
        let often = worthwhile(&after, &running, 100.0).unwrap();
        assert!(100.0 * (stays - often.solution.makespan) > often.reconfiguration_seconds);
        assert_eq!(worthwhile(&after, &running, 1e-3), None);
        // Who does not run is placed at any cost.
        let without = vec![Vec::new(), running[1].clone()];
        let placed = worthwhile(&problem(&catalog, 64, 8), &without, 1e-3);
        assert!(placed.is_some_and(|change| change.solution.makespan.is_finite()));
    }

    #[test]
    fn a_trace_is_followed_from_placement_to_placement() {
        let catalog = Catalog::builtin();
        let trace = [64, 64, 20_000].map(|small| problem(&catalog, small, 8));
        let mut seen = Vec::new();
        let total = follow(&trace, 0.5, |problem, running| {
            seen.push(running.cloned());
            let best = || least_makespan(problem).unwrap().placement;
            (seen.len() != 2).then(best)
        });
        assert!(seen[0].is_none() && seen[1].is_some() && seen[1] == seen[2], "{seen:?}");
        assert_eq!((total.reschedules, total.stale_seconds), (2, 1.0));
        assert!(total.reconfiguration_seconds > 0.0 && total.serve_seconds.is_finite());
    }

    #[test]
    fn the_rule_of_thumb_keeps_to_what_there_is_and_is_not_better_than_the_best() {
        let catalog = Catalog::builtin();
        for count in 2..9 {
            let problem = problem(&catalog, 300, count);
            let placement = greedy(&problem).unwrap();
            let makespan = serve_seconds(&problem, &placement).into_iter().fold(0.0, f64::max);
            assert!(taken(&placement, 1)[0] <= count && makespan.is_finite());
            assert!(makespan >= least_makespan(&problem).unwrap().makespan * (1.0 - 1e-9));
        }
        assert_eq!(greedy(&problem(&catalog, 300, 1)), None);
    }
}
