//! How good a makespan can be at best, without going through placements.
//!
//! Give accelerators prices. Within a deadline a model's load costs at least its requests times the least price of a served
//! request, over all forms of its replicas; if all loads together cost more than all accelerators are worth, nobody keeps
//! the deadline, whatever the prices are. Prices are raised where accelerators are sought after.

use super::{
    choice::{Choice, real},
    problem::Problem,
};

const ROUNDS: usize = 300;
const CLOSE: f64 = 1e-4;

/// No placement has a smaller makespan; `kept` is one that some placement has.
pub(super) fn lower_bound(problem: &Problem<'_>, choices: &[Vec<Choice>], kept: f64) -> f64 {
    let (mut low, mut high) = (0.0, kept);
    while high - low > CLOSE * high {
        let middle = f64::midpoint(low, high);
        if is_refuted(problem, choices, middle) { low = middle } else { high = middle }
    }
    low
}

/// Whether prices show that a deadline cannot be kept.
fn is_refuted(problem: &Problem<'_>, choices: &[Vec<Choice>], deadline: f64) -> bool {
    let pools = problem.pools.len();
    // What one accelerator of a pool serves of a model at best.
    let served: Vec<Vec<f64>> = choices
        .iter()
        .map(|choices| {
            let mut best = vec![0.0; pools];
            for choice in choices {
                let each = real(choice.batch_within(deadline)) / f64::from(choice.tp);
                best[choice.pool] = f64::max(best[choice.pool], each);
            }
            best
        })
        .collect();
    let mut prices = vec![1.0; pools];
    for round in 0..ROUNDS {
        let mut sought = vec![0.0; pools];
        let mut cost = 0.0;
        for (demand, served) in problem.demands.iter().zip(&served) {
            let price = |pool: &usize| prices[*pool] / served[*pool];
            let cheapest = (0..pools).filter(|pool| served[*pool] > 0.0).min_by(|a, b| price(a).total_cmp(&price(b)));
            let Some(cheapest) = cheapest else { return demand.load.requests > 0 };
            let needed = real(demand.load.requests) / served[cheapest];
            sought[cheapest] += needed;
            cost += needed * prices[cheapest];
        }
        let worth: f64 = prices.iter().zip(&problem.pools).map(|(price, pool)| price * f64::from(pool.count)).sum();
        if cost > worth * (1.0 + 1e-12) {
            return true;
        }
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let step = 0.5 / (1.0 + round as f64).sqrt();
        for ((price, sought), pool) in prices.iter_mut().zip(&sought).zip(&problem.pools) {
            let excess = sought / f64::from(pool.count.max(1)) - 1.0;
            *price *= (step * excess.clamp(-1.0, 1.0)).exp();
        }
    }
    false
}
