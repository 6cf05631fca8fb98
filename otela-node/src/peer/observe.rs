//! Read-only HTTP for observers: health, metrics, and the registry, answered from this peer's own replica.
//!
//! Nothing here changes state, and nothing calls another node. What an owner said and what we believe of it are
//! shown apart. `legacy` answers in the JSON shape of the Go implementation for tools written against it.

mod json;
mod legacy;
mod watch;

use super::Peer;
use crate::{
    tasks::Tasks,
    telemetry::{METRICS_CONTENT_TYPE, Metrics},
};
use axum::{
    Json, Router,
    extract::{Path, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Whether this process wants to be given work: `Ok`, or the reason why not.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What the routes need.
#[derive(Clone)]
pub(super) struct Observed {
    peer: Peer,
    metrics: Metrics,
    ready: Ready,
}

/// The routes that every peer serves.
pub fn router(peer: Peer, metrics: Metrics, ready: Ready) -> Router {
    Router::new()
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .route("/ready", get(readiness))
        .route("/metrics", get(render_metrics))
        .route("/v1/registry/nodes", get(nodes))
        .route("/v1/registry/nodes/{id}", get(node))
        .route("/v1/registry/models", get(models))
        .route("/v1/registry/models/{*id}", get(model))
        .route("/v1/registry/watch", get(watch::watch))
        .route("/v1/dnt/table", get(legacy::table))
        .route("/v1/dnt/bootstraps", get(legacy::bootstraps))
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This route is read-only: GET it.")
        })
        .with_state(Observed { peer, metrics, ready })
}

/// Serves `routes` on `listener` until the tasks are stopped.
pub fn serve(listener: TcpListener, routes: Router, tasks: &Tasks) {
    tasks.spawn(async move {
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

async fn nodes(State(observed): State<Observed>) -> Json<Value> {
    let view = observed.peer.view();
    let listed = view.nodes().filter(|(_, node)| node.is_listed());
    let nodes: Vec<_> = listed.map(|(id, node)| json::node(&observed.peer, id, node)).collect();
    Json(json!({"generation": view.generation, "nodes": nodes}))
}

async fn node(State(observed): State<Observed>, id: Result<Path<String>, PathRejection>) -> Response {
    let Some(id) = id.ok().and_then(|Path(id)| id.parse().ok()) else {
        return not_found("this is not a peer id");
    };
    // One that is gone is still shown here: the question names it.
    match observed.peer.view().node(&id) {
        Some(node) => Json(json::node(&observed.peer, &id, node)).into_response(),
        None => not_found("this peer knows no such node"),
    }
}

async fn models(State(observed): State<Observed>) -> Json<Value> {
    let view = observed.peer.view();
    let models: Vec<_> = view.models().map(|(id, state)| json::model(id, state)).collect();
    Json(json!({"generation": view.generation, "models": models}))
}

async fn model(State(observed): State<Observed>, id: Result<Path<String>, PathRejection>) -> Response {
    let view = observed.peer.view();
    match id.ok().and_then(|Path(id)| view.model(&id)) {
        Some((id, state)) => Json(json::model(id, state)).into_response(),
        None => not_found("this peer knows no such model"),
    }
}

fn not_found(message: &str) -> Response {
    error(StatusCode::NOT_FOUND, "not_found", message)
}

/// An error in the shape that OpenAI's clients know.
fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let kind = if status == StatusCode::NOT_FOUND { "not_found_error" } else { "invalid_request_error" };
    let error = json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    (status, Json(error)).into_response()
}
