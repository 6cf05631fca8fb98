//! Inference requests: read, checked, and handed to [`forward`].

use super::{body, boxed, error::ApiError, scan};
use crate::{
    answer,
    client_io::Client,
    forward::{App, ForwardError, Inference, forward},
    headers,
    metrics::End,
};
use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, Method, Response, StatusCode, header, uri::PathAndQuery},
    response::IntoResponse,
};
use otela_proto::engine_path;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A route of its own.
pub(super) async fn infer(
    State(app): State<Arc<App>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response<Body> {
    let _waiting = client.request_begins(request.version());
    let id = request_id();
    let begun = Instant::now();
    app.budget.deposit();
    let mut waiting_request = Unanswered::new(&app);
    let response = match read(&app, client, request, &id).await {
        Ok(inference) => {
            let response = answer_for(&app, inference).await;
            app.metrics.first_byte.observe(begun.elapsed().as_secs_f64());
            response
        }
        Err(error) => refuse(&app, error.request(&id)),
    };
    waiting_request.answered = true;
    response
}

/// Every route that has no handler: an inference route that engines have, or nothing.
pub(super) async fn any(state: State<Arc<App>>, client: Extension<Client>, request: Request) -> Response<Body> {
    let (method, path) = (request.method(), request.uri().path());
    if !engine_path::is_inference(path) {
        let message = format!("Unknown request URL: {method} {path}.");
        return ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url").into_response();
    }
    if method != Method::POST {
        return super::wrong_method(request).await;
    }
    infer(state, client, request).await
}

async fn read(app: &App, client: Client, request: Request, id: &str) -> Result<Inference, ApiError> {
    let (head, body) = request.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if kind.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/")) {
        let message = "Multipart bodies are not routed yet: send JSON that names `model`.";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).close());
    }
    let (body, room) = body::read(app, &head.headers, body).await?;
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Ok(Inference {
        model: scan::model(&body)?,
        method: head.method,
        path: headers::path_to_node(&path),
        headers: headers::to_node(&head.headers, id),
        body,
        id: id.to_owned(),
        client,
        _room: room,
    })
}

async fn answer_for(app: &App, request: Inference) -> Response<Body> {
    let forwarded = tokio::select! {
        forwarded = forward(app, &request) => forwarded,
        () = app.closing.cancelled() => return refuse(app, ApiError::stopping().request(&request.id)),
    };
    let error = match forwarded {
        Ok(response) => return boxed(response),
        Err(ForwardError::NoCandidate(cause)) => ApiError::no_candidate(cause, &request.model),
        Err(ForwardError::Failed(failure)) => match ApiError::failed(failure) {
            Ok(refusal) => return boxed(answer::passed_on(app, refusal, &request)),
            Err(error) => error,
        },
    };
    refuse(app, error.request(&request.id))
}

fn refuse(app: &App, error: ApiError) -> Response<Body> {
    app.metrics.ended(error.end(), Duration::ZERO);
    error.into_response()
}

/// 16 random bytes as hex: unique without asking anybody.
fn request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A request that waits for the head of its answer. Dropped while it still does, its client has gone.
struct Unanswered<'a> {
    app: &'a App,
    answered: bool,
}

impl<'a> Unanswered<'a> {
    fn new(app: &'a App) -> Self {
        app.metrics.in_flight.inc();
        Self { app, answered: false }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.app.metrics.in_flight.dec();
        if !self.answered {
            self.app.metrics.ended(End::ClientGone, Duration::ZERO);
        }
    }
}
