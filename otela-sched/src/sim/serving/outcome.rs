//! What has come of a simulation, request by request and in all.

use super::Served;
use serde::Serialize;

/// Everything that was served, and what was not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Requests that came.
    pub arrived: usize,
    /// Those that have their answers, in no particular order.
    pub served: Vec<Served>,
    /// Longer than the replica's room.
    pub too_long: usize,
    /// Failed with their replica.
    pub failed: usize,
    /// Nobody was there for them till the end.
    pub unserved: usize,
    /// Seconds in which each replica has worked.
    pub busy_seconds: Vec<f64>,
    /// Sequences that each replica worked on times the seconds that it did, in each part of time, to the last part in which
    /// it worked.
    pub work_parts: Vec<Vec<f64>>,
}

/// What a request may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    /// To its first token, in seconds.
    pub ttft_seconds: f64,
    /// Between two tokens on average, in seconds.
    pub itl_seconds: f64,
}

/// A distribution. Percentiles are the smallest value that so many are not above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// Half are not above it.
    pub p50: f64,
    /// 95 of 100 are not.
    pub p95: f64,
    /// 99 of 100 are not.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of these values, in any order; all 0 if there are none.
    pub fn of(mut values: Vec<f64>) -> Self {
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        values.sort_unstable_by(f64::total_cmp);
        let count = values.len();
        let rank = |percent: usize| values[(count * percent).div_ceil(100).saturating_sub(1).min(last)];
        #[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
        let mean = values.iter().sum::<f64>() / count as f64;
        Self { mean, p50: rank(50), p95: rank(95), p99: rank(99), max: values[last] }
    }
}

/// All in a few numbers. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Requests that have their answers.
    pub served: usize,
    /// Requests that came and have none.
    pub not_served: usize,
    /// From the first request to the last token.
    pub span_seconds: f64,
    /// Requests with their answers in each second of the span.
    pub requests_per_second: f64,
    /// Tokens of answers in each second of the span.
    pub tokens_per_second: f64,
    /// Times to first token.
    pub ttft: Spread,
    /// Mean times between two tokens of a request, of those that have two.
    pub itl: Spread,
    /// Times from request to last token.
    pub latency: Spread,
    /// Requests within the objective in each second of the span, if there is one.
    pub goodput_per_second: Option<f64>,
    /// Of all that came, the share within the objective, if there is one.
    pub attained_ratio: Option<f64>,
    /// Times that keys and values had to be computed again.
    pub restarts: u64,
}

impl Outcome {
    /// All in a few numbers.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
    pub fn summary(&self, slo: Option<Slo>) -> Summary {
        let served = &self.served;
        let of = |value: fn(&Served) -> f64| Spread::of(served.iter().map(value).collect());
        let first = served.iter().map(|served| served.arrived).fold(f64::INFINITY, f64::min);
        let last = served.iter().map(|served| served.last).fold(0.0, f64::max);
        let span = if served.is_empty() { 0.0 } else { last - first };
        let rate = |count: f64| if span > 0.0 { count / span } else { 0.0 };
        let within = |slo: Slo| {
            let keeps = |served: &&Served| {
                served.ttft_seconds() <= slo.ttft_seconds
                    && served.itl_seconds().is_none_or(|itl| itl <= slo.itl_seconds)
            };
            served.iter().filter(keeps).count() as f64
        };
        Summary {
            served: served.len(),
            not_served: self.arrived - served.len(),
            span_seconds: span,
            requests_per_second: rate(served.len() as f64),
            tokens_per_second: rate(served.iter().map(|served| f64::from(served.answer)).sum()),
            ttft: of(Served::ttft_seconds),
            itl: Spread::of(served.iter().filter_map(Served::itl_seconds).collect()),
            latency: of(Served::latency_seconds),
            goodput_per_second: slo.map(|slo| rate(within(slo))),
            attained_ratio: slo.map(|slo| within(slo) / (self.arrived.max(1)) as f64),
            restarts: served.iter().map(|served| u64::from(served.restarts)).sum(),
        }
    }
}
