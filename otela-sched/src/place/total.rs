//! What a sequence of placements costs in all over a trace of loads: Autopoiesis, Eq. 1.

use super::{
    problem::{Placement, Problem},
    serve::serve_seconds,
};
use crate::sim::{Group, LoadScope, reconfiguration};

/// One slot of a trace: its loads, and the placement that is made for it, if one is.
#[derive(Debug, Clone)]
pub struct Slot<'a> {
    /// Models with their loads, and the accelerators.
    pub problem: Problem<'a>,
    /// A new placement; without one the last stays.
    pub placement: Option<Placement>,
}

/// What it comes to. Times are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Total {
    /// How often there was a new placement.
    pub reschedules: u32,
    /// In which the old one served because the new one was not found yet.
    pub stale_seconds: f64,
    /// For changing from one to the next.
    pub reconfiguration_seconds: f64,
    /// For serving.
    pub serve_seconds: f64,
    /// Tokens of prompts and answers.
    pub tokens: f64,
}

impl Total {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.stale_seconds + self.reconfiguration_seconds + self.serve_seconds
    }

    /// Tokens a second.
    pub fn throughput(&self) -> f64 {
        self.tokens / self.seconds()
    }
}

/// Adds up a trace. Each new placement takes `schedule_seconds` to be found. Before the first placement nothing is served.
pub fn total(trace: &[Slot<'_>], schedule_seconds: f64) -> Total {
    let mut total = Total::default();
    let mut placed: Option<(&Placement, Vec<Group<'_>>)> = None;
    for slot in trace {
        if let Some(placement) = &slot.placement {
            let groups = groups(&slot.problem, placement);
            total.reschedules += 1;
            total.stale_seconds += schedule_seconds;
            if let Some((_, old)) = &placed {
                total.reconfiguration_seconds += reconfiguration(old, &groups, LoadScope::Changed).total_seconds();
            }
            placed = Some((placement, groups));
        }
        if let Some((placement, _)) = &placed {
            total.serve_seconds += serve_seconds(&slot.problem, placement).into_iter().fold(0.0, f64::max);
            let loads = slot.problem.demands.iter().map(|demand| demand.load);
            #[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
            let tokens = |requests: u64, each: f64| requests as f64 * each;
            total.tokens += loads.map(|load| tokens(load.requests, load.prompt + load.answer)).sum::<f64>();
        }
    }
    total
}

pub(super) fn groups<'a>(problem: &Problem<'a>, placement: &Placement) -> Vec<Group<'a>> {
    let models = problem.demands.iter().zip(placement);
    let of_model = models.flat_map(|(demand, replicas)| {
        replicas.iter().map(|replicas| Group {
            model: demand.model,
            accelerator: problem.pools[replicas.pool].accelerator,
            tp: replicas.tp,
            count: replicas.count,
        })
    });
    of_model.collect()
}
