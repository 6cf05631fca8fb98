//! Requests with the same key go to the same replica. Rendezvous hashing: every candidate has a score for the key, the
//! best one is taken, and a node that comes or goes moves only the keys that are its own. Nothing in it depends on this
//! process, so every ingress of whatever version makes the same choice.
//!
//! Bounded loads: a candidate with more than its share of the load is passed over, and the next score is taken.

use super::{Balancer, Hints, p2c::P2c};
use crate::candidate::Candidate;
use std::sync::Arc;

/// How much more than the mean load a candidate may have.
const SHARE_MAX: f64 = 1.25;

#[derive(Debug)]
pub(super) struct Affinity;

impl Balancer for Affinity {
    fn pick(&self, candidates: &[Arc<Candidate>], request: Hints<'_>) -> usize {
        // What belongs to nothing evens out what does.
        let Some(key) = request.affinity else { return P2c.pick(candidates, request) };
        let best = |bound: f64| {
            let within = candidates.iter().enumerate().filter(|(_, candidate)| candidate.load() <= bound);
            within.max_by_key(|(_, candidate)| score(key, candidate.tag())).map(|(index, _)| index)
        };
        let first = best(f64::INFINITY).unwrap_or_default();
        if candidates[first].load() < 1.0 {
            // Whoever has nothing to do is within every bound.
            return first;
        }
        let all: f64 = candidates.iter().map(|candidate| candidate.load()).sum();
        // With this request in it, and never below one request each.
        #[expect(clippy::cast_precision_loss, reason = "no fleet is so large")]
        let bound = (SHARE_MAX * (all + 1.0) / candidates.len() as f64).ceil() - 1.0;
        best(bound.max(0.0)).unwrap_or(first)
    }
}

/// A good mix of both: the finaliser of SplitMix64.
fn score(key: u64, tag: u64) -> u64 {
    let mut mixed = key ^ tag;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{candidate::tests::candidates, standing::InFlightCount};

    fn pick(fleet: &[Arc<Candidate>], key: u64) -> usize {
        Affinity.pick(fleet, Hints { model: "m", affinity: Some(key) })
    }

    #[test]
    fn keys_spread_and_stay_where_they_are() {
        let fleet = candidates(10);
        let homes: Vec<_> = (0..10_000_u64).map(|key| fleet[pick(&fleet, key * 7_919)].session()).collect();
        for candidate in &fleet {
            let here = homes.iter().filter(|home| **home == candidate.session()).count();
            assert!((850..1150).contains(&here), "{here}");
        }
        // One leaves: only its own keys move.
        let fewer: Vec<_> = fleet.iter().filter(|c| c.session() != fleet[3].session()).cloned().collect();
        for (key, home) in homes.iter().enumerate() {
            let now = fewer[pick(&fewer, key as u64 * 7_919)].session();
            assert!(now == *home || *home == fleet[3].session());
        }
    }

    #[test]
    fn what_every_ingress_chooses_is_fixed() {
        // From the format of a score alone; if this changes, ingresses of two versions disagree.
        assert_eq!(score(1, 2), score(3, 0));
        assert_eq!(score(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321), 0xb3e4_db88_3478_5cb6);
    }

    #[test]
    fn nobody_has_much_more_than_its_share() {
        let fleet = candidates(4);
        // All of one conversation: it may not stay on one replica.
        let held: Vec<_> = (0..100)
            .map(|_| {
                let at = pick(&fleet, 42);
                InFlightCount::take(fleet[at].standing(), u32::MAX).unwrap()
            })
            .collect();
        for candidate in &fleet {
            let here = candidate.standing().load.in_flight();
            assert!(f64::from(here) <= SHARE_MAX * 25.0 + 1.0, "{here}");
        }
        drop(held);
        assert_eq!(fleet[pick(&fleet, 42)].session(), fleet[pick(&fleet, 42)].session());
    }
}
