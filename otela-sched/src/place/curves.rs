//! A cheap rank for what a simulation judges: how long one replica's requests take at a few loads, simulated once, and read
//! off for any number of replicas.
//!
//! A dispatcher that gives each replica what it can do loads all alike, so a model's mean time is that of its kinds of
//! replicas at this load, each counted by its share. What is left out is that requests come to each of many replicas more
//! evenly than to one.

use super::{
    latency::{Evaluate, Form},
    simulated::Simulated,
};
use std::collections::BTreeMap;

/// Loads that are simulated: requests that come over those that can be done. Beyond the last, waits grow evenly.
const LOADS: [f64; 16] = [0.02, 0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94, 1.0, 1.06, 1.15, 1.3, 1.6, 3.0];
/// Replicas among which requests are thought to be shared: each gets every so manieth.
const SHARED_BY: f64 = 8.0;

/// Times of one replica's requests by load.
#[derive(Debug, Clone)]
pub struct Curves {
    /// By model, then pool and size.
    curves: Vec<BTreeMap<(usize, u32), Curve>>,
}

#[derive(Debug, Clone)]
struct Curve {
    /// Requests a replica does in a second.
    rate_max: f64,
    /// Their mean seconds at each load.
    seconds: Vec<f64>,
}

impl Curves {
    /// Those of all models and forms of a simulation.
    pub fn new(simulated: &Simulated<'_, '_>) -> Self {
        let problem = simulated.problem();
        let of_model = |model: usize| {
            let burstiness = simulated.burstiness(model) / SHARED_BY.sqrt();
            let curve = |form: Form| {
                let rate = simulated.rate_max(model, &form);
                let seconds = |load: &f64| simulated.alone(model, &form, rate * load, burstiness);
                let curve = || Curve { rate_max: rate, seconds: LOADS.iter().map(seconds).collect() };
                (rate > 0.0).then(|| ((form.pool(), form.tp()), curve()))
            };
            Form::all(problem, model).into_iter().filter_map(curve).collect()
        };
        Self { curves: (0..problem.demands.len()).map(of_model).collect() }
    }
}

impl Evaluate for Curves {
    fn seconds(&self, model: usize, rate: f64, replicas: &[(Form, u32)]) -> f64 {
        if rate <= 0.0 {
            return 0.0;
        }
        let curve = |form: &Form| self.curves[model].get(&(form.pool(), form.tp()));
        let there = || replicas.iter().map(|(form, count)| Some((curve(form)?, f64::from(*count))));
        let Some(capacity) = there().map(|one| one.map(|(curve, count)| curve.rate_max * count)).sum::<Option<f64>>()
        else {
            return f64::INFINITY;
        };
        if capacity <= 0.0 {
            return f64::INFINITY;
        }
        let load = rate / capacity;
        let of = |(curve, count): (&Curve, f64)| curve.rate_max * count / capacity * at(&curve.seconds, load);
        there().flatten().map(of).sum()
    }
}

/// A curve at a load, along straight lines.
fn at(seconds: &[f64], load: f64) -> f64 {
    let upper = LOADS.iter().position(|at| *at >= load).unwrap_or(LOADS.len() - 1).max(1);
    let (from, to) = (LOADS[upper - 1], LOADS[upper]);
    let part = ((load - from) / (to - from)).max(0.0);
    seconds[upper - 1] + part * (seconds[upper] - seconds[upper - 1])
}
