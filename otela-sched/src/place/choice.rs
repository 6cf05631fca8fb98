//! One form that a replica may have: a model over so many accelerators of a pool, and how much of its load it serves within
//! a deadline.

use super::problem::{Demand, Load, Options, Pool, Problem};
use crate::sim::{MEMORY_RATIO, Roofline, Variant, WEIGHTS_RATIO};

/// A form of a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) pool: usize,
    pub(super) tp: u32,
    roofline: Roofline,
    load: Load,
    /// Requests that it may have at once.
    batch_max: u64,
}

impl Choice {
    /// All forms that a model's replicas may have.
    pub(super) fn all(problem: &Problem<'_>, demand: &Demand<'_>) -> Vec<Self> {
        let pools = problem.pools.iter().enumerate();
        let forms = pools.flat_map(|(nth, pool)| problem.options.tps.iter().map(move |tp| (nth, pool, *tp)));
        forms.filter_map(|(nth, pool, tp)| Self::new(nth, pool, tp, demand, &problem.options)).collect()
    }

    /// This form; none if it cannot be.
    pub(super) fn new(nth: usize, pool: &Pool<'_>, tp: u32, demand: &Demand<'_>, options: &Options) -> Option<Self> {
        let variant = Variant::new(demand.model, pool.accelerator, tp).ok()?;
        let fits = tp <= pool.count
            && variant.weights_fit(WEIGHTS_RATIO)
            && (!options.divides || variant.divides())
            && pool.block.map_or(!options.within_nodes || variant.within_node(), |block| tp <= block);
        let load = demand.load;
        let held =
            if options.holds_kv { whole(variant.batch_max(load.prompt + load.answer, MEMORY_RATIO)) } else { u64::MAX };
        let batch_max = held.min(options.batch_max.unwrap_or(u64::MAX));
        (fits && batch_max > 0).then(|| Self { pool: nth, tp, roofline: Roofline::new(&variant), load, batch_max })
    }

    /// Requests that it may have at once.
    pub(super) fn batch_max(&self) -> u64 {
        self.batch_max
    }

    /// How long it takes for as many requests as it may have, or as there are.
    pub(super) fn longest(&self) -> f64 {
        self.seconds(self.batch_max.min(self.load.requests))
    }

    /// How long it takes for so many requests at once, in seconds.
    pub(super) fn seconds(&self, batch: u64) -> f64 {
        self.batch_seconds(real(batch))
    }

    /// The same for what need not be a whole number.
    pub(super) fn batch_seconds(&self, batch: f64) -> f64 {
        self.roofline.latency_seconds(batch, self.load.prompt, self.load.answer)
    }

    /// Autopoiesis, appendix B: latency grows with the batch, so of a deadline only the largest batch matters that keeps it.
    pub(super) fn batch_within(&self, deadline: f64) -> u64 {
        let (mut low, mut high) = (0, self.batch_max.min(self.load.requests));
        while low < high {
            let middle = high - (high - low) / 2;
            if self.seconds(middle) <= deadline { low = middle } else { high = middle - 1 }
        }
        low
    }
}

/// Counts are far below what a float can count.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and saturates")]
fn whole(number: f64) -> u64 {
    number as u64
}
