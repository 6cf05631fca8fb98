//! One attempt on one node: from sending the request to the first bytes of an answer that is worth passing on.

use crate::{
    balance::InFlight,
    defaults::HELD_ANSWER_BYTES_MAX,
    forward::{App, Inference},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header, request, response};
use http_body::Body;
use http_body_util::BodyExt;
use otela_node::peer::{Path, PooledBody, RequestBody, SendError};
use std::time::Duration;

/// Set by a node on an answer of its own when the engine never saw the request.
const NOT_DELIVERED: &str = "x-otela-not-delivered";

/// An answer that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) head: response::Parts,
    pub(crate) path: Path,
    pub(crate) body: BegunBody,
}

/// How much of an answer is here.
#[derive(Debug)]
pub(crate) enum BegunBody {
    /// All of it.
    Whole(Bytes),
    /// An event stream: its first bytes, unless it is silent so far, and the rest.
    Events(Option<Bytes>, PooledBody),
    /// Something large: its first part and the rest.
    Large(Bytes, PooledBody),
}

/// Why an attempt gave nothing to pass on.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request could not be sent, or the connection broke before an answer.
    Send(SendError),
    /// No head of an answer in time.
    Timeout(Duration),
    /// The node or its engine answers that it cannot serve: passed on if nobody else can.
    Refused(Box<Whole>),
    /// The answer broke off before anything of it was passed on.
    Truncated,
    /// The answer says that all is well and holds nothing.
    Empty,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) head: response::Parts,
    pub(crate) body: Bytes,
    delivered: bool,
}

impl Failure {
    /// Whether an engine may have worked on the request.
    pub(crate) fn delivered(&self) -> bool {
        match self {
            Self::Send(error) => error.delivered(),
            Self::Refused(whole) => whole.delivered,
            Self::Timeout(_) | Self::Truncated | Self::Empty => true,
        }
    }

    /// Whether the way to the node is gone, and perhaps not the node.
    pub(crate) fn is_of_the_path(&self) -> bool {
        matches!(self, Self::Send(SendError::PathLost { .. }))
    }

    /// Whether another node may do better. Time-outs stay here: sending a long prompt from engine to engine
    /// because it takes long is how overload spreads.
    pub(crate) fn may_go_elsewhere(&self) -> bool {
        !matches!(self, Self::Timeout(_))
    }

    /// The failure as a metric label.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Send(SendError::Busy) => "busy",
            Self::Send(SendError::Connect(_) | SendError::ConnectTimeout(_)) => "unreachable",
            Self::Send(SendError::Broken { .. }) => "broken",
            Self::Send(SendError::PathLost { .. }) => "path_lost",
            Self::Timeout(_) => "timeout",
            Self::Refused(_) => "refused",
            Self::Truncated => "truncated",
            Self::Empty => "empty",
        }
    }
}

/// Sends the request to the replica of `in_flight`. Dropping the future cancels it there.
pub(crate) async fn attempt(app: &App, in_flight: &InFlight, request: &Inference) -> Result<Begun, Failure> {
    let node = in_flight.replica().session().peer;
    let sending = app.peer.send(&node, head_of(request), RequestBody::Whole(request.body.clone()));
    let sent = match app.config.answer_within {
        Some(within) => tokio::time::timeout(within, sending).await.map_err(|_| Failure::Timeout(within))?,
        None => sending.await,
    };
    let (response, connection) = sent.map_err(Failure::Send)?;
    match begin(app, response, connection.path()).await {
        Err(Failure::Truncated) if app.peer.is_lost(&connection).await => {
            Err(Failure::Send(SendError::PathLost { delivered: true }))
        }
        begun => begun,
    }
}

/// Waits for what is worth passing on of an answer whose head is there.
async fn begin(app: &App, response: Response<PooledBody>, path: Path) -> Result<Begun, Failure> {
    let (head, body) = response.into_parts();
    if is_event_stream(&head) {
        return begin_events(app, head, path, body).await;
    }
    let (whole, rest) = hold(body).await?;
    if let Some(rest) = rest {
        return Ok(Begun { head, path, body: BegunBody::Large(whole, rest) });
    }
    check_whole(&head, &whole)?;
    Ok(Begun { head, path, body: BegunBody::Whole(whole) })
}

/// Waits for the first event, but not longer than the client should wait for a sign of life.
async fn begin_events(app: &App, head: response::Parts, path: Path, mut body: PooledBody) -> Result<Begun, Failure> {
    let first = match tokio::time::timeout(app.config.keep_alive_every, next_data(&mut body)).await {
        Ok(Some(Ok(first))) => Some(first),
        Ok(Some(Err(_))) => return Err(Failure::Truncated),
        Ok(None) if head.status.is_success() => return Err(Failure::Empty),
        Ok(None) | Err(_) => None,
    };
    Ok(Begun { head, path, body: BegunBody::Events(first, body) })
}

/// The next bytes of a body; frames that hold none are passed over.
async fn next_data(body: &mut PooledBody) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match body.frame().await? {
            Ok(frame) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Some(Ok(data));
                }
            }
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads a body to its end, or to the bound on what is held; then the rest comes along.
async fn hold(mut body: PooledBody) -> Result<(Bytes, Option<PooledBody>), Failure> {
    let Some(first) = next_data(&mut body).await else { return Ok((Bytes::new(), None)) };
    let first = first.map_err(|_| Failure::Truncated)?;
    if body.is_end_stream() {
        return Ok((first, None));
    }
    let mut held = BytesMut::from(first);
    while held.len() < HELD_ANSWER_BYTES_MAX {
        match next_data(&mut body).await {
            None => return Ok((held.freeze(), None)),
            Some(Ok(data)) => held.extend_from_slice(&data),
            Some(Err(_)) => return Err(Failure::Truncated),
        }
    }
    Ok((held.freeze(), Some(body)))
}

fn check_whole(head: &response::Parts, body: &Bytes) -> Result<(), Failure> {
    let unavailable = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    if unavailable.contains(&head.status) {
        let delivered = !head.headers.contains_key(NOT_DELIVERED);
        let whole = Whole { head: head.clone(), body: body.clone(), delivered };
        return Err(Failure::Refused(Box::new(whole)));
    }
    if head.status == StatusCode::OK && body.is_empty() {
        return Err(Failure::Empty);
    }
    Ok(())
}

fn is_event_stream(head: &response::Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
}

fn head_of(request: &Inference) -> request::Parts {
    let mut head = Request::new(()).into_parts().0;
    head.method = request.method.clone();
    head.uri = request.path.clone().into();
    head.headers = request.headers.clone();
    head
}
