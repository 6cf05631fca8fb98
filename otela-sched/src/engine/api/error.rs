//! Errors in the shape that vLLM gives them: `{"error": {"message", "type", "param", "code"}}`.

use crate::engine::{batch::Refused, faults::Failure};
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::time::Duration;

/// An answer that is an error.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    kind: String,
    message: String,
    param: Option<&'static str>,
    retry_after: Option<Duration>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, kind: kind.into(), message: message.into(), param: None, retry_after: None }
    }

    /// A value that cannot be served.
    pub(super) fn bad(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message) }
    }

    /// A body that is not what the endpoint takes. vLLM spells this type with a space.
    pub(super) fn validation(message: impl Into<String>, param: Option<&'static str>) -> Self {
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, "Bad Request", message) }
    }

    pub(super) fn malformed(error: &serde_json::Error) -> Self {
        Self::validation(format!("1 validation error: {error}"), None)
    }

    /// Something real engines do and this one does not.
    pub(super) fn not_simulated(what: &'static str) -> Self {
        Self::bad(format!("{what} is not simulated by otela's engine"), Some(what))
    }

    pub(super) fn no_model(asked: &str, names: &[String]) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {}.", names.join(", "));
        Self { param: Some("model"), ..Self::new(StatusCode::NOT_FOUND, "NotFoundError", message) }
    }

    pub(super) fn starting(after: Duration) -> Self {
        let message = "the simulated engine is still starting";
        Self {
            retry_after: Some(after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", message)
        }
    }

    pub(super) fn on_purpose(failure: Failure) -> Self {
        let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut kind: String = status.canonical_reason().unwrap_or("Error").split([' ', '-', '\'']).collect();
        if !kind.ends_with("Error") {
            kind.push_str("Error");
        }
        let message = format!("otela's simulated engine fails with {} as it was told to", status.as_u16());
        Self { retry_after: failure.retry_after, ..Self::new(status, kind, message) }
    }

    /// The failure that an error event or a failed answer tells of.
    pub(super) fn broken() -> Self {
        Self::on_purpose(Failure { status: 500, retry_after: None })
    }

    /// The error object, as it also stands in an event.
    pub(super) fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.status.as_u16(),
        }})
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::QueueFull => Self {
                retry_after: Some(Duration::from_secs(1)),
                ..Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "ServiceUnavailableError",
                    "too many requests wait already",
                )
            },
            Refused::TooLong => Self::bad("the request needs more KV blocks than the engine has", None),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
