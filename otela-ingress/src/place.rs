//! A place on a candidate: the policy picks, and whoever has no room, has failed, asks for a pause, or ends too soon is
//! passed over.

use crate::{
    balance::{Balancer, Hints},
    candidate::Candidate,
    forward::App,
    pace::Paces,
    request::Inference,
    standing::InFlightCount,
};
use otela_proto::id::Session;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// What a request needs of a place.
#[derive(Debug)]
pub(crate) struct Needs<'a> {
    pub(crate) balancer: &'a Arc<dyn Balancer>,
    pub(crate) hints: Hints<'a>,
    /// Most requests in flight on one session, from here.
    pub(crate) in_flight_max: u32,
    /// For how long it may run: the pace of its model here, and the tokens that it may have.
    pub(crate) lasts: Lasts<'a>,
    /// The wall clock, in milliseconds since the Unix epoch; allocations end by it.
    pub(crate) unix_ms: u64,
}

impl<'a> Needs<'a> {
    /// Those of a request, now.
    pub(crate) fn of(app: &'a App, request: &'a Inference) -> Self {
        let unix_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis());
        Self {
            balancer: app.balancers.of(request.policy),
            hints: request.hints(),
            in_flight_max: request.settings.in_flight_max,
            lasts: Lasts { paces: &app.paces, model: request.wanted.name(), max_tokens: request.scan.max_tokens() },
            unix_ms: u64::try_from(unix_ms).unwrap_or(u64::MAX),
        }
    }
}

/// What is known of how long a request will run. Looked up only where an allocation ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lasts<'a> {
    pub(crate) paces: &'a Paces,
    pub(crate) model: &'a str,
    pub(crate) max_tokens: Option<u64>,
}

impl Lasts<'_> {
    fn expected(&self) -> Duration {
        self.paces.expected(self.model, self.max_tokens)
    }
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Every candidate has been tried.
    Tried,
    /// Those that were not tried are full; the first that has said so may be asked again after this time.
    Full(Option<Duration>),
}

/// What speaks against a candidate now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Against {
    Nothing,
    /// Its allocation ends before the request is likely to.
    EndsSoon,
    /// It has asked for a pause.
    Paused,
    Full,
    Ejected,
}

impl Needs<'_> {
    fn against(&self, candidate: &Candidate) -> Against {
        let standing = candidate.standing();
        if standing.health.is_ejected() {
            Against::Ejected
        } else if standing.load.is_full() || standing.load.in_flight() >= self.most(candidate) {
            Against::Full
        } else if standing.load.asks_for_pause() {
            Against::Paused
        } else if candidate.ends_in(self.unix_ms).is_some_and(|left| left < self.lasts.expected()) {
            Against::EndsSoon
        } else {
            Against::Nothing
        }
    }

    /// Most requests on this candidate: what is configured here, or less if its node says so.
    fn most(&self, candidate: &Candidate) -> u32 {
        match candidate.replica().service().in_flight_max {
            0 => self.in_flight_max,
            told => told.min(self.in_flight_max),
        }
    }

    fn take(&self, candidate: &Arc<Candidate>) -> Option<(Arc<Candidate>, InFlightCount)> {
        let count = InFlightCount::take(candidate.standing(), self.most(candidate))?;
        Some((Arc::clone(candidate), count))
    }

    fn pick(&self, among: &[Arc<Candidate>]) -> Option<(Arc<Candidate>, InFlightCount)> {
        self.take(&among[self.balancer.pick(among, self.hints)])
    }
}

/// Takes a place on one of `candidates` that is not among those `tried`.
pub(crate) fn take(
    candidates: &[Arc<Candidate>],
    tried: &[Session],
    needs: &Needs<'_>,
) -> Result<(Arc<Candidate>, InFlightCount), NoPlace> {
    // Nearly always nothing speaks against whoever is picked.
    if tried.is_empty() {
        let picked = &candidates[needs.balancer.pick(candidates, needs.hints)];
        if needs.against(picked) == Against::Nothing
            && let Some(place) = needs.take(picked)
        {
            return Ok(place);
        }
    }
    let untried: Vec<_> = candidates.iter().filter(|candidate| !tried.contains(&candidate.session())).collect();
    let standing: Vec<_> = untried.iter().map(|candidate| needs.against(candidate)).collect();
    let those = |against: Against| -> Vec<_> {
        untried
            .iter()
            .zip(&standing)
            .filter(|(_, is)| **is == against)
            .map(|(candidate, _)| Arc::clone(candidate))
            .collect()
    };
    let open = those(Against::Nothing);
    if !open.is_empty()
        && let Some(place) = needs.pick(&open)
    {
        return Ok(place);
    }
    // Rather a node that ends soon than none: if the answer is not through by then, it is continued elsewhere.
    let ending = those(Against::EndsSoon);
    if let Some(place) =
        ending.iter().max_by_key(|candidate| candidate.ends_in(needs.unix_ms)).and_then(|c| needs.take(c))
    {
        return Ok(place);
    }
    if untried.is_empty() {
        return Err(NoPlace::Tried);
    }
    // If the others ask for a pause or have failed of late, one of them is tried all the same: it knows best.
    if !standing.contains(&Against::Full) {
        let paused = those(Against::Paused);
        let rest = if paused.is_empty() { those(Against::Ejected) } else { paused };
        if !rest.is_empty()
            && let Some(place) = needs.pick(&rest)
        {
            return Ok(place);
        }
    }
    Err(NoPlace::Full(untried.iter().filter_map(|candidate| candidate.standing().load.full_for()).min()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        balance::{Balancers, Policy},
        candidate::tests::{candidate, candidates},
        standing::Strike,
    };

    const NOW: u64 = 1_000_000;

    fn place(
        fleet: &[Arc<Candidate>],
        tried: &[Session],
        most: u32,
    ) -> Result<(Arc<Candidate>, InFlightCount), NoPlace> {
        let balancers = Balancers::default();
        let hints = Hints { model: "m", affinity: None };
        let balancer = balancers.of(Policy::Random);
        let lasts = Lasts { paces: &Paces::default(), model: "m", max_tokens: None };
        take(fleet, tried, &Needs { balancer, hints, in_flight_max: most, lasts, unix_ms: NOW })
    }

    fn eject(candidate: &Candidate) {
        while !candidate.standing().health.failed(Strike::Failed) {}
    }

    #[test]
    fn the_full_are_passed_over_until_all_are() {
        let fleet = candidates(3);
        let held: Vec<_> = (0..6).map(|_| place(&fleet, &[], 2).unwrap()).collect();
        assert!(fleet.iter().all(|candidate| candidate.standing().load.in_flight() == 2));
        assert_eq!(place(&fleet, &[], 2).err(), Some(NoPlace::Full(None)));
        drop(held);
        assert!(place(&fleet, &[], 2).is_ok());
    }

    #[test]
    fn a_node_may_say_that_it_takes_less() {
        let fleet = [Arc::new(candidate(1, |payload| payload.services[0].in_flight_max = 1))];
        let _held = place(&fleet, &[], 5).unwrap();
        assert_eq!(place(&fleet, &[], 5).err(), Some(NoPlace::Full(None)));
    }

    #[test]
    fn nobody_is_tried_twice() {
        let fleet = candidates(3);
        let mut tried = Vec::new();
        for _ in 0..3 {
            tried.push(place(&fleet, &tried, 9).unwrap().0.session());
        }
        tried.sort();
        assert_eq!(tried, fleet.iter().map(|candidate| candidate.session()).collect::<Vec<_>>());
        assert_eq!(place(&fleet, &tried, 9).err(), Some(NoPlace::Tried));
    }

    #[test]
    fn p37_the_ejected_get_nothing_unless_there_is_nobody_else() {
        let fleet = candidates(3);
        eject(&fleet[0]);
        eject(&fleet[1]);
        for _ in 0..50 {
            assert_eq!(place(&fleet, &[], 9).unwrap().0.session(), fleet[2].session());
        }
        let _held = place(&fleet, &[], 1).unwrap();
        assert_eq!(place(&fleet, &[], 1).err(), Some(NoPlace::Full(None)), "waiting is better than them");
        eject(&fleet[2]);
        assert!(place(&fleet, &[], 9).is_ok());
    }

    #[test]
    fn p18_who_asks_for_a_pause_gets_it() {
        let fleet = candidates(2);
        fleet[0].standing().load.pauses_for(Duration::from_secs(30));
        for _ in 0..20 {
            assert_eq!(place(&fleet, &[], 9).unwrap().0.session(), fleet[1].session());
        }
        fleet[1].standing().load.pauses_for(Duration::from_secs(5));
        assert!(place(&fleet, &[], 9).is_ok(), "if all do, one of them is asked: it may have changed its mind");
    }

    #[test]
    fn who_says_that_it_is_full_is_waited_for() {
        let fleet = candidates(2);
        fleet[0].standing().load.pauses_for(Duration::from_hours(10));
        fleet[1].standing().load.is_full_for(Duration::from_hours(5));
        let Err(NoPlace::Full(Some(wait))) = place(&fleet, &[], 9) else { panic!("one is full") };
        assert!(wait <= Duration::from_hours(5) && wait > Duration::from_hours(4));
    }

    #[test]
    fn p57_requests_do_not_go_where_they_cannot_finish() {
        let ending =
            |n, seconds: u64| Arc::new(candidate(n, move |payload| payload.ends_at_ms = Some(NOW + seconds * 1_000)));
        let (soon, later, last) = (ending(1, 3), ending(2, 8), ending(3, 60));
        for _ in 0..20 {
            let fleet = [Arc::clone(&soon), Arc::clone(&last), Arc::clone(&later)];
            assert_eq!(place(&fleet, &[], 9).unwrap().0.session(), last.session());
            let fleet = [Arc::clone(&soon), Arc::clone(&later)];
            assert_eq!(place(&fleet, &[], 9).unwrap().0.session(), later.session(), "the best that there is");
        }
    }
}
