use super::*;

use crate::candidate::tests::candidates;
use std::collections::BTreeMap;

fn spread(policy: Policy, fleet: &[Arc<Candidate>], picks: usize) -> Vec<usize> {
    let balancers = Balancers::default();
    let balancer = balancers.of(policy);
    let mut counts = vec![0; fleet.len()];
    for key in 0..picks {
        counts[balancer.pick(fleet, Hints { model: "m", affinity: Some(key as u64 * 0x9e37_79b9) })] += 1;
    }
    counts
}

#[test]
fn names_lead_to_policies_and_back() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        assert!(policy.about().len() > 80);
    }
    let error = "fastest".parse::<Policy>().unwrap_err().to_string();
    assert!(error.contains("fastest") && Policy::ALL.iter().all(|policy| error.contains(policy.name())), "{error}");
}

#[test]
fn every_policy_uses_every_replica() {
    let fleet = candidates(8);
    for policy in Policy::ALL {
        let counts = spread(policy, &fleet, 8_000);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{policy}: {counts:?}");
    }
}

#[test]
fn turns_are_strict_and_each_model_has_its_own() {
    let fleet = candidates(3);
    let balancers = Balancers::default();
    let turn = |model| balancers.of(Policy::RoundRobin).pick(&fleet, Hints { model, affinity: None });
    let turns: Vec<_> = (0..6).map(|_| (turn("a"), turn("b"))).collect();
    assert_eq!(turns, [(0, 0), (1, 1), (2, 2), (0, 0), (1, 1), (2, 2)]);
    // One is missing for a while: the others go on where they were.
    let without: Vec<_> = [&fleet[0], &fleet[2]].into_iter().cloned().collect();
    let policy = balancers.of(Policy::RoundRobin);
    let next = |fleet: &[Arc<Candidate>]| policy.pick(fleet, Hints { model: "a", affinity: None });
    assert_eq!((next(&without), next(&without), next(&fleet)), (0, 1, 0));
}

#[test]
fn the_busy_are_avoided_by_those_who_look() {
    let fleet = candidates(4);
    let _held: Vec<_> = (0..3).map(|at| InFlightCount::take(fleet[at].standing(), 9).unwrap()).collect();
    assert_eq!(spread(Policy::LeastLoaded, &fleet, 100), [0, 0, 0, 100]);
    let two = spread(Policy::P2c, &fleet, 4_000);
    assert!((1_850..2_150).contains(&two[3]), "half of all draws have it: {two:?}");
}

#[test]
fn p34_guards_call_the_hooks_exactly_once() {
    #[derive(Debug, Default)]
    struct Counting(std::sync::Mutex<BTreeMap<&'static str, usize>>);
    impl Balancer for Counting {
        fn pick(&self, _: &[Arc<Candidate>], _: Hints<'_>) -> usize {
            0
        }
        fn on_request_start(&self, _: &Candidate) {
            *self.0.lock().unwrap().entry("start").or_default() += 1;
        }
        fn on_request_end(&self, _: &Candidate, outcome: Outcome) {
            let how = if outcome.complete { "complete" } else { "not" };
            *self.0.lock().unwrap().entry(how).or_default() += 1;
        }
    }
    let (policy, fleet) = (Arc::new(Counting::default()), candidates(1));
    let start = || {
        let count = InFlightCount::take(fleet[0].standing(), 9).unwrap();
        InFlight::start(policy.clone(), fleet[0].clone(), count, Arc::default(), Span::default())
    };
    let (mut whole, dropped) = (start(), start());
    assert_eq!(fleet[0].standing().load.in_flight(), 2);
    whole.is_complete(Some(3));
    drop((whole, dropped));
    assert_eq!(fleet[0].standing().load.in_flight(), 0);
    assert_eq!(*policy.0.lock().unwrap(), BTreeMap::from([("start", 2), ("complete", 1), ("not", 1)]));
}
