//! Accelerators that a placement has no need of: they go to somebody whom they help, if they are to.

use super::{
    choice::Choice,
    problem::{Placement, Problem, Replicas, Spare, taken},
    serve::{Waves, serve_model},
};

/// Gives out what is left, as long as it makes somebody faster.
pub(super) fn spread(problem: &Problem<'_>, placement: &mut Placement) {
    if problem.options.spare == Spare::Idle {
        return;
    }
    let mut given = vec![0_u32; placement.len()];
    loop {
        let taken = taken(placement, problem.pools.len());
        let left: Vec<u32> = problem.pools.iter().zip(&taken).map(|(pool, taken)| pool.count - taken).collect();
        let seconds: Vec<f64> = problem
            .demands
            .iter()
            .zip(placement.iter())
            .map(|(demand, replicas)| serve_model(problem, demand, replicas, Waves::One))
            .collect();
        let had = |model: usize| if problem.options.spare == Spare::Evenly { given[model] } else { 0 };
        let mut turn: Vec<usize> = (0..seconds.len()).collect();
        turn.sort_by(|one, other| had(*one).cmp(&had(*other)).then(seconds[*other].total_cmp(&seconds[*one])));
        let helped = turn.into_iter().find_map(|model| {
            let added = best(problem, model, &placement[model], &left, seconds[model])?;
            Some((model, added))
        });
        let Some((model, added)) = helped else { return };
        let size = |replicas: &[Replicas]| replicas.iter().map(|of| of.tp * of.count).sum::<u32>();
        given[model] += size(&added) - size(&placement[model]);
        placement[model] = added;
    }
}

/// The model's replicas with the one more that saves most time for each accelerator.
fn best(
    problem: &Problem<'_>,
    model: usize,
    replicas: &[Replicas],
    left: &[u32],
    seconds: f64,
) -> Option<Vec<Replicas>> {
    let demand = &problem.demands[model];
    let with = Choice::all(problem, demand).into_iter().filter(|choice| choice.tp <= left[choice.pool]);
    let saved = with.filter_map(|choice| {
        let more = add(replicas, choice.pool, choice.tp);
        let saves = seconds - serve_model(problem, demand, &more, Waves::One);
        (saves > 1e-9 * seconds).then(|| (saves / f64::from(choice.tp), more))
    });
    saved.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, more)| more)
}

pub(super) fn add(replicas: &[Replicas], pool: usize, tp: u32) -> Vec<Replicas> {
    let mut more = replicas.to_vec();
    match more.iter_mut().find(|replicas| (replicas.pool, replicas.tp) == (pool, tp)) {
        Some(same) => same.count += 1,
        None => more.push(Replicas { pool, tp, count: 1 }),
    }
    more.sort_unstable();
    more
}
