//! Reads a client's request and checks all that can be checked before a candidate is looked for.

use super::{affinity, body, error::ApiError, multipart, scan, scan::Scan, target::Target};
use crate::{
    account::Account,
    balance::Policy,
    candidate::{Selector, Wanted},
    client_io::Client,
    config::Settings,
    forward::App,
    headers::{self, TIMING},
    queue::Caller,
    request::{Inference, Resume, Wishes},
    require::Requirements,
    trust::Trusted,
};
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, Version, header, request, uri::Authority},
};
use bytes::Bytes;
use otela_proto::engine_path;
use std::hash::BuildHasher;

const TRUSTED: &str = "x-otela-trusted-providers";
const REQUIRE: &str = "x-otela-require";
const POLICY: &str = "x-otela-policy";
const RESUME: &str = "x-otela-resume";

/// Larger bodies take milliseconds to look at.
const LOOKED_AT_HERE: usize = 1024 * 1024;

/// The request, ready to be routed.
pub(super) async fn read(
    app: &App,
    client: Client,
    request: Request,
    account: &mut Account,
) -> Result<Inference, ApiError> {
    let (head, body) = request.into_parts();
    let settings = app.settings.load_full();
    check_framing(&head)?;
    let target = Target::of(&head.uri, &head.method, &head.headers)?;
    check_path(app, &target, &head)?;
    let wishes = wishes(&head.headers)?;
    let (bytes, room) = body::read(app, &settings, &head.headers, body).await?;
    let found = understand(app, &target, &head.headers, &bytes).await?;
    let wanted = wanted(&target, found.model.clone())?;
    let model = settings.of(wanted.name()).clone();
    let policy = policy(&head.headers, &settings, model.policy)?;
    let affinity = match policy {
        Policy::Affinity => affinity(app, &head.headers, &found, &bytes).await,
        _ => None,
    };
    let selector = selector(&head.headers, &found)?;
    let mut to_node = headers::to_node(&head.headers, account.id());
    if wishes.timing {
        to_node.insert(TIMING, HeaderValue::from_static("1"));
    }
    let caller = caller(app, &head.headers, &client);
    let request = Inference {
        wanted,
        selector,
        method: head.method,
        path: headers::path_to_node(&target.path),
        headers: to_node,
        body: bytes,
        scan: found,
        id: account.id().clone(),
        client,
        caller,
        affinity,
        policy,
        wishes,
        settings: model,
        span: account.span().clone(),
        _room: room,
    };
    account.is_read(&request);
    Ok(request)
}

/// HTTP/1.1 has exactly one `Host` (RFC 9112, section 3.2): of two, what stands in front may have gone by the other. And
/// what is said of the transfer is undone as it says, or refused (section 6.1).
fn check_framing(head: &request::Parts) -> Result<(), ApiError> {
    if head.version != Version::HTTP_11 {
        return Ok(());
    }
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let is_one = hosts.next().is_some_and(is_host) && hosts.next().is_none();
    if !is_one {
        return Err(
            ApiError::bad_request("invalid_header", "A request of HTTP/1.1 has exactly one Host header.").close()
        );
    }
    let is_chunked = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if head.headers.get_all(header::TRANSFER_ENCODING).iter().all(is_chunked) {
        return Ok(());
    }
    let message = "Of transfer codings only chunked is known: say how the body is encoded in Content-Encoding.";
    Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "unsupported_encoding", message).close())
}

/// A host and perhaps a port; none is said where there is none.
fn is_host(value: &HeaderValue) -> bool {
    let text = value.as_bytes();
    text.is_empty() || (!text.contains(&b'@') && Authority::try_from(text).is_ok())
}

/// The path is one that engines may be asked for.
fn check_path(app: &App, target: &Target, head: &request::Parts) -> Result<(), ApiError> {
    let path = target.path.path();
    if engine_path::is_inference(path) {
        return Ok(());
    }
    // A service may have paths of its own, which its provider has opened.
    let view = app.peer.view();
    let opened = target.is_explicit()
        && view.nodes().any(|(_, node)| {
            let services = node.entry.payload().services.iter();
            let mut asked = services.filter(|service| target.service.as_ref().is_none_or(|name| service.name == *name));
            asked.any(|service| engine_path::is_opened(path, &service.paths))
        });
    if opened { Ok(()) } else { Err(ApiError::unknown_url(&head.method, &head.uri)) }
}

/// What the body says.
async fn understand(app: &App, target: &Target, headers: &HeaderMap, body: &Bytes) -> Result<Scan, ApiError> {
    let is_explicit = target.is_explicit();
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if body.len() <= LOOKED_AT_HERE {
        return look(is_explicit, kind, body);
    }
    let (kind, body) = (kind.to_vec(), body.clone());
    app.aside.run(move || look(is_explicit, &kind, &body)).await
}

/// Only JSON and forms say something; without a model the address has to say who is meant.
fn look(is_explicit: bool, kind: &[u8], body: &Bytes) -> Result<Scan, ApiError> {
    if kind.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/")) {
        let kind = std::str::from_utf8(kind).unwrap_or_default();
        let form = multipart::read(kind, body).map_err(ApiError::from)?;
        return Ok(Scan { model: form.model, stream: form.stream, ..Scan::default() });
    }
    match scan::scan(body) {
        Ok(found) => Ok(found),
        // Whatever it is, it is for the engine.
        Err(_) if is_explicit && !kind.starts_with(b"application/json") => Ok(Scan::default()),
        Err(error) => Err(error.into()),
    }
}

/// The number by which requests meet again.
async fn affinity(app: &App, headers: &HeaderMap, found: &Scan, body: &Bytes) -> Option<u64> {
    if body.len() <= LOOKED_AT_HERE {
        return affinity::key(headers, found, body);
    }
    let (headers, found, body) = (headers.clone(), found.clone(), body.clone());
    app.aside.run(move || affinity::key(&headers, &found, &body)).await
}

fn wanted(target: &Target, model: Option<String>) -> Result<Wanted, ApiError> {
    let (mut model, mut label) = (model, None);
    match &target.group {
        // What the header says counts instead of the body.
        Some((key, value)) if key == "model" => model = Some(value.clone()),
        Some(pair) => label = Some(pair.clone()),
        None => {}
    }
    let service = target.service.clone().or_else(|| (model.is_none() && label.is_some()).then(|| "llm".to_owned()));
    if model.is_none() && service.is_none() && target.node.is_none() {
        let message = "The request names no `model`.";
        return Err(ApiError::bad_request("missing_model", message).param("model"));
    }
    Ok(Wanted { model, service, node: target.node, label })
}

/// Whom the caller trusts and what it requires: by header, by the body's metadata, or both, and then both count.
fn selector(headers: &HeaderMap, scan: &Scan) -> Result<Selector, ApiError> {
    let listed = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"));
    let invalid = |error: crate::trust::InvalidTrust| ApiError::bad_request("invalid_trust", error.to_string());
    let mut trusted = None;
    if headers.contains_key(TRUSTED) {
        let ids = listed(TRUSTED).flat_map(|value| value.split(','));
        trusted = Some(Trusted::of(ids).map_err(invalid)?);
    }
    if let Some(ids) = &scan.trusted {
        let also = Trusted::of(ids.iter().map(String::as_str)).map_err(invalid)?;
        trusted = match trusted {
            None => Some(also),
            Some(trusted) => Some(trusted.and(&also).ok_or_else(|| {
                let message = "The lists of trusted providers in the header and in the body have nobody in common.";
                ApiError::bad_request("invalid_trust", message)
            })?),
        };
    }
    let mut require = Requirements::default();
    for text in listed(REQUIRE).chain(scan.require.as_deref()) {
        let more = text.parse().map_err(|error: crate::require::InvalidRequirement| {
            ApiError::bad_request("invalid_requirement", error.to_string())
        })?;
        require = require.and(more);
    }
    Ok(Selector { trusted, require })
}

fn policy(headers: &HeaderMap, settings: &Settings, usual: Policy) -> Result<Policy, ApiError> {
    let mut names = headers.get_all(POLICY).iter();
    let Some(name) = names.next() else { return Ok(usual) };
    if !settings.policy_by_request {
        let message = "This service does not let requests choose their balancing policy: leave out X-Otela-Policy.";
        return Err(ApiError::bad_request("policy_not_allowed", message));
    }
    if names.next().is_some() {
        return Err(ApiError::bad_request("unknown_policy", "X-Otela-Policy is given twice, and one policy balances."));
    }
    let name = name.to_str().unwrap_or("?");
    name.parse().map_err(|error: crate::UnknownPolicy| ApiError::bad_request("unknown_policy", error.to_string()))
}

fn wishes(headers: &HeaderMap) -> Result<Wishes, ApiError> {
    let resume = match headers.get(RESUME).map(HeaderValue::as_bytes) {
        None | Some(b"on") => Resume::On,
        Some(b"mark") => Resume::Marked,
        Some(b"off") => Resume::Off,
        Some(_) => {
            return Err(ApiError::bad_request("invalid_header", "X-Otela-Resume is on, mark or off."));
        }
    };
    Ok(Wishes { resume, timing: headers.get(TIMING).is_some_and(|value| value != "0") })
}

/// Whose request it is, for fair queues: whoever shows the same key, or calls from the same address.
fn caller(app: &App, headers: &HeaderMap, client: &Client) -> Caller {
    let key = headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-api-key")).map(HeaderValue::as_bytes);
    Caller(app.callers.hash_one((key, client.address().filter(|_| key.is_none()))))
}
