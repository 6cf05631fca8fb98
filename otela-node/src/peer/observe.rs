//! Read-only HTTP for observers: health, metrics, and the registry, answered from this peer's own replica.
//!
//! Nothing here changes state, and nothing calls another node. What an owner said and what we believe of it are
//! shown apart. `legacy` answers in the JSON shape of the Go implementation for tools written against it.

mod counters;
mod filter;
mod history;
mod json;
mod legacy;
mod page;
mod query;
mod status;
mod tag;
mod watch;

use super::Peer;
use crate::{
    tasks::Tasks,
    telemetry::{METRICS_CONTENT_TYPE, Metrics},
};
use axum::{
    Json, Router,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use counters::Counters;
use filter::{ModelFilter, NodeFilter};
use history::History;
use libp2p::PeerId;
use otela_proto::{
    id::peer_id,
    registry::{ModelState, Node},
};
use page::{Paging, SortValue};
use query::{BadParameter, Parameters};
use serde_json::json;
use std::sync::Arc;
use tag::Tags;
pub use tag::tagged;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// What nodes can be sorted by; the first is the rule.
const NODE_KEYS: [&str; 6] = ["id", "lifecycle", "hostname", "gpus", "started_at", "issued_at"];
/// What models can be sorted by; the first is the rule.
const MODEL_KEYS: [&str; 3] = ["id", "ready", "unready"];

/// Whether this process wants to be given work: `Ok`, or the reason why not.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What the routes need.
#[derive(Clone)]
pub(super) struct Observed {
    peer: Peer,
    metrics: Metrics,
    ready: Ready,
    tags: Tags,
    history: Arc<History>,
    places: Arc<Semaphore>,
    counters: Counters,
    ending: CancellationToken,
}

impl Observed {
    fn new(peer: Peer, metrics: Metrics, ready: Ready, ending: CancellationToken) -> Self {
        Self {
            history: Arc::new(History::new(rand::random(), peer.view())),
            counters: Counters::register(&metrics),
            tags: Tags::default(),
            places: Arc::new(Semaphore::new(watch::WATCHERS_MAX)),
            peer,
            metrics,
            ready,
            ending,
        }
    }
}

/// The routes that every peer serves. Watchers are sent home when `ending` is cancelled; everything else is answered
/// at once.
pub fn router(peer: Peer, metrics: Metrics, ready: Ready, ending: CancellationToken) -> Router {
    Router::new()
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .route("/ready", get(readiness))
        .route("/metrics", get(render_metrics))
        .route("/v1/registry/nodes", get(nodes))
        .route("/v1/registry/nodes/{id}", get(node))
        .route("/v1/registry/models", get(models))
        .route("/v1/registry/models/{*id}", get(model))
        .route("/v1/registry/status", get(status))
        .route("/v1/registry/watch", get(watch::watch))
        .route("/v1/dnt/table", get(legacy::table))
        .route("/v1/dnt/bootstraps", get(legacy::bootstraps))
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This route is read-only: GET it.", None)
        })
        .with_state(Observed::new(peer, metrics, ready, ending))
}

/// Serves `routes` on `listener` until the tasks are stopped.
pub fn serve(listener: TcpListener, routes: Router, tasks: &Tasks) {
    tasks.spawn(async move {
        let routes = routes.fallback(async || {
            error(StatusCode::NOT_FOUND, "unknown_url", "There is nothing here: see /v1/registry/nodes.", None)
        });
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "the HTTP listener has ended");
        }
    });
}

async fn readiness(State(observed): State<Observed>) -> Response {
    match (observed.ready)() {
        Ok(()) => Json(json!({"status": "ready"})).into_response(),
        Err(reason) => {
            let body = Json(json!({"status": "not ready", "reason": reason}));
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
        }
    }
}

async fn render_metrics(State(observed): State<Observed>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, METRICS_CONTENT_TYPE)], observed.metrics.render())
}

async fn nodes(State(observed): State<Observed>, uri: Uri, headers: HeaderMap) -> Result<Response, Refused> {
    let known = [&NodeFilter::PARAMETERS[..], &page::PARAMETERS].concat();
    let parameters = Parameters::parse(&uri, &known)?;
    let (filter, paging) = (NodeFilter::parse(&parameters)?, Paging::<PeerId>::parse(&parameters, &NODE_KEYS)?);
    let view = observed.peer.view();
    let wanted = view.nodes().filter(|(_, node)| filter.matches(node));
    let page = paging.page(wanted.map(|(id, node)| (node_key(node, paging.key()), *id, node)).collect());
    let nodes = page.elements.iter().map(|node| json::node(&observed.peer, &node.entry.owner(), node));
    let body = json!({"nodes": nodes.collect::<Vec<_>>(), "total": page.total, "next": page.next});
    Ok(observed.tags.answer(&headers, &body))
}

fn node_key(node: &Node, key: &str) -> SortValue {
    let payload = node.entry.payload();
    let hardware = payload.hardware.as_ref();
    match key {
        "lifecycle" => SortValue::Number(node.entry.rank().lifecycle.number().into()),
        "hostname" => SortValue::Text(hardware.map_or_else(String::new, |hardware| hardware.hostname.clone())),
        "gpus" => {
            let accelerators = hardware.into_iter().flat_map(|hardware| &hardware.accelerators);
            SortValue::Number(accelerators.map(|accelerator| u64::from(accelerator.count)).sum())
        }
        "started_at" => SortValue::Number(payload.started_at_ms),
        "issued_at" => SortValue::Number(node.entry.issued_at_ms()),
        _ => SortValue::Id,
    }
}

async fn node(
    State(observed): State<Observed>,
    uri: Uri,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Refused> {
    Parameters::parse(&uri, &[])?;
    let id = id.ok().and_then(|Path(id)| peer_id(&id).ok()).ok_or(Refused::NotFound("this is not a peer id"))?;
    let view = observed.peer.view();
    // One that is gone is still shown here: the question names it.
    let node = view.node(&id).ok_or(Refused::NotFound("this peer knows no such node"))?;
    Ok(observed.tags.answer(&headers, &json::node(&observed.peer, &id, node)))
}

async fn models(State(observed): State<Observed>, uri: Uri, headers: HeaderMap) -> Result<Response, Refused> {
    let known = [&ModelFilter::PARAMETERS[..], &page::PARAMETERS].concat();
    let parameters = Parameters::parse(&uri, &known)?;
    let (filter, paging) = (ModelFilter::parse(&parameters)?, Paging::<String>::parse(&parameters, &MODEL_KEYS)?);
    let view = observed.peer.view();
    let wanted = filter.select(&view).into_iter();
    let wanted = wanted.map(|(id, state)| (model_key(state, paging.key()), id.to_owned(), (id, state)));
    let page = paging.page(wanted.collect());
    let models: Vec<_> = page.elements.iter().map(|(id, state)| json::model(id, state)).collect();
    let body = json!({"models": models, "total": page.total, "next": page.next});
    Ok(observed.tags.answer(&headers, &body))
}

fn model_key(state: &ModelState, key: &str) -> SortValue {
    match key {
        "ready" => SortValue::Number(state.ready.len() as u64),
        "unready" => SortValue::Number(state.unready as u64),
        _ => SortValue::Id,
    }
}

async fn model(
    State(observed): State<Observed>,
    uri: Uri,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Refused> {
    Parameters::parse(&uri, &[])?;
    let view = observed.peer.view();
    let known = id.ok().and_then(|Path(id)| view.model(&id));
    let (id, state) = known.ok_or(Refused::NotFound("this peer knows no such model"))?;
    Ok(observed.tags.answer(&headers, &json::model(id, state)))
}

async fn status(State(observed): State<Observed>, uri: Uri, headers: HeaderMap) -> Result<Response, Refused> {
    Parameters::parse(&uri, &[])?;
    Ok(observed.tags.answer(&headers, &status::status(&observed)))
}

/// Why a question is not answered.
#[derive(Debug)]
enum Refused {
    NotFound(&'static str),
    Parameter(BadParameter),
    TooManyWatchers,
}

impl From<BadParameter> for Refused {
    fn from(bad: BadParameter) -> Self {
        Self::Parameter(bad)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::NotFound(message) => error(StatusCode::NOT_FOUND, "not_found", message, None),
            Self::Parameter(bad) => {
                error(StatusCode::BAD_REQUEST, "invalid_parameter", &bad.to_string(), Some(&bad.name))
            }
            Self::TooManyWatchers => {
                let message = format!(
                    "{} clients watch already: ask again later, ask another peer, or poll with If-None-Match.",
                    watch::WATCHERS_MAX
                );
                let refusal = error(StatusCode::SERVICE_UNAVAILABLE, "too_many_watchers", &message, None);
                ([(header::RETRY_AFTER, "5")], refusal).into_response()
            }
        }
    }
}

/// An error in the shape that OpenAI's clients know.
fn error(status: StatusCode, code: &str, message: &str, param: Option<&str>) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
        _ => "invalid_request_error",
    };
    let error = json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    (status, Json(error)).into_response()
}

#[cfg(test)]
mod tests;
