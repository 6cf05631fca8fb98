//! The list of models, from this ingress' own replica of the registry: no node is asked.

use super::error::ApiError;
use crate::{
    candidate::{NoCandidate, Wanted},
    forward::App,
};
use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::Response,
    response::IntoResponse,
};
use otela_proto::registry::ModelState;
use serde_json::{Value, json};
use std::sync::Arc;

/// Models that at least one replica is ready to serve, each once, ordered by id.
pub(super) async fn list(State(app): State<Arc<App>>) -> Response<Body> {
    listed(&app, None)
}

/// The same, of those that are served under the name of `service` alone.
pub(super) fn listed(app: &App, service: Option<&str>) -> Response<Body> {
    let view = app.peer.view();
    let models: Vec<_> = view.models().filter_map(|(id, state)| model(id, state, service)).collect();
    // A client that fills its list when it starts would take an empty one for all there is.
    if models.is_empty() && !app.peer.has_joined() {
        return ApiError::no_candidate(&NoCandidate::Joining, &Wanted::default()).into_response();
    }
    Json(json!({"object": "list", "data": models})).into_response()
}

/// One of them, the very object of the list. Ids may hold slashes and colons, encoded or not.
pub(super) async fn retrieve(State(app): State<Arc<App>>, id: Result<Path<String>, PathRejection>) -> Response<Body> {
    // No model has a name that is not UTF-8.
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let view = app.peer.view();
    let wanted = Wanted { model: Some(id), ..Wanted::default() };
    let found = wanted.model.as_deref().and_then(|id| view.model(id));
    let cause = match found {
        Some((known, state)) => match model(known, state, None) {
            Some(model) => return Json(model).into_response(),
            None => NoCandidate::NotReady,
        },
        None => NoCandidate::unknown(app.peer.has_joined()),
    };
    ApiError::no_candidate(&cause, &wanted).into_response()
}

fn model(id: &str, state: &ModelState, service: Option<&str>) -> Option<Value> {
    let ready = || state.ready.iter().filter(|replica| service.is_none_or(|name| replica.service().name == name));
    // The first session by order, so that the answer does not change from call to call.
    let first = ready().next()?;
    let started_ms = ready().map(|replica| replica.entry().payload().started_at_ms).min()?;
    // What every replica can do.
    let contexts = ready().map(|replica| replica.model().context_length).filter(|length| *length > 0);
    let mut model = json!({
        "id": id,
        "object": "model",
        "created": started_ms / 1000,
        "owned_by": match first.model().owned_by.as_str() { "" => "otela", owner => owner },
    });
    if let Some(context) = contexts.min() {
        model["max_model_len"] = context.into();
    }
    Some(model)
}
