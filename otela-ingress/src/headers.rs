//! Which headers travel.
//!
//! Towards nodes: a short list of what engines use. Nodes belong to other people, so callers' credentials, cookies,
//! addresses and habits stay here, and whatever is not known to be needed does too. Towards clients: everything but
//! what belongs to one hop.

use crate::candidate::Candidate;
use http::{HeaderMap, HeaderName, HeaderValue, header, uri::PathAndQuery};
use otela_node::peer::{Path, hop};
use std::time::{Duration, SystemTime};

/// The request's id, ours.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The client's own name for it, as OpenAI's API has it.
pub(crate) const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");
const NODE: HeaderName = HeaderName::from_static("x-otela-node");
const SESSION: HeaderName = HeaderName::from_static("x-otela-session");
const PATH: HeaderName = HeaderName::from_static("x-otela-path");
/// Set by a node on an answer of its own when the engine never saw the request.
pub(crate) const NOT_DELIVERED: HeaderName = HeaderName::from_static("x-otela-not-delivered");
/// How many requests a node has in hand, from everybody.
pub(crate) const LOAD: HeaderName = HeaderName::from_static("x-otela-load");
/// Asks a node for [`NODE_TIMING`].
pub(crate) const TIMING: HeaderName = HeaderName::from_static("x-otela-timing");
/// Where a node's time went.
pub(crate) const NODE_TIMING: HeaderName = HeaderName::from_static("x-otela-node-timing");
/// What the stages of a request took.
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// What engines are given of a client's headers. `Accept-Encoding` is not among them: answers have to be read here
/// as far as event boundaries.
const TO_NODES: [&str; 8] = [
    "accept",
    "accept-language",
    "anthropic-beta",
    "anthropic-version",
    "content-type",
    "openai-beta",
    "traceparent",
    "tracestate",
];

/// The headers of a node's request, from a client's.
pub(crate) fn to_node(client: &HeaderMap, request_id: &str) -> HeaderMap {
    let named = hop::named(client);
    let mut headers = HeaderMap::with_capacity(6);
    // HTTP/1.1 wants a host; it names nothing, since the substream already leads to the node.
    headers.insert(header::HOST, HeaderValue::from_static("otela"));
    for name in TO_NODES {
        if named.iter().any(|hop| hop == name) {
            continue;
        }
        for value in client.get_all(name) {
            headers.append(HeaderName::from_static(name), value.clone());
        }
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    headers
}

/// What a client may carry in a query that is nobody else's business.
const SECRET_PARAMETERS: [&str; 7] = ["access_token", "api-key", "api_key", "apikey", "auth", "key", "token"];

/// The path and query for a node: without credentials.
pub(crate) fn path_to_node(path: &PathAndQuery) -> PathAndQuery {
    let Some(query) = path.query() else { return path.clone() };
    let is_secret = |parameter: &&str| {
        let name = parameter.split('=').next().unwrap_or_default();
        SECRET_PARAMETERS.iter().any(|secret| name.eq_ignore_ascii_case(secret))
    };
    if !query.split('&').any(|parameter| is_secret(&parameter)) {
        return path.clone();
    }
    let kept: Vec<_> = query.split('&').filter(|parameter| !is_secret(parameter)).collect();
    let path = path.path();
    let text = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
    // Parts of what was a path and query are one.
    text.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

/// Turns the headers of a node's answer into the client's.
pub(crate) fn to_client(headers: &mut HeaderMap, request_id: &str, from: Option<(&Candidate, Path)>) {
    hop::strip(headers);
    // Only we may use these names.
    let ours: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("x-otela-")).cloned().collect();
    for name in ours {
        // The simulated engine says that it is simulated; that must reach people.
        if name != "x-otela-simulated" {
            headers.remove(name);
        }
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some((candidate, path)) = from {
        headers.insert(NODE, candidate.name().clone());
        headers.insert(SESSION, HeaderValue::from(candidate.session().epoch.0));
        headers.insert(PATH, HeaderValue::from_static(path.name()));
    }
}

/// How long an answer asks its reader to stay away: `retry-after-ms`, or `Retry-After` in seconds or as a date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(ms) = text(&RETRY_AFTER_MS).and_then(|ms| ms.parse().ok()) {
        return Some(Duration::from_millis(ms));
    }
    let after = text(&header::RETRY_AFTER)?;
    let until = || httpdate::parse_http_date(after).ok()?.duration_since(SystemTime::now()).ok();
    after.parse().ok().map(Duration::from_secs).or_else(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn p24_nothing_personal_leaves() {
        let client = map(&[
            ("authorization", "Bearer canary"),
            ("x-api-key", "canary"),
            ("cookie", "canary"),
            ("x-forwarded-for", "canary"),
            ("user-agent", "canary"),
            ("x-otela-node", "canary"),
            ("content-type", "application/json"),
            ("traceparent", "00-1-2-3"),
        ]);
        let node = to_node(&client, "r1");
        assert!(node.values().all(|value| !value.to_str().unwrap().contains("canary")));
        assert_eq!(node["content-type"], "application/json");
        assert_eq!(node["x-request-id"], "r1");
        assert_eq!(node["traceparent"], "00-1-2-3");
    }

    #[test]
    fn p24_credentials_leave_the_query_and_nothing_else_does() {
        for (client, node) in [
            ("/v1/x?api_key=canary", "/v1/x"),
            ("/v1/x?a=%2F&API-KEY=canary&b", "/v1/x?a=%2F&b"),
            ("/v1/x?a=api_key", "/v1/x?a=api_key"),
            ("/v1/x", "/v1/x"),
        ] {
            assert_eq!(path_to_node(&client.parse().unwrap()).as_str(), node);
        }
    }

    #[test]
    fn p07_headers_of_one_hop_stay_there() {
        let client = map(&[("connection", "close, Content-Type"), ("content-type", "x"), ("accept", "y")]);
        let node = to_node(&client, "r1");
        assert!(!node.contains_key("content-type") && node.contains_key("accept"));
        let mut answer = map(&[
            ("connection", "X-Private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("x-otela-not-delivered", "1"),
            ("content-encoding", "gzip"),
            ("retry-after", "30"),
        ]);
        to_client(&mut answer, "r1", None);
        let left: Vec<_> = answer.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["content-encoding", "retry-after", "x-request-id"]);
    }

    #[test]
    fn p18_pauses_are_read_however_they_are_told() {
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
        assert_eq!(retry_after(&map(&[("retry-after", "30")])), Some(Duration::from_secs(30)));
        assert_eq!(
            retry_after(&map(&[("retry-after", "30"), ("retry-after-ms", "250")])),
            Some(Duration::from_millis(250))
        );
        let mut dated = HeaderMap::new();
        dated.insert(header::RETRY_AFTER, HeaderValue::from_str(&soon).unwrap());
        assert!(retry_after(&dated).unwrap() > Duration::from_secs(50));
        assert_eq!(retry_after(&map(&[("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT")])), None);
        assert_eq!(retry_after(&map(&[("retry-after", "soon")])), None);
    }
}
