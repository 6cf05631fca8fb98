//! How a broken stream is told of, in the words of the endpoint.

use otela_node::peer::Path;

/// The dialect in which a broken stream is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A `data:` line with an error object: chat, completions.
    OpenAi,
    /// A named `error` event: the Responses API.
    Responses,
    /// A named `error` event with Anthropic's object.
    Anthropic,
}

impl Dialect {
    /// The dialect of a path.
    pub(crate) fn of(path: &str) -> Self {
        match path {
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Anthropic,
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
                    "message": message, "type": "upstream_error", "param": null, "code": "stream_broken",
                }});
                format!("data: {error}\n\n")
            }
            Self::Responses => {
                let error = serde_json::json!({
                    "type": "error", "code": "stream_broken", "message": message, "param": null,
                });
                format!("event: error\ndata: {error}\n\n")
            }
            Self::Anthropic => {
                let error = serde_json::json!({"type": "error", "error": {"type": "api_error", "message": message}});
                format!("event: error\ndata: {error}\n\n")
            }
        }
    }
}
