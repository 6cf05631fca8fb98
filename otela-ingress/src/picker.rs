//! Picks a replica as an ingress does, without a mesh: the same filters and policies over any view of a registry, for
//! simulators and benchmarks.

use crate::{
    balance::{Balancers, Hints, InFlight, Policy},
    candidate::{Candidates, NoCandidate, Selector, Wanted},
    forward::fit,
    pace::Paces,
    place::{self, Lasts, Needs},
    queue::Queues,
    require::{InvalidRequirement, Requirements},
    trust::{InvalidTrust, Trusted},
};
use otela_node::telemetry::trace::Span;
use otela_proto::{PeerId, registry::View};
use std::sync::Arc;

/// What of a request decides where it goes.
#[derive(Debug, Clone)]
pub struct Ask {
    wanted: Wanted,
    selector: Selector,
    policy: Policy,
    affinity: Option<u64>,
    max_tokens: Option<u64>,
    in_flight_max: u32,
}

/// Filters that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFilter {
    /// The list of trusted providers.
    #[error("trusted providers: {0}")]
    Trust(String),
    /// The requirements.
    #[error("requirements: {0}")]
    Require(String),
}

impl From<InvalidTrust> for InvalidFilter {
    fn from(error: InvalidTrust) -> Self {
        Self::Trust(error.to_string())
    }
}

impl From<InvalidRequirement> for InvalidFilter {
    fn from(error: InvalidRequirement) -> Self {
        Self::Require(error.to_string())
    }
}

impl Ask {
    /// A request for `model`, for which `policy` picks among all replicas that have room for as many requests at once as
    /// is usual.
    #[must_use]
    pub fn new(model: &str, policy: Policy) -> Self {
        Self {
            wanted: Wanted { model: Some(model.to_owned()), ..Wanted::default() },
            selector: Selector::default(),
            policy,
            affinity: None,
            max_tokens: None,
            in_flight_max: crate::defaults::IN_FLIGHT_MAX,
        }
    }

    /// Only nodes of these providers, as in `X-Otela-Trusted-Providers`.
    ///
    /// # Errors
    /// It is not a list of providers' ids.
    pub fn trusting(mut self, providers: &str) -> Result<Self, InvalidFilter> {
        self.selector.trusted = Some(Trusted::of(providers.split(','))?);
        Ok(self)
    }

    /// Only nodes that meet these, as in `X-Otela-Require`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn requiring(mut self, requirements: &str) -> Result<Self, InvalidFilter> {
        self.selector.require = requirements.parse::<Requirements>()?;
        Ok(self)
    }

    /// Requests with the same number should meet again.
    #[must_use]
    pub fn affinity(mut self, number: u64) -> Self {
        self.affinity = Some(number);
        self
    }

    /// Tokens that the answer may have: allocations that end sooner than that takes are passed over.
    #[must_use]
    pub fn max_tokens(mut self, tokens: u64) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// Most requests in flight on one replica.
    #[must_use]
    pub fn in_flight_max(mut self, most: u32) -> Self {
        self.in_flight_max = most;
        self
    }
}

/// Why there is no replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotPicked {
    /// Nobody is ready, trusted and able.
    #[error("no replica may be picked")]
    NoCandidate,
    /// All that may be picked are full.
    #[error("all replicas are full")]
    Full,
}

/// One ingress' share of the state that policies work with: load, standing, pace.
#[derive(Debug, Default)]
pub struct Picker {
    candidates: Candidates,
    balancers: Balancers,
    paces: Paces,
    queues: Arc<Queues>,
}

/// A request in flight on the replica that was picked; it ends when this is dropped.
#[derive(Debug)]
pub struct Picked(InFlight);

impl Picker {
    /// Picks a replica in `view` for `ask`, at this time of the wall clock, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`NotPicked`].
    pub fn pick(&self, view: &Arc<View>, ask: &Ask, unix_ms: u64) -> Result<Picked, NotPicked> {
        let no_candidate = |_: NoCandidate| NotPicked::NoCandidate;
        let pool = self.candidates.of_view(view, &ask.wanted, || true).map_err(no_candidate)?;
        let candidates = fit(&pool, &ask.selector).map_err(no_candidate)?;
        let model = ask.wanted.name();
        let balancer = self.balancers.of(ask.policy);
        let needs = Needs {
            balancer,
            hints: Hints { model, affinity: ask.affinity },
            in_flight_max: ask.in_flight_max,
            lasts: Lasts { paces: &self.paces, model, max_tokens: ask.max_tokens },
            unix_ms,
        };
        let (candidate, count) = place::take(&candidates, &[], &needs).map_err(|_| NotPicked::Full)?;
        Ok(Picked(InFlight::start(Arc::clone(balancer), candidate, count, Arc::clone(&self.queues), Span::default())))
    }
}

impl Picked {
    /// The node that the replica is on.
    #[must_use]
    pub fn node(&self) -> PeerId {
        self.0.candidate().node()
    }

    /// Ends it with a whole answer of so many tokens, as far as that is known.
    pub fn complete(mut self, tokens: Option<u64>) {
        self.0.is_complete(tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::tests::{entry, view_of};

    #[test]
    fn filters_and_room_hold_as_they_do_for_requests() {
        let region = |name: &'static str| {
            move |payload: &mut otela_proto::payload::Payload| {
                payload.labels.insert("region".into(), name.into());
            }
        };
        let view = view_of(&[entry(1, region("ch")), entry(2, region("de"))], 1);
        let picker = Picker::default();
        let ask = Ask::new("m", Policy::LeastLoaded).in_flight_max(2);
        let held: Vec<_> = (0..4).map(|_| picker.pick(&view, &ask, 0).unwrap()).collect();
        let of = |node| held.iter().filter(|picked| picked.node() == node).count();
        assert_eq!(of(held[0].node()), 2, "one as many as the other");
        assert_eq!(picker.pick(&view, &ask, 0).err(), Some(NotPicked::Full));
        drop(held);
        let swiss = ask.clone().requiring("region=ch").unwrap();
        let first = picker.pick(&view, &swiss, 0).unwrap().node();
        assert!((0..10).all(|_| picker.pick(&view, &swiss, 0).unwrap().node() == first));
        let french = ask.clone().requiring("region=fr").unwrap();
        assert_eq!(picker.pick(&view, &french, 0).err(), Some(NotPicked::NoCandidate));
        let unknown = Ask::new("other", Policy::Random);
        assert_eq!(picker.pick(&view, &unknown, 0).err(), Some(NotPicked::NoCandidate));
        assert!(ask.trusting("nobody").is_err_and(|error| error.to_string().contains("nobody")));
    }
}
