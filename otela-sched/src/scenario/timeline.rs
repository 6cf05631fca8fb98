//! How a scenario went over time.

use crate::sim::serving::{Outcome, Spread};
use serde::Serialize;

/// Parts of a timeline.
const PARTS: usize = 60;

/// How long a part of a timeline is that ends at `end`, in seconds.
pub(super) fn part_seconds(end: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let parts = PARTS as f64;
    end / parts
}

/// Sequences that a replica worked on, on average over the time in which replicas were there, in each part until `end`; none
/// where nobody was there. Replicas are sequences times seconds, from when on they were there, and until when.
pub(super) fn running(replicas: &[(&[f64], f64, f64)], end: f64) -> Vec<Option<f64>> {
    let part = part_seconds(end);
    let mean = |nth: usize| {
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let begin = nth as f64 * part;
        let (mut worked, mut there) = (0.0, 0.0);
        for (parts, from, until) in replicas {
            worked += parts.get(nth).copied().unwrap_or(0.0);
            there += (until.min(begin + part) - from.max(begin)).max(0.0);
        }
        // A step that has begun ends, though its replica is lost meanwhile: too little time says nothing.
        (there > 0.01 * part).then(|| worked / there)
    };
    (0..PARTS).map(mean).collect()
}

/// A part of the time. Requests count where they came.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moment {
    /// When it begins, in seconds.
    pub from: f64,
    /// Requests a second that came and were served later.
    pub requests_per_second: f64,
    /// Median latency of these, in seconds; none where nobody came.
    pub latency_p50: Option<f64>,
    /// What 95 of 100 of them did not exceed.
    pub latency_p95: Option<f64>,
    /// The same of their times to first token.
    pub ttft_p95: Option<f64>,
    /// Requests under way at its beginning.
    pub under_way: usize,
}

/// The time until `end`, when the last request has come, in equal parts.
pub(super) fn timeline(outcome: &Outcome, end: f64) -> Vec<Moment> {
    let part = part_seconds(end);
    let mut parts: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); PARTS];
    let mut changes = vec![0_i64; PARTS + 1];
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and cut")]
    let place = |at: f64| ((at / part) as usize).min(PARTS);
    for served in &outcome.served {
        let (came, went) = (place(served.arrived).min(PARTS - 1), place(served.last));
        parts[came].0.push(served.latency_seconds());
        parts[came].1.push(served.ttft_seconds());
        // It is under way at the beginnings of all parts after the one in which it came.
        changes[(came + 1).min(PARTS)] += 1;
        changes[(went + 1).min(PARTS)] -= 1;
    }
    let mut under_way = 0;
    let moments = parts.into_iter().enumerate().map(|(nth, (latencies, ttfts))| {
        under_way += changes[nth];
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let (from, count) = (nth as f64 * part, latencies.len() as f64);
        let (latency, ttft) = (Spread::of(latencies), Spread::of(ttfts));
        let of = |value: f64| (count > 0.0).then_some(value);
        Moment {
            from,
            requests_per_second: count / part,
            latency_p50: of(latency.p50),
            latency_p95: of(latency.p95),
            ttft_p95: of(ttft.p95),
            under_way: usize::try_from(under_way).unwrap_or(0),
        }
    });
    moments.collect()
}
