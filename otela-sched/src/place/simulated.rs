//! Placements judged by simulating them: what [`crate::sim::serving`] says of a model's replicas and its requests.

use super::{
    latency::{Evaluate, Form},
    problem::Problem,
};
use crate::sim::{
    Factors, StepCosts, Variant,
    serving::{
        Arrival, Arrivals, Dispatch, Length, Limits, Member, Open, Rules, Served, Workload, WorkloadError, serve,
    },
};
use std::collections::BTreeMap;

/// Requests that are simulated at least: where fewer would come in the time of the load, they come for longer.
const REQUESTS_MIN: f64 = 200.0;
/// Requests at once from which is told how many a replica does in a second.
const SATURATING: u32 = 2048;

/// How a model's requests come, and how long they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Requests {
    /// Tokens of prompts.
    pub prompt: Length,
    /// Tokens of answers.
    pub answer: Length,
    /// The deviation of the time between two requests over its mean; 1 is a Poisson process.
    pub burstiness: f64,
}

/// How placements are simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulation {
    /// For how long load comes, in seconds. What has come by then is finished.
    pub seconds: f64,
    /// What requests are drawn from: the same for everything that is judged, so that differences are not chance.
    pub seed: u64,
}

/// A simulation that judges. Each request goes to the replica that has had the least in proportion to what it can do, as
/// from an ingress that has measured that; what a replica can do is how many requests it ends in a second with a long queue.
#[derive(Debug)]
pub struct Simulated<'p, 'a> {
    problem: &'p Problem<'a>,
    requests: Vec<Requests>,
    factors: Vec<Factors>,
    simulation: Simulation,
    /// By model, then pool and size: what a replica is, and requests that it does in a second.
    kinds: Vec<BTreeMap<(usize, u32), (Member, f64)>>,
}

impl<'p, 'a> Simulated<'p, 'a> {
    /// `requests` are those of each model, `factors` those of each pool.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn new(
        problem: &'p Problem<'a>,
        requests: Vec<Requests>,
        factors: Vec<Factors>,
        simulation: Simulation,
    ) -> Result<Self, WorkloadError> {
        let mut simulated = Self { problem, requests, factors, simulation, kinds: Vec::new() };
        for model in 0..problem.demands.len() {
            let mut kinds = BTreeMap::new();
            for form in Form::all(problem, model) {
                if let Some(member) = simulated.member(model, &form) {
                    let rate = simulated.saturated(model, member)?;
                    kinds.insert((form.pool(), form.tp()), (member, rate));
                }
            }
            simulated.kinds.push(kinds);
        }
        Ok(simulated)
    }

    /// Requests that a replica of this form does in a second, at most; 0 if it does none.
    pub fn rate_max(&self, model: usize, form: &Form) -> f64 {
        self.kinds[model].get(&(form.pool(), form.tp())).map_or(0.0, |(_, rate)| *rate)
    }

    pub(super) fn problem(&self) -> &'p Problem<'a> {
        self.problem
    }

    /// The mean seconds of one replica's requests, of which `rate` come in a second.
    pub(super) fn alone(&self, model: usize, form: &Form, rate: f64, burstiness: f64) -> f64 {
        let Some((member, _)) = self.kinds[model].get(&(form.pool(), form.tp())) else { return f64::INFINITY };
        self.mean(&[*member], vec![1.0], self.arrivals(model, rate, burstiness))
    }

    pub(super) fn burstiness(&self, model: usize) -> f64 {
        self.requests[model].burstiness
    }

    fn member(&self, model: usize, form: &Form) -> Option<Member> {
        let accelerator = self.problem.pools[form.pool()].accelerator;
        let variant = Variant::new(self.problem.demands[model].model, accelerator, form.tp()).ok()?;
        let usual = Limits::of(&variant)?;
        let most = self.problem.options.batch_max.and_then(|most| u32::try_from(most).ok()).unwrap_or(u32::MAX);
        let limits = Limits { sequences_max: usual.sequences_max.min(most), ..usual };
        Some(Member::new(StepCosts::new(&variant, self.factors[form.pool()]), limits))
    }

    fn workload(&self, model: usize, rate: f64, burstiness: f64) -> Workload {
        let Requests { prompt, answer, .. } = self.requests[model].clone();
        Workload { arrivals: Arrivals { rates: vec![(0.0, rate)], burstiness }, prompt, answer, shared: None }
    }

    fn arrivals(&self, model: usize, rate: f64, burstiness: f64) -> impl Iterator<Item = Arrival> + use<> {
        let seconds = self.simulation.seconds.max(REQUESTS_MIN / rate);
        let drawn = self.workload(model, rate, burstiness).requests(seconds, self.seed(model));
        drawn.expect("was drawn from when this was made")
    }

    /// A model's requests do not change with the others.
    fn seed(&self, model: usize) -> u64 {
        self.simulation.seed.wrapping_mul(1_000_003).wrapping_add(model as u64)
    }

    /// How many requests a replica ends in a second, of many that are there from the beginning: between the first quarter of
    /// them and the third, when its batch is full.
    fn saturated(&self, model: usize, member: Member) -> Result<f64, WorkloadError> {
        let burstiness = self.requests[model].burstiness;
        let drawn = self.workload(model, f64::from(SATURATING), burstiness).requests(1e6, self.seed(model))?;
        let arrivals = drawn.take(SATURATING as usize).map(|arrival| Arrival { at: 0.0, ..arrival });
        let outcome = serve(&[member], arrivals, &mut InProportion::new(vec![1.0]), Rules::default());
        let mut ends: Vec<f64> = outcome.served.iter().map(|served| served.last).collect();
        ends.sort_unstable_by(f64::total_cmp);
        let (quarter, count) = (ends.len() / 4, f64::from(SATURATING) / 2.0);
        Ok(match ends.get(3 * quarter) {
            Some(third) if ends.len() == SATURATING as usize => count / (third - ends[quarter]),
            _ => 0.0,
        })
    }

    /// Infinite if one of them could not be served.
    fn mean(&self, members: &[Member], shares: Vec<f64>, arrivals: impl Iterator<Item = Arrival>) -> f64 {
        let outcome = serve(members, arrivals, &mut InProportion::new(shares), Rules::default());
        let served = &outcome.served;
        if served.len() < outcome.arrived {
            return f64::INFINITY;
        }
        #[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
        let count = served.len().max(1) as f64;
        served.iter().map(Served::latency_seconds).sum::<f64>() / count
    }
}

impl Evaluate for Simulated<'_, '_> {
    fn seconds(&self, model: usize, rate: f64, replicas: &[(Form, u32)]) -> f64 {
        if rate <= 0.0 {
            return 0.0;
        }
        let (mut members, mut shares) = (Vec::new(), Vec::new());
        for (form, count) in replicas {
            let Some((member, rate)) = self.kinds[model].get(&(form.pool(), form.tp())) else { return f64::INFINITY };
            members.extend((0..*count).map(|_| *member));
            shares.extend((0..*count).map(|_| *rate));
        }
        if shares.iter().all(|share| *share <= 0.0) {
            return f64::INFINITY;
        }
        self.mean(&members, shares, self.arrivals(model, rate, self.requests[model].burstiness))
    }
}

/// Who has had the least in proportion to its share.
struct InProportion {
    shares: Vec<f64>,
    given: Vec<f64>,
}

impl InProportion {
    fn new(shares: Vec<f64>) -> Self {
        Self { given: vec![0.0; shares.len()], shares }
    }
}

impl Dispatch for InProportion {
    fn choose(&mut self, _: &Arrival, open: &mut dyn Open) -> usize {
        let after = |nth: &usize| (self.given[open.id(*nth)] + 1.0) / self.shares[open.id(*nth)];
        let chosen = (0..open.count()).min_by(|one, other| after(one).total_cmp(&after(other))).unwrap_or(0);
        self.given[open.id(chosen)] += 1.0;
        chosen
    }
}
