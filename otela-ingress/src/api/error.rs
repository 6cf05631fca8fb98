//! Errors as OpenAI clients expect them: the only place where a cause becomes a status and a body.
//!
//! A body holds a plain message and the request's id; never an address, a peer or a path of ours.

use super::scan::Unreadable;
use crate::{
    attempt::{Failure, Whole},
    candidate::NoCandidate,
    defaults::RETRY_AFTER,
    headers::REQUEST_ID,
    metrics::End,
};
use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use otela_node::peer::SendError;
use serde_json::json;
use std::time::Duration;

/// An error that a client is sent.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
    request_id: Option<String>,
    close: bool,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message, param: None, code: None, retry_after: None, request_id: None, close: false }
    }

    /// The request is wrong; asking again is pointless.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Says which request it was.
    pub(crate) fn request(mut self, id: &str) -> Self {
        self.request_id = Some(id.to_owned());
        self
    }

    /// The rest of the request has not been read: the connection cannot be used again.
    pub(crate) fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// How the request ended, for the metrics.
    pub(crate) fn end(&self) -> End {
        if self.status.is_server_error() { End::Failed } else { End::Rejected }
    }

    /// This ingress is ending; another one, or the next, may do.
    pub(crate) fn stopping() -> Self {
        let message = "This service is stopping. Try again shortly.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("stopping").retry_after(RETRY_AFTER).close()
    }

    /// The model is not there.
    pub(crate) fn no_candidate(cause: NoCandidate, model: &str) -> Self {
        let model = shortened(model);
        match cause {
            NoCandidate::Unknown => Self::new(StatusCode::NOT_FOUND, format!("The model `{model}` does not exist."))
                .param("model")
                .code("model_not_found"),
            NoCandidate::Joining => {
                let message = "This service is still joining its mesh. Try again shortly.";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("joining").retry_after(RETRY_AFTER)
            }
            NoCandidate::NotReady => {
                let message = format!("The model `{model}` has no replica that is ready now. Try again shortly.");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
                    .param("model")
                    .code("model_not_ready")
                    .retry_after(RETRY_AFTER)
            }
        }
    }

    /// Every attempt failed, this one last; or the engine's own words, if it had any.
    pub(crate) fn failed(failure: Failure) -> Result<Whole, Self> {
        let unavailable = |message: &str| {
            Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("upstream_unavailable").retry_after(RETRY_AFTER)
        };
        Err(match failure {
            Failure::Refused(whole) => return Ok(*whole),
            Failure::Send(SendError::Busy) => unavailable("All replicas of the model are busy."),
            Failure::Send(error) if !error.delivered() => unavailable("No replica of the model can be reached now."),
            Failure::Timeout(within) => {
                let message = format!("The engine did not begin to answer within {within:?}.");
                Self::new(StatusCode::GATEWAY_TIMEOUT, message).code("upstream_timeout")
            }
            Failure::Send(SendError::PathLost { .. }) => {
                let message = "The connection to the engine's node ended before the answer was complete. If it was relayed, its relay may have stopped, or a limit of its was reached.";
                Self::new(StatusCode::BAD_GATEWAY, message).code("path_lost")
            }
            Failure::Send(_) | Failure::Truncated | Failure::Empty => {
                let message = "The engine failed before its answer was complete.";
                Self::new(StatusCode::BAD_GATEWAY, message).code("upstream_error")
            }
        })
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl From<Unreadable> for ApiError {
    fn from(unreadable: Unreadable) -> Self {
        let error = Self::bad_request(unreadable.to_string());
        let error = if unreadable.is_about_model() { error.param("model") } else { error };
        if matches!(unreadable, Unreadable::NoModel) { error.code("missing_model") } else { error }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let error = json!({
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
            "request_id": self.request_id,
        });
        let mut response = Response::new(Body::from(json!({"error": error}).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            // Whole seconds, and never zero: clients would come back at once.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if let Some(id) = self.request_id.and_then(|id| HeaderValue::from_str(&id).ok()) {
            headers.insert(REQUEST_ID, id);
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A client's own text, repeated to it: bounded, since it may be of any length.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
