//! Whether an address serves a model: it lists one, and makes one token of it.
//!
//! What counts as served, in this order: a completion, a chat completion, an embedding. An engine that refuses
//! all three by client errors, of which one says that it is not supported, serves models of another kind
//! (rerankers, classifiers, transcription) and is believed; any other set of refusals is not.

use super::ask::{Answer, AskError, Limits, Question, ask};
use crate::telemetry::chain;
use http::StatusCode;
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};

/// The model list of an engine that answers at all. Slow ones are busy loading.
const LIST_LIMIT: Duration = Duration::from_secs(30);
/// A version is a courtesy.
const VERSION_LIMIT: Duration = Duration::from_secs(5);
/// Of an engine's error message, in ours.
const MESSAGE_CHARS_MAX: usize = 200;

/// A model as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The name clients use.
    pub id: String,
    /// Context length in tokens, where the engine tells (vLLM and SGLang do).
    pub max_model_len: Option<u64>,
    /// What the name stands for: a repository, a path, a base model.
    pub root: Option<String>,
    /// The engine's own claim, often its name.
    pub owned_by: Option<String>,
}

/// What the engine proved that it does with its first model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// `/v1/completions` made a token.
    Completion,
    /// Only `/v1/chat/completions` made one.
    Chat,
    /// Only `/v1/embeddings` answered.
    Embedding,
    /// None of these, as the engine itself says; nothing was proved.
    Other,
}

/// Why an address does not serve now.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) text: String,
    /// Whether HTTP was spoken: else it may be a port for something else.
    pub(super) http: bool,
}

impl Problem {
    fn new(text: String) -> Self {
        Self { text, http: true }
    }
}

/// An address to be asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) address: SocketAddr,
    pub(super) api_key: Option<&'a str>,
    pub(super) connect_limit: Duration,
}

impl Place<'_> {
    async fn ask(&self, path: &str, body: Option<&Value>, head: Duration) -> Result<Answer, Problem> {
        let limits = Limits { connect: self.connect_limit, head };
        ask(self.address, Question { path, body, api_key: self.api_key }, limits).await.map_err(|error| Problem {
            text: format!("{path} at {}: {}", self.address, chain(&error)),
            http: !matches!(error, AskError::Protocol(_) | AskError::Broken(_) | AskError::HeadTimeout(_)),
        })
    }

    /// The models listed; an empty list is a problem.
    pub(super) async fn models(&self, limit: Option<Duration>) -> Result<Vec<ModelInfo>, Problem> {
        let answer = self.ask("/v1/models", None, limit.unwrap_or(LIST_LIMIT)).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refusal("/v1/models", &answer));
        }
        let models = list(&answer.body);
        if models.is_empty() {
            return Err(Problem::new(format!("/v1/models at {} lists no model yet", self.address)));
        }
        Ok(models)
    }

    /// A page that is text.
    pub(super) async fn text(&self, path: &str, limit: Duration) -> Result<String, Problem> {
        let answer = self.ask(path, None, limit).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refusal(path, &answer));
        }
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// Makes one token of `model`, waiting `limit` for it.
    pub(super) async fn generate(&self, model: &str, limit: Duration) -> Result<Task, Problem> {
        let message = json!([{"role": "user", "content": "Hi"}]);
        let tries = [
            (Task::Completion, "/v1/completions", json!({"model": model, "prompt": "Hi", "max_tokens": 1})),
            (Task::Chat, "/v1/chat/completions", json!({"model": model, "messages": message, "max_tokens": 1})),
            (Task::Embedding, "/v1/embeddings", json!({"model": model, "input": "Hi"})),
        ];
        let mut unsupported = false;
        let mut refusal = None;
        for (task, path, body) in tries {
            let answer = self.ask(path, Some(&body), limit).await?;
            if answer.status.is_success() {
                return if proves(task, &answer.body) {
                    Ok(task)
                } else {
                    Err(Problem::new(format!("{path} at {}: an empty answer: {}", self.address, message_of(&answer))))
                };
            }
            if !is_final(answer.status) {
                return Err(self.refusal(path, &answer));
            }
            unsupported |= String::from_utf8_lossy(&answer.body).to_lowercase().contains("not support");
            refusal.get_or_insert_with(|| self.refusal(path, &answer));
        }
        match refusal {
            Some(refusal) if !unsupported => Err(refusal),
            _ => Ok(Task::Other),
        }
    }

    /// The engine's version, if it tells.
    pub(super) async fn version(&self) -> Option<String> {
        let answer = self.ask("/version", None, VERSION_LIMIT).await.ok()?;
        if answer.status != StatusCode::OK {
            return None;
        }
        let version: Value = serde_json::from_slice(&answer.body).ok()?;
        version.get("version")?.as_str().filter(|text| text.len() <= 100).map(str::to_owned)
    }

    fn refusal(&self, path: &str, answer: &Answer) -> Problem {
        let hint = match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                " (it wants a key that is not in its arguments: add --api-key KEY to the engine's command)"
            }
            _ => "",
        };
        let Answer { status, .. } = answer;
        Problem::new(format!("{path} at {}: HTTP {status}: {}{hint}", self.address, message_of(answer)))
    }
}

/// Whether asking again would get the same answer.
fn is_final(status: StatusCode) -> bool {
    match status {
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::CONFLICT
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS => false,
        StatusCode::NOT_IMPLEMENTED => true,
        status => status.is_client_error(),
    }
}

fn proves(task: Task, body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return false };
    let field = if task == Task::Embedding { "data" } else { "choices" };
    body.get(field).and_then(Value::as_array).is_some_and(|items| !items.is_empty())
}

/// Lenient: engines differ in every field but the id.
fn list(body: &[u8]) -> Vec<ModelInfo> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |model: &Value, field: &str| model.get(field).and_then(Value::as_str).map(str::to_owned);
    let models = body.get("data").and_then(Value::as_array).into_iter().flatten();
    models
        .filter_map(|model| {
            Some(ModelInfo {
                id: text(model, "id").filter(|id| !id.is_empty())?,
                max_model_len: model.get("max_model_len").and_then(Value::as_u64),
                root: text(model, "root"),
                owned_by: text(model, "owned_by"),
            })
        })
        .collect()
}

/// What the engine says, on one line.
fn message_of(answer: &Answer) -> String {
    let parsed: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let said = [parsed.pointer("/error/message"), parsed.get("message"), parsed.get("error"), parsed.get("detail")];
    let text = said.into_iter().flatten().find_map(Value::as_str).map(str::to_owned);
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(&answer.body).into_owned());
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() { "without a reason".to_owned() } else { line.chars().take(MESSAGE_CHARS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_lists_are_read_whatever_else_they_hold() {
        let models = list(
            br#"{"object":"list","data":[
                {"id":"org/a","max_model_len":4096,"root":"/models/a","owned_by":"vllm","permission":[{}]},
                {"id":"b","max_model_len":null},{"id":""},{"name":"c"},7]}"#,
        );
        assert_eq!(models.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["org/a", "b"]);
        assert_eq!((models[0].max_model_len, models[1].max_model_len), (Some(4096), None));
        for nothing in [&b"{\"data\":null}"[..], b"[]", b"<html>", b"{}", b""] {
            assert_eq!(list(nothing), []);
        }
    }

    #[test]
    fn an_engine_is_quoted_on_one_line() {
        let quote = |body: &'static str| {
            message_of(&Answer { status: StatusCode::NOT_FOUND, body: bytes::Bytes::from_static(body.as_bytes()) })
        };
        assert_eq!(quote(r#"{"error":{"message":"no\n such model"}}"#), "no such model");
        assert_eq!(quote(r#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(quote("<h1>\nnope"), "<h1> nope");
        assert_eq!(quote(""), "without a reason");
        assert_eq!(quote(Box::leak("ä".repeat(500).into_boxed_str())).chars().count(), MESSAGE_CHARS_MAX);
    }
}
