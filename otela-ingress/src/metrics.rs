//! What an ingress counts. Labels take few values, whatever clients send.

use otela_node::telemetry::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};
use std::time::Duration;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The client was sent all of an answer.
    Complete,
    /// The client was sent an error that is ours or a server's.
    Failed,
    /// The client was told that its request is wrong.
    Rejected,
    /// The answer broke off on its way.
    BrokeOff,
    /// The client went before the end.
    ClientGone,
}

impl End {
    const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::BrokeOff => "broke_off",
            Self::ClientGone => "client_gone",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    end: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// The metrics of an ingress.
#[derive(Debug, Clone)]
pub(crate) struct IngressMetrics {
    requests: Family<EndLabel, Counter>,
    failed_attempts: Family<ReasonLabel, Counter>,
    pub(crate) retries: Counter,
    pub(crate) error_events: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) connections: Gauge,
    duration: Histogram,
    pub(crate) first_byte: Histogram,
}

impl IngressMetrics {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let m = Self {
            requests: Family::default(),
            failed_attempts: Family::default(),
            retries: Counter::default(),
            error_events: Counter::default(),
            in_flight: Gauge::default(),
            connections: Gauge::default(),
            duration: Histogram::new(exponential_buckets(0.001, 2.0, 20)),
            first_byte: Histogram::new(exponential_buckets(0.001, 2.0, 18)),
        };
        metrics.register(|r| {
            r.register("otela_ingress_requests", "Inference requests, by how they ended", m.requests.clone());
            r.register("otela_ingress_attempts_failed", "Failed attempts, by reason", m.failed_attempts.clone());
            r.register("otela_ingress_retries", "Attempts on a further node", m.retries.clone());
            let errors = m.error_events.clone();
            r.register("otela_ingress_error_events", "Streams whose first event is an error", errors);
            r.register("otela_ingress_in_flight", "Inference requests being worked on", m.in_flight.clone());
            r.register("otela_ingress_connections", "Open client connections", m.connections.clone());
            r.register("otela_ingress_answer_seconds", "From an answer's first byte to its last", m.duration.clone());
            r.register("otela_ingress_first_byte_seconds", "From request to first byte", m.first_byte.clone());
        });
        m
    }

    pub(crate) fn ended(&self, end: End, lasted: Duration) {
        self.requests.get_or_create(&EndLabel { end: end.name() }).inc();
        self.duration.observe(lasted.as_secs_f64());
    }

    pub(crate) fn attempt_failed(&self, reason: &'static str) {
        self.failed_attempts.get_or_create(&ReasonLabel { reason }).inc();
    }
}
