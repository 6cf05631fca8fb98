//! What is remembered of a request until it has ended, however it ends: one line in the access log, the metrics, and
//! `Server-Timing` for those who ask.
//!
//! The account begins with the request and travels with it: through the stages of [`crate::forward`], then in the body of
//! its answer. Whoever drops it before the end has lost the client.

use crate::{
    balance::InFlight,
    candidate::Candidate,
    forward::App,
    metrics::{End, IngressMetrics},
    request::Inference,
    stream::Usage,
};
use axum::body::Body;
use http::{Method, Request, StatusCode};
use otela_node::{peer::Path, telemetry::trace::Span};
use std::{fmt::Write as _, sync::Arc, time::Duration};
use tokio::time::Instant;

/// As much of a path as is told.
const PATH_CHARS_MAX: usize = 256;

/// One attempt on a node.
#[derive(Debug, Clone)]
pub(crate) struct Tried {
    on: Arc<Candidate>,
    /// `ok`, or why it failed.
    how: &'static str,
    lasted: Duration,
}

/// Where the time of a request went.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stages {
    /// Reading and checking it.
    pub(crate) read: Duration,
    /// Finding candidates.
    pub(crate) lookup: Duration,
    /// Waiting for a place.
    pub(crate) queue: Duration,
    /// From sending it to the head of the answer, in the last attempt.
    pub(crate) exchange: Duration,
    /// What of that the node says was its own, and its engine's.
    pub(crate) node: Option<NodeStages>,
}

/// What a node tells of its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeStages {
    /// The node's agent.
    pub(crate) agent: Duration,
    /// Until the engine's first byte.
    pub(crate) engine: Duration,
}

/// The account of one request.
#[derive(Debug)]
pub(crate) struct Account {
    app: Arc<App>,
    id: Arc<str>,
    /// The client's own name for it.
    client_id: Option<String>,
    method: Method,
    path: String,
    /// What was asked for, if the mesh knows it: anything else would let clients write the labels.
    model: Option<Arc<str>>,
    begun: Instant,
    first_byte: Option<Duration>,
    pub(crate) stages: Stages,
    tried: Vec<Tried>,
    route: Option<Path>,
    pub(crate) status: Option<StatusCode>,
    end: Option<End>,
    pub(crate) usage: Option<Usage>,
    /// Tokens of the answer as far as they were seen, where the engine does not account for them.
    pub(crate) seen_tokens: Option<u64>,
    pub(crate) bytes_in: usize,
    pub(crate) bytes_out: u64,
    pub(crate) resumed: u32,
    in_flight: Option<InFlight>,
    span: Span,
}

impl Account {
    /// A request has come.
    pub(crate) fn new(app: &Arc<App>, id: Arc<str>, client_id: Option<String>, request: &Request<Body>) -> Self {
        app.metrics.in_flight.inc();
        let (method, path) = (request.method().clone(), request.uri().path().chars().take(PATH_CHARS_MAX).collect());
        let span = app.traces.received("otela.request", request.headers());
        Self {
            app: Arc::clone(app),
            id,
            client_id,
            method,
            path,
            model: None,
            begun: Instant::now(),
            first_byte: None,
            stages: Stages::default(),
            tried: Vec::new(),
            route: None,
            status: None,
            end: None,
            usage: None,
            seen_tokens: None,
            bytes_in: 0,
            bytes_out: 0,
            resumed: 0,
            in_flight: None,
            span,
        }
    }

    /// What is told of it to whoever collects traces.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn id(&self) -> &Arc<str> {
        &self.id
    }

    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }

    pub(crate) fn metrics(&self) -> &IngressMetrics {
        &self.app.metrics
    }

    /// The way that the answer takes.
    pub(crate) fn route(&self) -> Option<Path> {
        self.route
    }

    /// It has been read.
    pub(crate) fn is_read(&mut self, request: &Inference) {
        self.stages.read = self.begun.elapsed();
        self.bytes_in = request.body.len();
    }

    /// It is for something that the mesh knows.
    pub(crate) fn is_for(&mut self, name: &str) {
        if self.model.as_deref() != Some(name) {
            self.model = Some(name.into());
        }
    }

    /// An attempt has ended, or its answer has begun.
    pub(crate) fn tried(&mut self, in_flight: &InFlight, how: &'static str, lasted: Duration) {
        in_flight.ended(how);
        self.tried.push(Tried { on: Arc::clone(in_flight.candidate()), how, lasted });
    }

    /// Who had the request last.
    pub(crate) fn last_tried(&self) -> Option<&Candidate> {
        self.tried.last().map(|tried| &*tried.on)
    }

    /// The answer has begun, over `path`; `in_flight` ends with it.
    pub(crate) fn answered_by(&mut self, in_flight: InFlight, path: Path) {
        in_flight.span().set("otela.path", path.name());
        self.route = Some(path);
        self.in_flight = Some(in_flight);
        self.first_byte.get_or_insert(self.begun.elapsed());
    }

    /// The attempt that the answer comes from.
    pub(crate) fn in_flight(&self) -> Option<&InFlight> {
        self.in_flight.as_ref()
    }

    /// The engine is let go of; the answer is continued elsewhere, or has ended.
    pub(crate) fn let_go(&mut self) -> Option<InFlight> {
        self.in_flight.take()
    }

    /// How it ended; what is said first counts.
    pub(crate) fn ended(&mut self, end: End) {
        self.end.get_or_insert(end);
        let tokens = self.tokens();
        if end == End::Complete
            && let Some(in_flight) = &mut self.in_flight
        {
            in_flight.is_complete(tokens);
        }
    }

    fn tokens(&self) -> Option<u64> {
        self.usage.map(|usage| usage.completion_tokens).or(self.seen_tokens)
    }

    /// The client is sent an error of ours.
    pub(crate) fn refused(&mut self, end: End, status: StatusCode, code: &'static str) {
        self.status = Some(status);
        self.app.metrics.refused(code);
        self.ended(end);
    }

    /// `Server-Timing` (OpenTela section 7.1 and Fig. 5): the stages of the way to the first byte, in milliseconds. The two
    /// hops are half each of what neither side accounts for.
    pub(crate) fn server_timing(&self) -> String {
        let stages = &self.stages;
        let node = stages.node.unwrap_or(NodeStages { agent: Duration::ZERO, engine: Duration::ZERO });
        let hops = stages.exchange.saturating_sub(node.agent + node.engine);
        let accounted = stages.read + stages.lookup + stages.queue + stages.exchange;
        let rest = self.begun.elapsed().saturating_sub(accounted);
        let mut text = String::new();
        for (name, lasted) in [
            ("ingress", stages.read + rest),
            ("lookup", stages.lookup),
            ("queue", stages.queue),
            ("forward", hops / 2),
            ("engine", node.engine),
            ("return", hops / 2),
            ("others", node.agent),
        ] {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{name};dur={:.3}", lasted.as_secs_f64() * 1e3);
        }
        text
    }

    /// The same for whoever collects traces. Names of models that nobody has are a client's own words, and not told.
    fn trace(&self, end: End) {
        let span = &self.span;
        if !span.is_recorded() {
            return;
        }
        span.set("http.request.method", self.method.to_string());
        span.set("url.path", self.path.clone());
        span.set("otela.request.id", self.id.to_string());
        span.set("otela.end", end.name());
        if let Some(status) = self.status {
            span.set("http.response.status_code", i64::from(status.as_u16()));
        }
        if let Some(model) = &self.model {
            span.set("gen_ai.request.model", model.to_string());
        }
        if let Some(usage) = self.usage {
            let tokens = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
            span.set("gen_ai.usage.input_tokens", tokens(usage.prompt_tokens));
            span.set("gen_ai.usage.output_tokens", tokens(usage.completion_tokens));
        }
        if matches!(end, End::Failed | End::BrokeOff) {
            span.failed(end.name());
        }
        span.end();
    }

    fn line(&self, end: End) {
        let attempts = self.tried.iter().fold(String::new(), |mut line, tried| {
            let comma = if line.is_empty() { "" } else { "," };
            let node = tried.on.name().to_str().unwrap_or_default();
            let _ = write!(line, "{comma}{node}:{}:{}ms", tried.how, tried.lasted.as_millis());
            line
        });
        tracing::info!(
            target: "otela::access",
            request = %self.id,
            client_request = self.client_id.as_deref(),
            method = %self.method,
            path = self.path,
            model = self.model.as_deref(),
            status = self.status.map(|status| status.as_u16()),
            end = end.name(),
            first_byte_ms = self.first_byte.map(ms),
            queue_ms = ms(self.stages.queue),
            total_ms = ms(self.begun.elapsed()),
            bytes_in = self.bytes_in,
            bytes_out = self.bytes_out,
            prompt_tokens = self.usage.map(|usage| usage.prompt_tokens),
            completion_tokens = self.usage.map(|usage| usage.completion_tokens),
            via = self.route.map(Path::name),
            resumed = self.resumed,
            attempts,
            "request"
        );
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for Account {
    fn drop(&mut self) {
        let metrics = &self.app.metrics;
        metrics.in_flight.dec();
        // Whoever is cut off because the ingress ends has not gone by itself.
        let is_over = self.app.closing.is_cancelled() || self.app.tasks.stopped_token().is_cancelled();
        let cut_off = if is_over { End::Failed } else { End::ClientGone };
        let end = self.end.unwrap_or(cut_off);
        let lasted = self.begun.elapsed();
        metrics.ended(end, lasted, self.first_byte);
        if let (Some(model), End::Complete) = (&self.model, end) {
            self.app.paces.ended(model, lasted.saturating_sub(self.stages.queue), self.tokens());
        }
        if let Some(model) = &self.model {
            metrics.request_for(model);
        }
        if let Some(usage) = self.usage {
            metrics.tokens(self.model.as_deref(), usage);
        }
        self.line(end);
        self.trace(end);
    }
}
