//! Errors as clients of OpenAI's routes and of Anthropic's expect them: the only place where a cause becomes a status and
//! a body.
//!
//! A body holds a plain message and the request's id; never an address, a peer or a path of ours.

use super::{multipart::UnreadableForm, scan::Unreadable};
use crate::{
    candidate::{NoCandidate, Wanted},
    defaults::RETRY_AFTER,
    failure::{Failure, Whole},
    headers::REQUEST_ID,
    metrics::End,
    stream::Dialect,
    wait::NotPlaced,
};
use axum::{
    body::Body,
    http::{HeaderValue, Method, Response, StatusCode, Uri, header},
    response::IntoResponse,
};
use otela_node::peer::SendError;
use otela_proto::anthropic;
use serde_json::{Value, json};
use std::time::Duration;

/// An error that a client is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    param: Option<&'static str>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
    request_id: Option<String>,
    dialect: Dialect,
    close: bool,
}

impl ApiError {
    /// `code` is what programs go by; it is also the label under which the refusal is counted.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            status,
            code,
            message,
            param: None,
            retry_after: None,
            allow: None,
            request_id: None,
            dialect: Dialect::OpenAi,
            close: false,
        }
    }

    /// The request is wrong; asking again is pointless.
    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
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

    /// Says it in the words of the endpoint.
    pub(crate) fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// The rest of the request has not been read: the connection cannot be used again.
    pub(crate) fn close(mut self) -> Self {
        self.close = true;
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// How the request ended, for the metrics.
    pub(crate) fn end(&self) -> End {
        if self.status.is_server_error() { End::Failed } else { End::Rejected }
    }

    fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(RETRY_AFTER)
    }

    /// There is no such route, or nobody has opened it.
    pub(crate) fn unknown_url(method: &Method, uri: &Uri) -> Self {
        let message = format!("Unknown request URL: {method} {}.", shortened(uri.path()));
        Self::new(StatusCode::NOT_FOUND, "unknown_url", message)
    }

    /// The path is there, and takes only what `allow` lists.
    pub(crate) fn wrong_method(method: &Method, allow: &'static str) -> Self {
        let message = format!("Method {method} is not allowed here.");
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        Self { allow: Some(allow), ..error }
    }

    /// This ingress is ending; another one, or the next, may do.
    pub(crate) fn stopping() -> Self {
        Self::unavailable("stopping", "This service is stopping. Try again shortly.").close()
    }

    /// What was asked for is not there, or not allowed.
    pub(crate) fn no_candidate(cause: &NoCandidate, wanted: &Wanted) -> Self {
        let about = |error: Self| if wanted.model.is_some() { error.param("model") } else { error };
        match cause {
            NoCandidate::Unknown => {
                let code = if wanted.model.is_some() { "model_not_found" } else { "not_found" };
                about(Self::new(StatusCode::NOT_FOUND, code, format!("{wanted} does not exist.")))
            }
            NoCandidate::Joining => {
                Self::unavailable("joining", "This service is still joining its mesh. Try again shortly.")
            }
            NoCandidate::NotReady => {
                let message = format!("{wanted} has no replica that is ready now. Try again shortly.");
                about(Self::unavailable("model_not_ready", message))
            }
            NoCandidate::Untrusted { ready, awaited: false } => {
                let message =
                    format!("{wanted} is served by {}, none of a provider that this request trusts.", replicas(*ready));
                Self::new(StatusCode::FORBIDDEN, "no_trusted_provider", message)
            }
            NoCandidate::Untrusted { awaited: true, .. } => {
                let message =
                    format!("{wanted} has no replica of a trusted provider that is ready now. Try again shortly.");
                Self::unavailable("no_trusted_provider_ready", message)
            }
            NoCandidate::Unmet { of, unmet } => {
                let unmet: Vec<_> = unmet.iter().map(ToString::to_string).collect();
                let message = format!(
                    "{wanted} is served by {}, and none meets all requirements: {}.",
                    replicas(*of),
                    unmet.join(", ")
                );
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "requirements_not_met", message)
            }
        }
    }

    /// All replicas are full.
    pub(crate) fn no_place(cause: NotPlaced) -> Self {
        match cause {
            NotPlaced::Tried => Self::unavailable("upstream_unavailable", "No replica can be reached now."),
            NotPlaced::QueueFull(free_in) => {
                let message = "All replicas are busy, and as many requests wait as may.";
                Self::unavailable("queue_full", message).retry_after(free_in)
            }
            NotPlaced::Waited(free_in) => {
                let message = "All replicas were busy for as long as a request may wait.";
                Self::unavailable("queue_timeout", message).retry_after(free_in)
            }
        }
    }

    /// Every attempt failed, this one last; or the engine's own words, if it had any.
    pub(crate) fn failed(failure: Failure) -> Result<Whole, Self> {
        let unavailable = |message: &str| Self::unavailable("upstream_unavailable", message);
        Err(match failure {
            Failure::Refused(whole) | Failure::FailedStream(whole) => return Ok(*whole),
            Failure::Full | Failure::Send(SendError::Busy) => unavailable("All replicas are busy."),
            Failure::Send(error) if !error.delivered() => unavailable("No replica can be reached now."),
            Failure::Timeout(within) | Failure::Stalled(within) => {
                let message = format!("The engine did not answer within {within:?}.");
                Self::new(StatusCode::GATEWAY_TIMEOUT, "upstream_timeout", message)
            }
            Failure::Send(SendError::PathLost { .. }) => {
                let message = "The connection to the engine's node ended before the answer was complete. If it was relayed, its relay may have stopped, or a limit of its was reached.";
                Self::new(StatusCode::BAD_GATEWAY, "path_lost", message)
            }
            Failure::Send(_) | Failure::Truncated | Failure::Empty | Failure::ErrorEvent(_) => {
                let message = "The engine failed before its answer was complete.";
                Self::new(StatusCode::BAD_GATEWAY, "upstream_error", message)
            }
        })
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn body(&self) -> Value {
        match self.dialect {
            Dialect::OpenAi | Dialect::Responses => json!({"error": {
                "message": self.message,
                "type": self.kind(),
                "param": self.param,
                "code": self.code,
                "request_id": self.request_id,
            }}),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {
                    "type": anthropic::error_type(self.status.as_u16()),
                    "message": self.message,
                    "code": self.code,
                },
                "request_id": self.request_id,
            }),
        }
    }
}

fn replicas(count: usize) -> String {
    if count == 1 { "1 replica".to_owned() } else { format!("{count} replicas") }
}

impl From<Unreadable> for ApiError {
    fn from(unreadable: Unreadable) -> Self {
        let error = Self::bad_request("invalid_body", unreadable.to_string());
        match unreadable.field() {
            Some(field) => error.param(field),
            None => error,
        }
    }
}

impl From<UnreadableForm> for ApiError {
    fn from(unreadable: UnreadableForm) -> Self {
        let error = Self::bad_request("invalid_form", unreadable.to_string());
        if matches!(unreadable, UnreadableForm::Twice("model")) { error.param("model") } else { error }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            // Whole seconds, rounded up: never zero, for which clients would come back at once.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
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
