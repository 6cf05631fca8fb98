//! A client's request, read and checked; and what is sent to a node in its name.

use crate::{
    api::scan::Scan,
    balance::{Hints, Policy},
    candidate::{Selector, Wanted},
    client_io::Client,
    config::ModelSettings,
    queue::Caller,
    splice::{Edit, field, splice},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, header, request, uri::PathAndQuery};
use otela_node::telemetry::trace::Span;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// A request that can be routed.
#[derive(Debug)]
pub(crate) struct Inference {
    pub(crate) wanted: Wanted,
    pub(crate) selector: Selector,
    pub(crate) method: Method,
    /// The engine's path, and the query without credentials.
    pub(crate) path: PathAndQuery,
    /// What may be passed on to a node.
    pub(crate) headers: HeaderMap,
    /// The client's bytes, decoded, shared between attempts.
    pub(crate) body: Bytes,
    /// What a JSON body says; nothing of any other.
    pub(crate) scan: Scan,
    /// Our own name for the request.
    pub(crate) id: Arc<str>,
    /// What is told of it to whoever collects traces.
    pub(crate) span: Span,
    /// The connection that it came on.
    pub(crate) client: Client,
    pub(crate) caller: Caller,
    pub(crate) affinity: Option<u64>,
    pub(crate) policy: Policy,
    pub(crate) wishes: Wishes,
    /// What holds for its model.
    pub(crate) settings: ModelSettings,
    /// The body's room; given back with the last attempt.
    pub(crate) _room: Option<OwnedSemaphorePermit>,
}

/// What a client wants of the ingress itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wishes {
    pub(crate) resume: Resume,
    /// To be told in `Server-Timing` where the time went.
    pub(crate) timing: bool,
}

/// What is to be done with a stream that breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Resume {
    /// It is continued elsewhere, if that is possible.
    #[default]
    On,
    /// The same, and a comment says where.
    Marked,
    /// It ends with an error.
    Off,
}

/// Endpoints whose streams are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Other,
}

/// What is sent to a node.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) head: request::Parts,
    pub(crate) body: Arc<[Bytes]>,
    /// We have asked for an account that the client did not ask for.
    pub(crate) asks_usage: bool,
}

impl Inference {
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self.path.path() {
            "/v1/chat/completions" => Endpoint::Chat,
            "/v1/completions" => Endpoint::Completions,
            _ => Endpoint::Other,
        }
    }

    /// What a balancing policy may look at.
    pub(crate) fn hints(&self) -> Hints<'_> {
        Hints { model: self.wanted.name(), affinity: self.affinity }
    }

    /// The span of one attempt.
    pub(crate) fn attempt_span(&self) -> Span {
        let span = self.span.asking("otela.attempt");
        span.set("otela.policy", self.policy.name());
        span
    }

    /// Whether the client asked for the account of tokens at the end of a stream.
    pub(crate) fn wants_usage(&self) -> bool {
        self.usage_option().is_some_and(|(_, value)| &self.body[value] == b"true")
    }

    /// Where `include_usage` is told and its value, if it is.
    fn usage_option(&self) -> Option<(usize, std::ops::Range<usize>)> {
        let options = self.scan.stream_options.clone()?;
        let found = crate::api::scan::value_of(&self.body[options.clone()], "include_usage")?;
        Some((options.start, options.start + found.start..options.start + found.end))
    }

    /// What is sent to a node: the client's bytes, and for a stream the wish to be told how many tokens it had.
    pub(crate) fn outgoing(&self, ask_usage: bool) -> Outgoing {
        let edit = self.usage_edit().filter(|_| ask_usage);
        let asks_usage = edit.is_some();
        let body = splice(&self.body, edit.into_iter().collect());
        Outgoing { head: self.head(), body, asks_usage }
    }

    /// What has to change so that the stream ends with an account of its tokens.
    pub(crate) fn usage_edit(&self) -> Option<Edit> {
        if !self.scan.stream || self.endpoint() == Endpoint::Other || self.wants_usage() {
            return None;
        }
        match (&self.scan.stream_options, self.usage_option()) {
            (_, Some((_, value))) => Some(Edit::replace(value, "true")),
            (Some(options), None) => match &self.body[options.clone()] {
                b"null" => Some(Edit::replace(options.clone(), "{\"include_usage\":true}")),
                object if object.starts_with(b"{") => {
                    let is_empty = object[1..].trim_ascii_start().starts_with(b"}");
                    Some(field(options.start + 1, is_empty, "include_usage", "true"))
                }
                // The engine will say what is wrong with it.
                _ => None,
            },
            (None, None) => {
                Some(field(self.scan.opens_at, self.scan.is_empty, "stream_options", "{\"include_usage\":true}"))
            }
        }
    }

    /// The head of what is sent to a node.
    pub(crate) fn head(&self) -> request::Parts {
        let mut head = Request::new(()).into_parts().0;
        head.method = self.method.clone();
        head.uri = self.path.clone().into();
        head.headers = self.headers.clone();
        head
    }

    /// The head of a request of our own to the same engine.
    pub(crate) fn own_head(&self, path: &'static str) -> request::Parts {
        let mut head = self.head();
        head.method = Method::POST;
        head.uri = PathAndQuery::from_static(path).into();
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        head
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::api::scan;

    /// A request as it is after reading.
    pub(crate) fn request(path: &'static str, body: &'static str) -> Inference {
        Inference {
            wanted: Wanted { model: Some("m".into()), ..Wanted::default() },
            selector: Selector::default(),
            method: Method::POST,
            path: PathAndQuery::from_static(path),
            headers: HeaderMap::new(),
            body: Bytes::from_static(body.as_bytes()),
            scan: scan::scan(body.as_bytes()).unwrap(),
            id: "r1".into(),
            span: Span::default(),
            client: Client::default(),
            caller: Caller(1),
            affinity: None,
            policy: Policy::default(),
            wishes: Wishes::default(),
            settings: ModelSettings::default(),
            _room: None,
        }
    }

    #[test]
    fn p15_the_account_is_asked_for_by_one_value_alone() {
        for (body, sent) in [
            (r#"{"stream":true}"#, Some(r#"{"stream_options":{"include_usage":true},"stream":true}"#)),
            (
                r#"{ "stream_options" : {"include_usage": false, "x":1e-7},"stream":true}"#,
                Some(r#"{ "stream_options" : {"include_usage": true, "x":1e-7},"stream":true}"#),
            ),
            (
                r#"{"stream":true,"stream_options":{"continuous_usage_stats":true}}"#,
                Some(r#"{"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#),
            ),
            (
                r#"{"stream":true,"stream_options": { } }"#,
                Some(r#"{"stream":true,"stream_options": {"include_usage":true } }"#),
            ),
            (
                r#"{"stream":true,"stream_options":null}"#,
                Some(r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            ),
            (r#"{"stream":true,"stream_options":{"include_usage":true}}"#, None),
            (r#"{"stream":true,"stream_options":7}"#, None),
            (r#"{"stream":false}"#, None),
        ] {
            let request = request("/v1/chat/completions", body);
            let outgoing = request.outgoing(true);
            assert_eq!(std::str::from_utf8(&outgoing.body.concat()).unwrap(), sent.unwrap_or(body));
            assert_eq!(outgoing.asks_usage, sent.is_some(), "{body}");
            assert_eq!(request.outgoing(false).body.concat(), body.as_bytes());
        }
        let responses = request("/v1/responses", r#"{"stream":true}"#);
        assert!(!responses.outgoing(true).asks_usage, "it tells by itself");
    }
}
