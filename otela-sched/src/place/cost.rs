//! The cheapest placement that has all requests done within a time.

use super::{
    problem::{Placement, Problem},
    several::{NotPlaced, Workloads},
};

/// A placement and what it costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Cheapest {
    /// What is placed.
    pub placement: Placement,
    /// What its accelerators cost, in the prices' unit.
    pub cost: f64,
    /// No placement costs less; the cost itself, if it is proved to be the least.
    pub bound: f64,
}

/// The cheapest placement with a makespan of at most `within_seconds`. `prices` are of one accelerator of each pool.
///
/// # Errors
/// [`NotPlaced`].
pub fn least_cost(
    problem: &Problem<'_>,
    prices: &[f64],
    within_seconds: f64,
    work: u64,
) -> Result<Cheapest, NotPlaced> {
    let workloads = Workloads::new(std::slice::from_ref(problem));
    let (best, bound) = workloads.cover(&[within_seconds]).cheapest_cover(prices, work)?;
    match best {
        Some((cost, counts)) => Ok(Cheapest { placement: workloads.placement(&counts), cost, bound }),
        None if bound.is_infinite() => Err(NotPlaced::NoneForAll),
        None => Err(NotPlaced::NotFound),
    }
}
