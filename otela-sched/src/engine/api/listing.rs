//! What can be read: models, health, version, metrics.

use crate::engine::{FINGERPRINT, Sim, connection::Call, random_id};
use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use otela_node::telemetry::METRICS_CONTENT_TYPE;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

impl Sim {
    /// How long until it serves; `None` once it does.
    pub(super) fn ready_in(&self) -> Option<Duration> {
        let left = self.ready.saturating_duration_since(tokio::time::Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// The list of models, one card per served name.
pub(super) async fn models(State(sim): State<Arc<Sim>>) -> Json<Value> {
    let names = if sim.ready_in().is_some() { &[] } else { sim.config.names() };
    let cards: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({
                "id": name,
                "object": "model",
                "created": sim.created,
                "owned_by": FINGERPRINT,
                "root": sim.config.model.root,
                "parent": null,
                "max_model_len": sim.config.model.max_model_len,
                "permission": [{
                    "id": format!("modelperm-{}", &random_id()[..16]),
                    "object": "model_permission",
                    "created": sim.created,
                    "allow_create_engine": false,
                    "allow_sampling": true,
                    "allow_logprobs": false,
                    "allow_search_indices": false,
                    "allow_view": true,
                    "allow_fine_tuning": false,
                    "organization": "*",
                    "group": null,
                    "is_blocking": false,
                }],
            })
        })
        .collect();
    Json(json!({ "object": "list", "data": cards }))
}

pub(super) async fn health(State(sim): State<Arc<Sim>>) -> StatusCode {
    if sim.ready_in().is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": concat!("otela-simulated ", env!("CARGO_PKG_VERSION")), "simulated": true }))
}

pub(super) async fn metrics(State(sim): State<Arc<Sim>>) -> Response {
    ([(header::CONTENT_TYPE, METRICS_CONTENT_TYPE)], sim.meters.render(sim.runner.load())).into_response()
}

/// An id in vLLM's shape: the client's own request id, where it gave one, behind the endpoint's prefix.
pub(super) fn answer_id(prefix: &str, call: &Call) -> String {
    format!("{prefix}-{}", call.id)
}
