//! The HTTP surface: one file per endpoint, and what they share.

mod chat;
mod completions;
mod embeddings;
mod error;
mod generate;
mod listing;
mod parameters;
mod responses;
mod template;
mod tokenize;

use super::{Sim, connection::Call};
use axum::{
    Extension, Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, post},
};
use error::ApiError;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// A prompt of a million tokens fits ten times; a stream of anything else has an end.
const BODY_BYTES_MAX: usize = 64 << 20;

pub(super) fn router(sim: Arc<Sim>) -> Router {
    Router::new()
        .route("/v1/chat/completions", posts("/v1/chat/completions", chat::answer))
        .route("/v1/completions", posts("/v1/completions", completions::answer))
        .route("/v1/embeddings", posts("/v1/embeddings", embeddings::answer))
        .route("/v1/responses", posts("/v1/responses", responses::answer))
        .route("/v1/models", get(listing::models))
        .route("/tokenize", posts("/tokenize", tokenize::tokenize))
        .route("/detokenize", posts("/detokenize", tokenize::detokenize))
        .route("/health", get(listing::health))
        .route("/ping", get(listing::health).post(listing::health))
        .route("/version", get(listing::version))
        .route("/metrics", get(listing::metrics))
        .fallback(|| async { detail(StatusCode::NOT_FOUND, "Not Found") })
        .method_not_allowed_fallback(|| async { detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed") })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(sim)
}

/// The shape in which vLLM's web framework answers for routes that do not exist.
fn detail(status: StatusCode, text: &str) -> Response {
    (status, Json(json!({ "detail": text }))).into_response()
}

/// A POST as its handler sees it.
struct Posted {
    sim: Arc<Sim>,
    call: Call,
    body: Bytes,
    received: Arc<Received>,
}

impl Posted {
    /// The body as JSON.
    fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|error| ApiError::malformed(&error))
    }
}

/// Counts a request whose answer was given up before its end as aborted by its client.
#[derive(Debug)]
struct Received {
    sim: Arc<Sim>,
    route: &'static str,
    done: AtomicBool,
}

impl Received {
    fn new(sim: &Arc<Sim>, route: &'static str) -> Self {
        sim.meters.received(route);
        Self { sim: Arc::clone(sim), route, done: AtomicBool::new(false) }
    }

    /// The engine has done its part, well or badly.
    fn done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    fn refused(&self) {
        self.sim.meters.refused(self.route);
        self.done();
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if !*self.done.get_mut() {
            self.sim.meters.aborted(self.route);
        }
    }
}

/// A route for JSON requests.
fn posts<A, F>(route: &'static str, answer: A) -> MethodRouter<Arc<Sim>>
where
    A: Fn(Posted) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response, ApiError>> + Send,
{
    post(move |State(sim): State<Arc<Sim>>, Extension(call): Extension<Call>, headers: HeaderMap, body| async move {
        let received = Arc::new(Received::new(&sim, route));
        let posted = |body| Posted { sim, call, body, received: Arc::clone(&received) };
        let answered = match json_body(&headers, body) {
            Ok(body) => answer(posted(body)).await,
            Err(error) => Err(error),
        };
        answered.unwrap_or_else(|error| {
            received.refused();
            error.into_response()
        })
    })
}

fn json_body(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Err(ApiError::validation("the Content-Type must be application/json", None));
    }
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLargeError",
            format!("the request's body is larger than {BODY_BYTES_MAX} bytes"),
        ),
        _ => ApiError::bad(rejection.body_text(), None),
    })
}
