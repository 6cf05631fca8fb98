//! How fast models are answered here: for how long a request will run, and when a place will be free.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The newest answer counts for this much of the mean.
const NEWEST: f64 = 0.1;
/// Names come from the registry, so there are only ever so many; should there be more, all begin anew.
const MODELS_MAX: usize = 4_096;
/// A request is expected to run for at most this much longer than the mean, in mean deviations.
const DEVIATIONS: f64 = 3.0;
/// What is expected of a model of which nothing is known.
const UNKNOWN: Duration = Duration::from_secs(10);

/// The pace of each model.
#[derive(Debug, Default)]
pub(crate) struct Paces(Mutex<HashMap<String, Pace>>);

#[derive(Debug, Clone, Copy)]
struct Pace {
    seconds: Mean,
    seconds_per_token: Option<Mean>,
    /// Between two ends.
    gap: Option<Mean>,
    last_end: Instant,
}

/// A moving mean and the mean deviation from it.
#[derive(Debug, Clone, Copy)]
struct Mean {
    mean: f64,
    deviation: f64,
}

impl Mean {
    fn new(first: f64) -> Self {
        Self { mean: first, deviation: first / 2.0 }
    }

    fn add(&mut self, value: f64) {
        let off = value - self.mean;
        self.mean += off * NEWEST;
        self.deviation += (off.abs() - self.deviation) * NEWEST;
    }

    fn upper(&self) -> f64 {
        self.mean + DEVIATIONS * self.deviation
    }
}

impl Paces {
    /// A request for `model` has ended after `lasted`, with so many tokens as far as that is known.
    pub(crate) fn ended(&self, model: &str, lasted: Duration, tokens: Option<u64>) {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, seconds) = (Instant::now(), lasted.as_secs_f64());
        if paces.len() >= MODELS_MAX && !paces.contains_key(model) {
            paces.clear();
        }
        // No answer has as many tokens as a float cannot count.
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        let per_token = tokens.filter(|tokens| *tokens > 0).map(|tokens| seconds / tokens as f64);
        match paces.get_mut(model) {
            None => {
                let seconds_per_token = per_token.map(Mean::new);
                let pace = Pace { seconds: Mean::new(seconds), seconds_per_token, gap: None, last_end: now };
                paces.insert(model.to_owned(), pace);
            }
            Some(pace) => {
                pace.seconds.add(seconds);
                add(&mut pace.seconds_per_token, per_token);
                add(&mut pace.gap, Some((now - pace.last_end).as_secs_f64()));
                pace.last_end = now;
            }
        }
    }

    /// For how long a request for `model` may well run, if it may have so many tokens.
    pub(crate) fn expected(&self, model: &str, max_tokens: Option<u64>) -> Duration {
        let paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pace) = paces.get(model) else { return UNKNOWN };
        #[expect(clippy::cast_precision_loss, reason = "no answer is so long")]
        let at_most = max_tokens.zip(pace.seconds_per_token).map(|(tokens, each)| tokens as f64 * each.upper());
        // Most answers are shorter than they may be.
        let usual = pace.seconds.upper();
        seconds(at_most.map_or(usual, |most| most.min(usual)))
    }

    /// How long it will take until `waiting` requests for `model` have found a place.
    pub(crate) fn until_free(&self, model: &str, waiting: usize) -> Duration {
        let paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gap = paces.get(model).and_then(|pace| pace.gap).map_or(1.0, |gap| gap.mean);
        #[expect(clippy::cast_precision_loss, reason = "no queue is so long")]
        let wait = gap * (waiting + 1) as f64;
        seconds(wait).clamp(Duration::from_secs(1), Duration::from_mins(2))
    }
}

fn add(mean: &mut Option<Mean>, value: Option<f64>) {
    match (mean, value) {
        (Some(mean), Some(value)) => mean.add(value),
        (mean @ None, Some(value)) => *mean = Some(Mean::new(value)),
        (_, None) => {}
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_hours(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_measured_is_expected() {
        let paces = Paces::default();
        assert_eq!(paces.expected("m", None), UNKNOWN);
        for _ in 0..200 {
            tokio::time::advance(Duration::from_millis(500)).await;
            paces.ended("m", Duration::from_secs(10), Some(1_000));
        }
        let near = |is: Duration, seconds: f64| (is.as_secs_f64() - seconds).abs() < 0.1;
        assert!(near(paces.expected("m", None), 10.0), "{:?}", paces.expected("m", None));
        assert!(near(paces.expected("m", Some(100)), 1.0), "short ones are through sooner");
        assert!(near(paces.expected("m", Some(1_000_000)), 10.0), "few use all that they may");
        assert!(near(paces.until_free("m", 9), 5.0), "{:?}", paces.until_free("m", 9));
        assert_eq!(paces.until_free("m", 0), Duration::from_secs(1));
        assert_eq!(paces.until_free("other", 3), Duration::from_secs(4));
    }
}
