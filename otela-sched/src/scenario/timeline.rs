//! How a scenario went over time.

use crate::sim::serving::{Outcome, Spread};
use serde::Serialize;

/// Parts of a timeline.
const PARTS: usize = 60;

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
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let part = end / PARTS as f64;
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
