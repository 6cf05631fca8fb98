//! What is counted of those who look.

use crate::telemetry::Metrics;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

/// Counters of the read-only HTTP surface.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) watchers: Gauge,
    pub(super) watchers_refused: Counter,
}

impl Counters {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let counters = Self::default();
        let Self { watchers, watchers_refused } = counters.clone();
        metrics.register(|r| {
            r.register("otela_observe_watchers", "Clients that watch the registry", watchers);
            r.register(
                "otela_observe_watchers_refused",
                "Watchers refused because there were too many",
                watchers_refused,
            );
        });
        counters
    }
}
