//! What an ingress counts. Labels take few values, whatever clients send.

use crate::stream::Usage;
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
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Models that have series of their own; further ones are counted together as `other`.
const MODELS_MAX: usize = 256;
/// What requests for nothing that the mesh knows are counted as.
const OTHER: &str = "other";

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
    pub(crate) const fn name(self) -> &'static str {
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabel {
    model: String,
    kind: &'static str,
}

/// The metrics of an ingress.
#[derive(Debug, Clone)]
pub(crate) struct IngressMetrics {
    requests: Family<EndLabel, Counter>,
    failed_attempts: Family<ReasonLabel, Counter>,
    refused: Family<ReasonLabel, Counter>,
    resumed: Family<ReasonLabel, Counter>,
    tokens: Family<TokenLabel, Counter>,
    model_requests: Family<ModelLabel, Counter>,
    model_answers: Family<ModelLabel, Counter>,
    models: Arc<Mutex<HashSet<String>>>,
    pub(crate) retries: Counter,
    pub(crate) hedges: Counter,
    pub(crate) ejections: Counter,
    pub(crate) error_events: Counter,
    pub(crate) reloads: Counter,
    pub(crate) reloads_refused: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) ejected: Gauge,
    pub(crate) connections: Gauge,
    duration: Histogram,
    first_byte: Histogram,
    pub(crate) queue: Histogram,
}

impl IngressMetrics {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let seconds = |buckets| Histogram::new(exponential_buckets(0.001, 2.0, buckets));
        let m = Self {
            requests: Family::default(),
            failed_attempts: Family::default(),
            refused: Family::default(),
            resumed: Family::default(),
            tokens: Family::default(),
            model_requests: Family::default(),
            model_answers: Family::default(),
            models: Arc::default(),
            retries: Counter::default(),
            hedges: Counter::default(),
            ejections: Counter::default(),
            error_events: Counter::default(),
            reloads: Counter::default(),
            reloads_refused: Counter::default(),
            in_flight: Gauge::default(),
            waiting: Gauge::default(),
            ejected: Gauge::default(),
            connections: Gauge::default(),
            duration: seconds(20),
            first_byte: seconds(18),
            queue: seconds(18),
        };
        metrics.register(|r| {
            let mut counter = |name: &str, help: &str, counter: &Counter| r.register(name, help, counter.clone());
            counter("otela_ingress_retries", "Attempts on a further node", &m.retries);
            counter("otela_ingress_hedges", "Second attempts that raced a first one", &m.hedges);
            counter("otela_ingress_ejections", "Sessions taken out of rotation for failing", &m.ejections);
            counter("otela_ingress_error_events", "Streams with an event that tells of a failure", &m.error_events);
            counter("otela_ingress_reloads", "Settings taken over while it runs", &m.reloads);
            counter("otela_ingress_reloads_refused", "Settings that could not be used", &m.reloads_refused);
            let mut gauge = |name: &str, help: &str, gauge: &Gauge| r.register(name, help, gauge.clone());
            gauge("otela_ingress_in_flight", "Inference requests being worked on", &m.in_flight);
            gauge("otela_ingress_waiting", "Inference requests waiting for a place", &m.waiting);
            gauge("otela_ingress_ejected", "Sessions out of rotation for failing", &m.ejected);
            gauge("otela_ingress_connections", "Open client connections", &m.connections);
            r.register("otela_ingress_requests", "Inference requests, by how they ended", m.requests.clone());
            r.register("otela_ingress_refused", "Requests refused here, by reason", m.refused.clone());
            r.register("otela_ingress_attempts_failed", "Failed attempts, by reason", m.failed_attempts.clone());
            let resumed = m.resumed.clone();
            r.register("otela_ingress_streams_broken", "Streams that broke, by what became of them", resumed);
            r.register("otela_ingress_tokens", "Tokens as engines account for them", m.tokens.clone());
            let requests = m.model_requests.clone();
            r.register("otela_ingress_model_requests", "Requests for models that the mesh knows", requests);
            let answers = m.model_answers.clone();
            r.register("otela_ingress_model_answers", "Answers whose tokens the engine has told", answers);
            r.register("otela_ingress_request_seconds", "From a request's head to its end", m.duration.clone());
            r.register("otela_ingress_first_byte_seconds", "From request to first byte", m.first_byte.clone());
            r.register("otela_ingress_queue_seconds", "Time that requests waited for a place", m.queue.clone());
        });
        m
    }

    pub(crate) fn ended(&self, end: End, lasted: Duration, first_byte: Option<Duration>) {
        self.requests.get_or_create(&EndLabel { end: end.name() }).inc();
        self.duration.observe(lasted.as_secs_f64());
        if let Some(first_byte) = first_byte {
            self.first_byte.observe(first_byte.as_secs_f64());
        }
    }

    pub(crate) fn attempt_failed(&self, reason: &'static str) {
        self.failed_attempts.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// What became of a stream that broke: `continued`, or why it was not.
    pub(crate) fn stream_broke(&self, reason: &'static str) {
        self.resumed.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A request for a model that the mesh knows, answered or not.
    pub(crate) fn request_for(&self, model: &str) {
        self.model_requests.get_or_create(&ModelLabel { model: self.label(model) }).inc();
    }

    pub(crate) fn tokens(&self, model: Option<&str>, usage: Usage) {
        let model = self.label(model.unwrap_or(OTHER));
        self.model_answers.get_or_create(&ModelLabel { model: model.clone() }).inc();
        for (kind, tokens) in [("prompt", usage.prompt_tokens), ("completion", usage.completion_tokens)] {
            self.tokens.get_or_create(&TokenLabel { model: model.clone(), kind }).inc_by(tokens);
        }
    }

    /// The model as a label: itself, as long as there are few.
    fn label(&self, model: &str) -> String {
        let mut known = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(model) {
            if known.len() >= MODELS_MAX || model.len() > 256 {
                return OTHER.to_owned();
            }
            known.insert(model.to_owned());
        }
        model.to_owned()
    }
}
