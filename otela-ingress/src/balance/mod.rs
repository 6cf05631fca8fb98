//! Which replica gets a request: the paper's three hooks (OpenTela section 3.4), one file for each policy.
//!
//! What a policy picks from has passed every filter already: trust, requirements, health, room, end of allocation.
//! Load numbers are those of [`crate::standing`], shared by all policies, so that a request that was picked by one
//! counts for the others too.

mod affinity;
mod least_loaded;
mod p2c;
mod policy;
mod random;
mod round_robin;
mod weighted;

pub use policy::{Policy, UnknownPolicy};

use crate::{candidate::Candidate, queue::Queues, standing::InFlightCount};
use otela_node::telemetry::trace::Span;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// What of a request a policy may look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hints<'a> {
    /// The model, or whatever else is asked for.
    pub(crate) model: &'a str,
    /// Requests with the same number should meet again: they are of one conversation, or begin alike.
    pub(crate) affinity: Option<u64>,
}

/// How an attempt has ended, for policies that learn from it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Whether an answer came to its end.
    pub(crate) complete: bool,
    /// From the begin of the attempt to its end.
    pub(crate) lasted: Duration,
    /// Tokens of the answer, as far as the engine told.
    pub(crate) tokens: Option<u64>,
}

/// A balancing policy.
pub(crate) trait Balancer: Send + Sync + fmt::Debug {
    /// The index of the candidate to use; `candidates` are ordered by session and never empty.
    fn pick(&self, candidates: &[Arc<Candidate>], request: Hints<'_>) -> usize;

    /// An attempt on `candidate` begins. Called by [`InFlight`] only.
    fn on_request_start(&self, candidate: &Candidate) {
        let _ = candidate;
    }

    /// That attempt has ended, however. Called by [`InFlight`] only.
    fn on_request_end(&self, candidate: &Candidate, outcome: Outcome) {
        let _ = (candidate, outcome);
    }
}

/// One of each policy, for as long as the ingress runs.
#[derive(Debug)]
pub(crate) struct Balancers(Vec<(Policy, Arc<dyn Balancer>)>);

impl Default for Balancers {
    fn default() -> Self {
        let of = |policy: Policy| -> Arc<dyn Balancer> {
            match policy {
                Policy::Random => Arc::new(random::Random),
                Policy::RoundRobin => Arc::new(round_robin::RoundRobin::default()),
                Policy::Weighted => Arc::new(weighted::Weighted::default()),
                Policy::LeastLoaded => Arc::new(least_loaded::LeastLoaded),
                Policy::P2c => Arc::new(p2c::P2c),
                Policy::Affinity => Arc::new(affinity::Affinity),
            }
        };
        Self(Policy::ALL.into_iter().map(|policy| (policy, of(policy))).collect())
    }
}

impl Balancers {
    pub(crate) fn of(&self, policy: Policy) -> &Arc<dyn Balancer> {
        let found = self.0.iter().find(|(of, _)| *of == policy);
        &found.expect("there is one of each").1
    }
}

/// One attempt in flight: the only caller of the hooks. It lives in the answer's body, so that an attempt ends
/// exactly when its last byte has gone or its client has.
#[derive(Debug)]
pub(crate) struct InFlight {
    balancer: Arc<dyn Balancer>,
    candidate: Arc<Candidate>,
    begun: Instant,
    outcome: Outcome,
    span: Span,
    /// How it ended, in a word; what is said last counts.
    how: Mutex<&'static str>,
    // In this order: who is called looks whether there is room.
    _count: InFlightCount,
    _frees: Frees,
}

/// Calls those who wait for a place.
#[derive(Debug)]
struct Frees(Arc<Queues>);

impl Drop for Frees {
    fn drop(&mut self) {
        self.0.look_again();
    }
}

impl InFlight {
    pub(crate) fn start(
        balancer: Arc<dyn Balancer>,
        candidate: Arc<Candidate>,
        count: InFlightCount,
        queues: Arc<Queues>,
        span: Span,
    ) -> Self {
        balancer.on_request_start(&candidate);
        if span.is_recorded() {
            span.set("otela.node", candidate.name().to_str().unwrap_or_default().to_owned());
        }
        // Whoever drops an attempt and says nothing has given it up: its client has gone, or another one was faster.
        let (begun, outcome, how) = (Instant::now(), Outcome::default(), Mutex::new("cancelled"));
        Self { balancer, candidate, begun, outcome, span, how, _count: count, _frees: Frees(queues) }
    }

    /// The candidate that it is on.
    pub(crate) fn candidate(&self) -> &Arc<Candidate> {
        &self.candidate
    }

    /// What is told of it to whoever collects traces.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// How it has ended, or that its answer has begun, for whoever collects traces.
    pub(crate) fn ended(&self, how: &'static str) {
        *self.how.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    /// The answer has come to its end.
    pub(crate) fn is_complete(&mut self, tokens: Option<u64>) {
        self.outcome = Outcome { complete: true, tokens, ..self.outcome };
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let outcome = Outcome { lasted: self.begun.elapsed(), ..self.outcome };
        self.balancer.on_request_end(&self.candidate, outcome);
        self.span.set("otela.outcome", *self.how.get_mut().unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests;
