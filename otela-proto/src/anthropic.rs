//! Anthropic's dialect of errors. Clients of its Messages look for another shape than OpenAI's, whether an ingress
//! refuses their request or the node behind it.

/// Whether whoever asks for `path` speaks this dialect: Messages, whatever stands before them, and what is below them.
#[must_use]
pub fn is_spoken_at(path: &str) -> bool {
    const MESSAGES: &str = "/v1/messages";
    path.rfind(MESSAGES).is_some_and(|at| {
        let rest = &path[at + MESSAGES.len()..];
        rest.is_empty() || rest.starts_with('/')
    })
}

/// The `type` of an error with this HTTP status. Of 4xx without a type of their own Anthropic says what 400 says; a
/// service that cannot take a request now is overloaded, whatever keeps it.
#[must_use]
pub fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_known_wherever_they_stand() {
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/v1/messages"] {
            assert!(is_spoken_at(path), "{path}");
        }
        assert!(is_spoken_at("/v1/service/llm/v1/messages") && is_spoken_at("/v1/p2p/x/v1/_service/llm/v1/messages"));
        for path in ["/v1/chat/completions", "/v1/messages2", "/messages", "/v1/responses", ""] {
            assert!(!is_spoken_at(path), "{path}");
        }
    }

    #[test]
    fn every_status_has_a_type() {
        let types = [400, 404, 405, 408, 413, 415, 422, 429, 502, 503, 504].map(error_type);
        let wrong = "invalid_request_error";
        let expected = [
            wrong,
            "not_found_error",
            wrong,
            wrong,
            "request_too_large",
            wrong,
            wrong,
            "rate_limit_error",
            "api_error",
            "overloaded_error",
            "timeout_error",
        ];
        assert_eq!(types, expected);
    }
}
