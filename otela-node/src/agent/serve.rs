//! The far half of a request: from the mesh to the engine on this host.
//!
//! The path is checked against the list of inference routes here as well, whatever the ingress did. An answer of our
//! own says whether the engine has seen the request, so that the ingress knows what a second try may cost.

mod answering;
mod body;

use super::{
    assigned::{Orders, Refused},
    operate::Operations,
    pulse::Pulse,
};
use crate::{
    engine::Client,
    http1::{RequestBody, SendError},
    peer::{hop, tunnel::Caller},
    telemetry::{
        Metrics, chain,
        trace::{Span, Traces},
    },
};
use answering::Answering;
use arc_swap::ArcSwapOption;
use body::{Running, ServedBody, whole_or_stream};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, service::Service};
use otela_proto::{
    anthropic,
    assignment::{DIRECTIVE_BYTES_MAX, DIRECTIVE_PATH, Invalid},
    engine_path,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use serde_json::{Value, json};
use std::{convert::Infallible, future::Future, pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

const NOT_DELIVERED: HeaderName = HeaderName::from_static("x-otela-not-delivered");
/// How many requests are in the engine's hands, from whatever ingress.
const LOAD: HeaderName = HeaderName::from_static("x-otela-load");
/// Asks for [`NODE_TIMING`].
const TIMING: HeaderName = HeaderName::from_static("x-otela-timing");
/// Microseconds of the agent, and of the engine until the head of its answer.
const NODE_TIMING: HeaderName = HeaderName::from_static("x-otela-node-timing");
/// The ingress's name for a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Whoever is answered here has this connection's ear, and what was sent on it before has arrived.
const HEALTH: &str = "/health";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// What the agent counts of requests.
#[derive(Debug, Clone, Default)]
struct Counters {
    requests: Counter,
    refused: Family<Reason, Counter>,
    in_flight: Gauge,
}

/// What an answer of our own has to know of the request.
#[derive(Debug)]
struct Asked {
    is_anthropic: bool,
    id: Option<HeaderValue>,
}

impl Asked {
    fn of<B>(request: &Request<B>) -> Self {
        let is_anthropic = anthropic::is_spoken_at(request.uri().path());
        Self { is_anthropic, id: request.headers().get(REQUEST_ID).cloned() }
    }
}

/// The door to the engine: closed until it is ready, and again while draining or when it has ended.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: ArcSwapOption<Open>,
    opening: Opening,
    traces: Traces,
    orders: Arc<Orders>,
    operations: Operations,
    in_flight: watch::Sender<usize>,
    counters: Counters,
}

/// An engine behind the open door.
#[derive(Debug, Clone)]
pub(super) struct Open {
    /// The way to it.
    pub(super) client: Arc<Client>,
    /// What its answers tell of it.
    pub(super) pulse: Pulse,
}

/// Who besides clients is let in.
#[derive(Debug, Clone)]
pub(super) struct Others {
    /// Schedulers, with orders.
    pub(super) orders: Arc<Orders>,
    /// Operators.
    pub(super) operations: Operations,
}

/// How far the door opens.
#[derive(Debug, Clone, Default)]
pub(super) struct Opening {
    /// Most requests in the engine's hands at once; as many as come, if 0.
    pub(super) in_flight_max: u32,
    /// Paths that are reachable beyond the inference routes.
    pub(super) paths: Vec<String>,
}

impl Gate {
    /// A closed door. What passes it is seen in `traces`; what `others` want is for the node itself.
    pub(super) fn new(
        metrics: &Metrics,
        opening: Opening,
        traces: Traces,
        (others, in_flight): (Others, watch::Sender<usize>),
    ) -> Self {
        let counters = Counters::default();
        metrics.register(|r| {
            r.register("otela_agent_requests", "Requests handed to the engine", counters.requests.clone());
            let refused = counters.refused.clone();
            r.register("otela_agent_requests_refused", "Requests that did not reach the engine, by reason", refused);
            r.register("otela_agent_in_flight", "Requests in the engine's hands", counters.in_flight.clone());
        });
        let Others { orders, operations } = others;
        let engine = ArcSwapOption::empty();
        let shared = Shared { engine, opening, traces, orders, operations, in_flight, counters };
        Self { shared: Arc::new(shared) }
    }

    /// Opens it to a ready engine.
    pub(super) fn open(&self, engine: Open) {
        self.shared.engine.store(Some(Arc::new(engine)));
    }

    /// Closes it: new requests are refused, running ones finish.
    pub(super) fn close(&self) {
        self.shared.engine.store(None);
    }

    /// Resolves when no request is running.
    pub(super) async fn idle(&self) {
        // The sender lives as long as `self`.
        let _ = self.shared.in_flight.subscribe().wait_for(|running| *running == 0).await;
    }

    async fn handle(self, request: Request<Incoming>) -> Response<ServedBody> {
        let begun = Instant::now();
        let path = request.uri().path();
        if path == HEALTH {
            return Response::new(ServedBody::Own(Full::default()));
        }
        if path == DIRECTIVE_PATH {
            return self.take_order(request).await;
        }
        if Operations::is_one(path) {
            let caller = request.extensions().get::<Caller>().map(|caller| caller.0);
            let (head, _) = request.into_parts();
            return self.shared.operations.answer(caller, &head).map(ServedBody::Own);
        }
        if !engine_path::is_inference(path) && !engine_path::is_opened(path, &self.shared.opening.paths) {
            let message = "This route is not reachable through the mesh.";
            return self.refuse(&Asked::of(&request), StatusCode::NOT_FOUND, "unknown_url", message);
        }
        let span = self.shared.traces.received("otela.node", request.headers());
        let response = self.pass(request, &span, begun).await;
        span.set("http.response.status_code", i64::from(response.status().as_u16()));
        response
    }

    /// Takes a scheduler's order, or says why not.
    async fn take_order(&self, request: Request<Incoming>) -> Response<ServedBody> {
        let body = Limited::new(request.into_body(), DIRECTIVE_BYTES_MAX).collect().await;
        // What is too long need not be read to its end.
        let taken = body
            .map_err(|_| Refused::from(Invalid::TooLarge))
            .and_then(|body| self.shared.orders.take(&body.to_bytes()));
        let (status, said) = match taken {
            Ok(()) => (StatusCode::ACCEPTED, json!({"taken": true})),
            Err(why) => (why.status(), json!({"taken": false, "reason": why.reason(), "message": why.to_string()})),
        };
        let mut response = Response::new(ServedBody::Own(Full::new(Bytes::from(said.to_string()))));
        *response.status_mut() = status;
        response
    }

    /// Hands a request to the engine, if it may pass.
    async fn pass(&self, request: Request<Incoming>, span: &Span, begun: Instant) -> Response<ServedBody> {
        let asked = Asked::of(&request);
        let Some(engine) = self.shared.engine.load_full() else {
            return self.refuse(&asked, StatusCode::SERVICE_UNAVAILABLE, "not_ready", "The engine is not ready.");
        };
        let Some(running) = Running::new(&self.shared) else {
            let message = "The node has as many requests as it takes.";
            let mut full = self.refuse(&asked, StatusCode::SERVICE_UNAVAILABLE, "full", message);
            full.headers_mut().insert(NOT_DELIVERED, HeaderValue::from_static("full"));
            return full;
        };
        let (mut head, body) = request.into_parts();
        let wants_timing = head.headers.remove(TIMING).is_some();
        head.extensions.clear();
        hop::strip(&mut head.headers);
        let body = match whole_or_stream(body).await {
            Ok(body) => body,
            Err(error) => {
                // The caller has gone; nobody reads this.
                tracing::debug!(%error, "request body broke off");
                let message = "The request's body broke off.";
                return self.refuse(&asked, StatusCode::BAD_REQUEST, "body_broke_off", message);
            }
        };
        if matches!(body, RequestBody::Whole(_)) {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        let (sent, asking) = (Instant::now(), span.asking("otela.engine"));
        asking.name_in(&mut head.headers);
        let asked_model = engine_path::is_for_a_model(head.uri.path()).then(|| engine.pulse.asked());
        match engine.client.send(head, body).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let message = "The engine changed protocols.";
                let mut response = self.refuse(&asked, StatusCode::BAD_GATEWAY, "engine_broke_off", message);
                response.headers_mut().remove(NOT_DELIVERED);
                response
            }
            Ok(mut response) => {
                // Framing is ours: an engine of HTTP/1.0 ends its answers by closing, which looks like breaking off.
                *response.version_mut() = Version::HTTP_11;
                hop::strip(response.headers_mut());
                response.headers_mut().remove(NOT_DELIVERED);
                response.headers_mut().insert(LOAD, HeaderValue::from(running.all()));
                if wants_timing {
                    let engine = sent.elapsed();
                    tell_timing(response.headers_mut(), begun.elapsed().saturating_sub(engine), engine);
                }
                asking.set("http.response.status_code", i64::from(response.status().as_u16()));
                let spans = [asking, span.clone()];
                let (head, body) = response.into_parts();
                let held = (running, Answering::new(asked_model, &head));
                Response::from_parts(head, ServedBody::Engine { body, held, spans, broken: None })
            }
            Err(error) => {
                // An engine that breaks off is not silent.
                asked_model.into_iter().for_each(|mut asked| asked.failed());
                for span in [&asking, span] {
                    span.failed("engine");
                }
                self.engine_failed(&asked, &error)
            }
        }
    }

    fn engine_failed(&self, asked: &Asked, error: &SendError) -> Response<ServedBody> {
        tracing::warn!(error = chain(error), "the engine did not answer");
        match error {
            SendError::Busy => {
                let message = "The engine has too many requests.";
                self.refuse(asked, StatusCode::SERVICE_UNAVAILABLE, "engine_busy", message)
            }
            error if !error.delivered() => {
                let message = "The engine cannot be reached.";
                self.refuse(asked, StatusCode::SERVICE_UNAVAILABLE, "engine_unreachable", message)
            }
            _ => {
                let message = "The engine broke off before it answered.";
                let mut response = self.refuse(asked, StatusCode::BAD_GATEWAY, "engine_broke_off", message);
                response.headers_mut().remove(NOT_DELIVERED);
                response
            }
        }
    }

    /// An answer of our own; the engine has not seen the request.
    fn refuse(&self, asked: &Asked, status: StatusCode, reason: &'static str, message: &str) -> Response<ServedBody> {
        self.shared.counters.refused.get_or_create(&Reason { reason }).inc();
        let body = Bytes::from(own_error(asked, status, reason, message).to_string());
        let mut response = Response::new(ServedBody::Own(Full::new(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(NOT_DELIVERED, HeaderValue::from_static("1"));
        headers.insert(LOAD, HeaderValue::from(*self.shared.in_flight.borrow()));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl Service<Request<Incoming>> for Gate {
    type Response = Response<ServedBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let gate = self.clone();
        Box::pin(async move { Ok(gate.handle(request).await) })
    }
}

/// An error of our own, in the words of the endpoint.
fn own_error(asked: &Asked, status: StatusCode, reason: &str, message: &str) -> Value {
    let id = asked.id.as_ref().and_then(|id| id.to_str().ok());
    if asked.is_anthropic {
        let error = json!({"type": anthropic::error_type(status.as_u16()), "message": message, "code": reason});
        return json!({"type": "error", "error": error, "request_id": id});
    }
    let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
    json!({"error": {"message": message, "type": kind, "param": null, "code": reason, "request_id": id}})
}

fn tell_timing(headers: &mut HeaderMap, agent: Duration, engine: Duration) {
    let text = format!("{} {}", agent.as_micros(), engine.as_micros());
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(NODE_TIMING, value);
    }
}

#[cfg(test)]
mod tests;
