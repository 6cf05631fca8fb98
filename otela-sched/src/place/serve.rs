//! How long a placement takes for a load, also for one that it was not made for.

use super::{
    choice::{Choice, real},
    problem::{Demand, Placement, Problem, Replicas},
};

/// What to do where keys and values of all requests do not fit at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waves {
    /// Nothing: it takes for ever.
    One,
    /// As many waves as are needed, one after the other.
    AsNeeded,
}

/// Seconds that each model takes with its replicas, for the loads of the problem. Requests are given to replicas so that the
/// last is done as early as can be; where they do not fit at once, they come in waves. Without a replica it takes for ever.
pub fn serve_seconds(problem: &Problem<'_>, placement: &Placement) -> Vec<f64> {
    let models = problem.demands.iter().zip(placement);
    models.map(|(demand, replicas)| serve_model(problem, demand, replicas, Waves::AsNeeded)).collect()
}

pub(super) fn serve_model(problem: &Problem<'_>, demand: &Demand<'_>, replicas: &[Replicas], waves: Waves) -> f64 {
    let there: Vec<(Choice, u64)> = replicas
        .iter()
        .filter(|replicas| replicas.count > 0)
        .filter_map(|replicas| {
            let pool = &problem.pools[replicas.pool];
            let choice = Choice::new(replicas.pool, pool, replicas.tp, demand, &problem.options)?;
            Some((choice, u64::from(replicas.count)))
        })
        .collect();
    let requests = demand.load.requests;
    if requests == 0 {
        return 0.0;
    }
    let most: u64 =
        there.iter().map(|(choice, count)| choice.batch_max().saturating_mul(*count)).fold(0, u64::saturating_add);
    let needed = if most == 0 { u64::MAX } else { requests.div_ceil(most) };
    match waves {
        _ if needed == u64::MAX => f64::INFINITY,
        Waves::One if needed > 1 => f64::INFINITY,
        _ => real(needed) * at_once(&there, requests.div_ceil(needed)),
    }
}

/// The least time in which these serve so many at once.
fn at_once(there: &[(Choice, u64)], requests: u64) -> f64 {
    let served =
        |deadline: f64| -> u64 { there.iter().map(|(choice, count)| choice.batch_within(deadline) * count).sum() };
    let longest = |choice: &Choice| choice.seconds(choice.batch_max().min(requests));
    let (mut low, mut high) = (0.0, there.iter().map(|(choice, _)| longest(choice)).fold(0.0, f64::max));
    // Down to neighbouring numbers.
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        if served(middle) >= requests { high = middle } else { low = middle }
    }
    high
}
