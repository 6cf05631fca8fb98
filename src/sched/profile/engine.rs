//! An engine with an OpenAI API, asked over HTTP: what it serves, and how long its answers take.

use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response, StatusCode, redirect::Policy};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;
use url::{Host, Url};

/// From the name of the server to a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// What is no answer of a model comes out of memory.
const LOOK_WITHIN: Duration = Duration::from_secs(20);
/// Engines close idle connections after five seconds or more; one that is about to be closed is not used any more.
const IDLE_WITHIN: Duration = Duration::from_secs(4);
/// No event of a stream is longer.
const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Of an engine's own message, so much is told.
const MESSAGE_CHARS_MAX: usize = 300;

/// Why an engine was not measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    /// There is no HTTP here.
    #[error("cannot set up an HTTP client")]
    Client(#[source] reqwest::Error),
    /// Nobody is there.
    #[error("cannot connect to {0}: name the address of a running engine with an OpenAI API")]
    Connect(String, #[source] reqwest::Error),
    /// The connection broke.
    #[error("an answer of {0} broke off")]
    Broken(String, #[source] reqwest::Error),
    /// Nobody answers.
    #[error("{0} did not answer within {1:?}")]
    Silent(String, Duration),
    /// Somebody else is there.
    #[error("{0} does not answer like an engine with an OpenAI API ({1})")]
    NotEngine(String, String),
    /// It refuses.
    #[error("{url} answered {status}: {message}{}", hint(*status))]
    Status {
        /// The engine.
        url: String,
        /// Its answer.
        status: StatusCode,
        /// In its own words.
        message: String,
    },
    /// It is not ready.
    #[error("{0} serves no model: wait until it is ready")]
    NoModel(String),
    /// Which one?
    #[error("{0} serves several models, name one of them with --model: {1}")]
    Several(String, String),
    /// Not this one.
    #[error("{url} does not serve {asked:?}: {served}")]
    NotServed {
        /// The engine.
        url: String,
        /// What was asked for.
        asked: String,
        /// What there is.
        served: String,
    },
    /// Prompts of a known length cannot be made.
    #[error("{0} does not say how many tokens a prompt has: it has no /tokenize, and its answers have no `usage`")]
    NoUsage(String),
    /// All answers were too short, or there was no time.
    #[error("{url}: nothing could be measured: {why}")]
    Nothing {
        /// The engine.
        url: String,
        /// The first reason.
        why: String,
    },
}

impl EngineError {
    /// Whether another command line helps, with the same engine.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Several(..) | Self::NotServed { .. })
    }
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; give its key with --api-key or OPENAI_API_KEY",
        _ => "",
    }
}

/// A model as the engine tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Card {
    /// Its name in requests.
    pub(super) id: String,
    /// What was loaded, if that has another name.
    pub(super) root: Option<String>,
    /// By whom it is served; engines say their own name.
    #[serde(default)]
    pub(super) owned_by: String,
    /// The most tokens of a prompt and its answer.
    pub(super) max_model_len: Option<u32>,
}

/// A streamed answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// When its first token came.
    pub(super) first: Instant,
    /// When its last token came.
    pub(super) last: Instant,
    /// Tokens of the prompt, if the engine says so.
    pub(super) prompt: Option<u32>,
    /// Tokens of the answer.
    pub(super) tokens: u32,
}

/// An engine.
#[derive(Debug)]
pub(super) struct Engine {
    client: Client,
    url: Url,
    key: Option<String>,
}

/// An event of a stream, as far as it is of interest.
#[derive(Debug, Default, Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<IgnoredAny>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Usage {
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
}

impl Engine {
    /// The engine at `url`, which is what comes before `/v1`. Reads the system's roots, which takes a moment.
    pub(super) fn new(url: &Url, key: Option<&str>) -> Result<Self, EngineError> {
        let setup = || {
            let client = Client::builder()
                .user_agent(concat!("otela/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_WITHIN)
                .pool_idle_timeout(IDLE_WITHIN)
                .redirect(Policy::none());
            if is_here(url) { client.no_proxy() } else { client }
        };
        let client = match setup().build() {
            // A container without any roots can still ask an engine that needs none.
            Err(_) if url.scheme() == "http" => setup().tls_certs_only([]).build(),
            built => built,
        };
        let client = client.map_err(EngineError::Client)?;
        Ok(Self { client, url: url.clone(), key: key.map(str::to_owned) })
    }

    /// What it is called to people: its address.
    pub(super) fn named(&self) -> String {
        named(&self.url)
    }

    /// The model that is `asked` for, or else the only one.
    pub(super) async fn card(&self, asked: Option<&str>) -> Result<Card, EngineError> {
        #[derive(Deserialize)]
        struct List {
            data: Vec<Card>,
        }
        let body = self.look(self.get("v1/models")).await?;
        let wrong = |_| EngineError::NotEngine(self.named(), "its /v1/models is no list of models".to_owned());
        let mut cards = serde_json::from_slice::<List>(&body).map_err(wrong)?.data;
        let served = cards.iter().map(|card| card.id.as_str()).collect::<Vec<_>>().join(", ");
        match (asked, cards.len()) {
            (_, 0) => Err(EngineError::NoModel(self.named())),
            (None, 1) => Ok(cards.swap_remove(0)),
            (None, _) => Err(EngineError::Several(self.named(), served)),
            (Some(asked), _) => cards.into_iter().find(|card| card.id == asked).ok_or_else(|| {
                let served = format!("it serves {served}");
                EngineError::NotServed { url: self.named(), asked: asked.to_owned(), served }
            }),
        }
    }

    /// Its version; none if it does not tell.
    pub(super) async fn version(&self) -> Result<Option<String>, EngineError> {
        let told = unless_refused(self.look(self.get("version")).await)?;
        let told = told.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        Ok(told.and_then(|told| told["version"].as_str().map(str::to_owned)))
    }

    /// The tokens of a text; none if it has no such route.
    pub(super) async fn tokens(&self, model: &str, text: &str) -> Result<Option<Vec<u64>>, EngineError> {
        let ask = json!({"model": model, "prompt": text, "add_special_tokens": false});
        let told = unless_refused(self.look(self.post("tokenize", &ask)).await)?;
        let told = told.and_then(|body| serde_json::from_slice::<Value>(&body).ok());
        Ok(told.and_then(|told| serde_json::from_value(told["tokens"].clone()).ok()))
    }

    /// A text completion, streamed to its end.
    pub(super) async fn complete(&self, ask: &Value) -> Result<Answer, EngineError> {
        let sent = self.post("v1/completions", ask).send().await;
        let mut response = self.accepted(sent.map_err(|error| self.failed(error))?).await?;
        let (mut lines, mut told) = (Lines::default(), Told::default());
        while let Some(bytes) = response.chunk().await.map_err(|error| self.failed(error))? {
            let now = Instant::now();
            lines.add(&bytes);
            while let Some(line) = lines.next() {
                told.hear(&line, now).map_err(|why| EngineError::NotEngine(self.named(), why))?;
            }
            if lines.is_too_long() {
                return Err(EngineError::NotEngine(self.named(), "an event without an end".to_owned()));
            }
        }
        told.answer().ok_or_else(|| EngineError::NotEngine(self.named(), "an answer without a token".to_owned()))
    }

    fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.named())
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.with_key(self.client.get(self.at(path)))
    }

    fn post(&self, path: &str, ask: &Value) -> RequestBuilder {
        let request = self.client.post(self.at(path)).body(ask.to_string());
        self.with_key(request.header(http::header::CONTENT_TYPE, "application/json"))
    }

    fn with_key(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// An answer that is not a model's.
    async fn look(&self, request: RequestBuilder) -> Result<Bytes, EngineError> {
        let ask = async {
            let response = request.send().await.map_err(|error| self.failed(error))?;
            self.accepted(response).await?.bytes().await.map_err(|error| self.failed(error))
        };
        let silent = |_| EngineError::Silent(self.named(), LOOK_WITHIN);
        tokio::time::timeout(LOOK_WITHIN, ask).await.map_err(silent)?
    }

    /// The response, if it is a good one.
    async fn accepted(&self, response: Response) -> Result<Response, EngineError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.unwrap_or_default();
        Err(EngineError::Status { url: self.named(), status, message: message(&body) })
    }

    fn failed(&self, error: reqwest::Error) -> EngineError {
        let url = self.named();
        if error.is_connect() { EngineError::Connect(url, error) } else { EngineError::Broken(url, error) }
    }
}

/// An address without a slash at its end.
pub(super) fn named(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

/// What an engine need not have.
fn unless_refused<T>(answer: Result<T, EngineError>) -> Result<Option<T>, EngineError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(EngineError::Status { status, .. }) if status.is_client_error() || status.as_u16() == 501 => Ok(None),
        Err(error) => Err(error),
    }
}

/// An engine's own words about what is wrong, on one line.
fn message(body: &[u8]) -> String {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let told = [&told["error"]["message"], &told["message"], &told["detail"], &told["error"]];
    let told = told.into_iter().find_map(Value::as_str).map_or_else(|| String::from_utf8_lossy(body), Into::into);
    let line: String = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|char| !char.is_control()).take(MESSAGE_CHARS_MAX).collect();
    if line.is_empty() { "it does not say why".to_owned() } else { line }
}

/// Whether a proxy would look for it on another machine than is meant.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// Lines of a stream that comes in pieces.
#[derive(Debug, Default)]
struct Lines {
    held: Vec<u8>,
    /// So many bytes of it have been given out.
    given: usize,
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) {
        self.held.drain(..std::mem::take(&mut self.given));
        self.held.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<String> {
        let rest = &self.held[self.given..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
        self.given += end + 1;
        Some(line)
    }

    fn is_too_long(&self) -> bool {
        self.held.len() - self.given > LINE_BYTES_MAX
    }
}

/// What has been heard of an answer.
#[derive(Debug, Default)]
struct Told {
    first: Option<Instant>,
    last: Option<Instant>,
    events: u32,
    usage: Option<Usage>,
}

impl Told {
    /// Hears a line of a stream of events.
    fn hear(&mut self, line: &str, now: Instant) -> Result<(), String> {
        let Some(data) = line.strip_prefix("data:").map(str::trim).filter(|data| *data != "[DONE]") else {
            return Ok(());
        };
        let event: Event = serde_json::from_str(data).map_err(|error| format!("an event that is none: {error}"))?;
        if let Some(error) = event.error.filter(|error| !error.is_null()) {
            return Err(format!("an error amid an answer: {}", message(error.to_string().as_bytes())));
        }
        self.usage = event.usage.or(self.usage);
        if !event.choices.is_empty() {
            self.first.get_or_insert(now);
            self.last = Some(now);
            self.events += 1;
        }
        Ok(())
    }

    fn answer(&self) -> Option<Answer> {
        let tokens = self.usage.map(|usage| usage.completion_tokens).filter(|tokens| *tokens > 0);
        Some(Answer {
            first: self.first?,
            last: self.last?,
            prompt: self.usage.map(|usage| usage.prompt_tokens),
            tokens: tokens.unwrap_or(self.events),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_heard_in_whatever_pieces_they_come() {
        let text = "data: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\ndata: {\"choices\":[{\"text\":\"\"}],\"usage\":null}\n\n\
                    : a comment\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        for size in [1, 3, 1000] {
            let (mut lines, mut told) = (Lines::default(), Told::default());
            let (now, mut later) = (Instant::now(), Instant::now());
            for piece in text.as_bytes().chunks(size) {
                lines.add(piece);
                while let Some(line) = lines.next() {
                    told.hear(&line, later).unwrap();
                    later += Duration::from_secs(1);
                }
            }
            let answer = told.answer().unwrap();
            assert_eq!((answer.prompt, answer.tokens), (Some(7), 2), "{size}");
            assert!(answer.first < now + Duration::from_secs(1) && answer.last > answer.first);
        }
        assert!(Told::default().answer().is_none());
    }

    #[test]
    fn what_is_wrong_is_told_in_the_engines_own_words() {
        let mut told = Told::default();
        let error = told.hear("data: {\"error\": {\"message\": \"out of memory\"}}", Instant::now()).unwrap_err();
        assert!(error.contains("out of memory"), "{error}");
        assert!(told.hear("data: nothing", Instant::now()).unwrap_err().contains("an event that is none"));
        assert_eq!(message(br#"{"error": {"message": "no\nway"}}"#), "no way");
        assert_eq!(message(br#"{"detail": "Not Found"}"#), "Not Found");
        assert_eq!(message(b"<html>"), "<html>");
        assert_eq!(message(b""), "it does not say why");
    }
}
