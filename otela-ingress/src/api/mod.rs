//! The OpenAI surface: which route leads where.

mod affinity;
mod body;
mod encoding;
mod error;
mod inference;
mod models;
mod multipart;
mod openapi;
mod read;
pub(crate) mod scan;
mod target;

use crate::{answer::Answer, forward::App};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{Response, StatusCode},
    response::IntoResponse,
    routing::{any, get},
};
use error::ApiError;
use std::sync::Arc;

/// All routes of an ingress. `observed` are those that every peer has.
pub(crate) fn router(app: &Arc<App>, observed: Router) -> Router {
    routes().with_state(Arc::clone(app)).merge(observed)
}

/// Those that only an ingress has.
fn routes() -> Router<Arc<App>> {
    let inference = |path: &str| Router::new().route(path, any(inference::infer));
    Router::new()
        .merge(inference("/v1/chat/completions"))
        .merge(inference("/v1/completions"))
        .merge(inference("/v1/embeddings"))
        .route("/v1/models", get(models::list).fallback(wrong_method))
        .route("/v1/models/{*id}", get(models::retrieve).fallback(wrong_method))
        .route("/openapi.json", get(openapi::openapi).fallback(wrong_method))
        // Whatever else engines serve: routed by the model that the body names, if the path is an inference route; and
        // the routes that name a service or a node, whose rest is a path of the engine.
        .fallback(inference::any)
}

/// Which methods there are, the router adds.
async fn wrong_method(request: Request) -> Response<Body> {
    let message = format!("Method {} is not allowed here.", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}

/// A body of ours as axum's.
fn boxed(response: Response<Answer>) -> Response<Body> {
    response.map(Body::new)
}
