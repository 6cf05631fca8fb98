//! At random, in proportion to how fast a replica is: by its accelerators' class until its own answers have been
//! measured, by the measurement from then on.

use super::{Balancer, Hints, Outcome};
use crate::candidate::Candidate;
use otela_proto::{id::Session, registry::Replica};
use rand::RngExt;
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

/// A measurement counts for this much of the next mean.
const NEWEST: f64 = 0.1;
/// Fewer answers than this say little.
const ENOUGH: u32 = 8;
/// Answers of fewer tokens say more of the prompt than of the speed.
const TOKENS_MIN: u64 = 8;
/// What a slow replica is still given, of the fastest one's weight, so that it can show that it has become faster.
const LEAST: f64 = 0.02;
const SESSIONS_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Weighted(RwLock<HashMap<Session, Speed>>);

/// Tokens per second of a session's answers.
#[derive(Debug, Clone, Copy)]
struct Speed {
    mean: f64,
    answers: u32,
}

impl Balancer for Weighted {
    fn pick(&self, candidates: &[Arc<Candidate>], _request: Hints<'_>) -> usize {
        let weights = self.weights(candidates);
        let all: f64 = weights.iter().sum();
        let mut at = rand::rng().random_range(0.0..1.0) * all;
        for (index, weight) in weights.iter().enumerate() {
            at -= weight;
            if at < 0.0 {
                return index;
            }
        }
        candidates.len() - 1
    }

    fn on_request_end(&self, candidate: &Candidate, outcome: Outcome) {
        let Some(tokens) = outcome.tokens.filter(|tokens| outcome.complete && *tokens >= TOKENS_MIN) else { return };
        let seconds = outcome.lasted.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        // No answer has as many tokens as a float cannot count.
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        let measured = tokens as f64 / seconds;
        let mut speeds = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if speeds.len() >= SESSIONS_MAX {
            // Of sessions that have ended, for the most part; the living are measured again soon.
            speeds.clear();
        }
        let speed = speeds.entry(candidate.session()).or_insert(Speed { mean: measured, answers: 0 });
        speed.mean += (measured - speed.mean) * NEWEST;
        speed.answers = speed.answers.saturating_add(1);
    }
}

impl Weighted {
    /// In tokens per second where somebody has been measured; those who have not are placed among them by class.
    fn weights(&self, candidates: &[Arc<Candidate>]) -> Vec<f64> {
        let speeds = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let measured = |candidate: &Candidate| {
            speeds.get(&candidate.session()).filter(|speed| speed.answers >= ENOUGH).map(|speed| speed.mean)
        };
        let classes: Vec<f64> = candidates.iter().map(|candidate| class(candidate.replica())).collect();
        // How many tokens per second a unit of class has turned out to be.
        let (mut sum, mut units) = (0.0, 0.0);
        for (candidate, class) in candidates.iter().zip(&classes) {
            if let Some(speed) = measured(candidate) {
                sum += speed;
                units += class;
            }
        }
        let unit = if units > 0.0 { sum / units } else { 1.0 };
        let mut weights: Vec<f64> = candidates
            .iter()
            .zip(&classes)
            .map(|(candidate, class)| measured(candidate).unwrap_or(class * unit))
            .collect();
        let least = weights.iter().copied().fold(0.0, f64::max) * LEAST;
        weights.iter_mut().for_each(|weight| *weight = weight.max(least));
        weights
    }
}

/// Memory bandwidth in TB/s, by which decoding goes, from the makers' data sheets. The first that a kind begins with.
const BANDWIDTHS: [(&str, f64); 22] = [
    ("GB200", 8.0),
    ("B200", 8.0),
    ("B100", 8.0),
    ("GH200", 4.0),
    ("H200", 4.8),
    ("H100-NVL", 3.9),
    ("H100-PCIe", 2.0),
    ("H100", 3.35),
    ("H20", 4.0),
    ("A100-40GB", 1.56),
    ("A100", 2.04),
    ("A800", 2.04),
    ("V100", 0.9),
    ("L40S", 0.86),
    ("L40", 0.86),
    ("A40", 0.7),
    ("A10", 0.6),
    ("L4", 0.3),
    ("T4", 0.32),
    ("MI300X", 5.3),
    ("MI250", 3.2),
    ("MI210", 1.6),
];
/// What is not in the table.
const UNKNOWN: f64 = 0.5;

/// The class of a replica: the bandwidth of all of its node's accelerators together.
fn class(replica: &Replica) -> f64 {
    let payload = replica.entry().payload();
    let accelerators = payload.hardware.as_ref().map(|hardware| &hardware.accelerators[..]).unwrap_or_default();
    let one = |kind: &str| {
        let is_of = |name: &str| kind.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
        BANDWIDTHS.iter().find(|(name, _)| is_of(name)).map_or(UNKNOWN, |(_, bandwidth)| *bandwidth)
    };
    let all: f64 = accelerators.iter().map(|a| one(&a.kind) * f64::from(a.count.max(1))).sum();
    if all > 0.0 { all } else { UNKNOWN }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::tests::{candidate, candidates};
    use otela_proto::payload::Accelerator;
    use std::time::Duration;

    fn with(kind: &str, count: u32) -> impl FnOnce(&mut otela_proto::payload::Payload) {
        let accelerator = Accelerator { kind: kind.into(), name: kind.into(), count, memory_bytes: 1 };
        move |payload| payload.hardware.get_or_insert_default().accelerators = vec![accelerator]
    }

    #[test]
    fn classes_are_those_of_the_data_sheets() {
        let class = |kind, count| class(candidate(1, with(kind, count)).replica());
        assert!(class("H100-80GB", 1) > class("A100-80GB", 1) && class("A100-80GB", 1) > class("A100-40GB", 1));
        assert!((class("a100-80gb", 4) - 4.0 * 2.04).abs() < 1e-9);
        assert!((class("something", 1) - UNKNOWN).abs() < 1e-9 && (class("something", 0) - UNKNOWN).abs() < 1e-9);
    }

    #[test]
    fn classes_count_until_answers_were_measured() {
        let policy = Weighted::default();
        let fleet = [candidate(1, with("A100-80GB", 1)), candidate(2, with("H200", 1))];
        let mut fleet: Vec<_> = fleet.into_iter().map(Arc::new).collect();
        fleet.sort_by_key(|candidate| candidate.session());
        let share = |policy: &Weighted| {
            let hints = Hints { model: "m", affinity: None };
            let first = |_: &usize| policy.pick(&fleet, hints) == 0;
            (0..20_000).filter(first).count() as f64 / 20_000.0
        };
        let expected = class(fleet[0].replica()) / (2.04 + 4.8);
        assert!((share(&policy) - expected).abs() < 0.02, "{} {expected}", share(&policy));
        // The first turns out to be three times as fast as the second, whatever their names.
        for (at, tokens) in [(0, 300), (1, 100)] {
            for _ in 0..ENOUGH {
                let lasted = Duration::from_secs(1);
                policy.on_request_end(&fleet[at], Outcome { complete: true, lasted, tokens: Some(tokens) });
                policy.on_request_end(&fleet[at], Outcome { complete: false, lasted, tokens: Some(9_999) });
                policy.on_request_end(&fleet[at], Outcome { complete: true, lasted, tokens: None });
            }
        }
        assert!((share(&policy) - 0.75).abs() < 0.02, "{}", share(&policy));
    }

    #[test]
    fn the_slowest_is_not_forgotten() {
        let policy = Weighted::default();
        let fleet = candidates(2);
        for (at, tokens) in [(0, 100_000), (1, 10)] {
            for _ in 0..ENOUGH {
                let outcome = Outcome { complete: true, lasted: Duration::from_secs(1), tokens: Some(tokens) };
                policy.on_request_end(&fleet[at], outcome);
            }
        }
        let weights = policy.weights(&fleet);
        assert!((weights[1] / weights[0] - LEAST).abs() < 1e-9);
    }
}
