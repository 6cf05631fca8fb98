//! How errors and broken streams are told of, in the words of the endpoint.

use otela_node::peer::Path;
use otela_proto::anthropic;

/// The dialect in which a client of the endpoint is told what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// An error object, in a stream on a `data:` line: chat, completions, and whatever else there is.
    OpenAi,
    /// The same object, in a stream a named `error` event: the Responses API.
    Responses,
    /// Anthropic's object, in a stream a named `error` event.
    Anthropic,
}

impl Dialect {
    /// The dialect of a path, a service's or a node's too.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            "/v1/responses" => Self::Responses,
            path if anthropic::is_spoken_at(path) => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// The event that says that the answer, which came over `path`, is not whole.
    pub(crate) fn broken(self, request: &str, path: Path) -> String {
        let relayed = match path {
            Path::Direct => "",
            Path::Relayed => " It came through a relay, which may have stopped or reached a limit of its own.",
        };
        let message = format!("The stream broke off before the answer was complete (request {request}).{relayed}");
        match self {
            Self::OpenAi => {
                let error = serde_json::json!({"error": {
                    "message": message, "type": "server_error", "param": null, "code": "stream_broken",
                    "request_id": request,
                }});
                format!("data: {error}\n\n")
            }
            Self::Responses => {
                let error = serde_json::json!({
                    "type": "error", "code": "stream_broken", "message": message, "param": null, "request_id": request,
                });
                format!("event: error\ndata: {error}\n\n")
            }
            Self::Anthropic => {
                let error = serde_json::json!({
                    "type": "error",
                    "error": {"type": anthropic::error_type(500), "message": message, "code": "stream_broken"},
                    "request_id": request,
                });
                format!("event: error\ndata: {error}\n\n")
            }
        }
    }
}
