//! One attempt on one node: from sending the request to the first bytes of an answer that is worth passing on.

use crate::{
    account::NodeStages,
    balance::InFlight,
    defaults::{CANCELLED_WITHIN, FULL_FOR, HELD_ANSWER_BYTES_MAX, PAUSE_MAX, PRELUDE_BYTES_MAX, PRELUDE_WITHIN},
    failure::{Failure, Whole},
    forward::App,
    headers::{LOAD, NODE_TIMING, NOT_DELIVERED, retry_after},
    request::{Inference, Outgoing},
    stream::{Fault, Faults, Framer, fault},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, response, uri::PathAndQuery};
use http_body::Body;
use http_body_util::BodyExt;
use otela_node::peer::{Path, PooledBody, RequestBody, SendError, SendProgress};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};

/// An answer that has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) head: response::Parts,
    pub(crate) path: Path,
    pub(crate) body: BegunBody,
    /// Whether the engine tells how many tokens it had because we asked for it.
    pub(crate) asked_usage: bool,
    /// From sending the request to what is worth passing on.
    pub(crate) exchange: Duration,
    pub(crate) node: Option<NodeStages>,
}

/// How much of an answer is here.
#[derive(Debug)]
pub(crate) enum BegunBody {
    /// All of it.
    Whole(Bytes),
    /// An event stream: its first bytes, unless it is silent so far, and the rest.
    Events(Bytes, PooledBody),
    /// Something large: its first part and the rest.
    Large(Bytes, PooledBody),
}

/// Sends `outgoing` to the candidate of `in_flight`. Dropping the future cancels it there.
pub(crate) async fn attempt(
    app: &App,
    in_flight: &InFlight,
    request: &Inference,
    outgoing: &Outgoing,
) -> Result<Begun, Failure> {
    let (node, sent_at) = (in_flight.candidate().node(), Instant::now());
    let mut head = outgoing.head.clone();
    in_flight.span().name_in(&mut head.headers);
    let progress = SendProgress::new();
    let sending = app.peer.send(&node, head, RequestBody::Parts(Arc::clone(&outgoing.body), progress.clone()));
    let sent = match request.settings.answer_within {
        Some(within) => progress.answered_within(within, sending).await.ok_or(Failure::Timeout(within))?,
        None => sending.await,
    };
    let (response, connection) = sent.map_err(Failure::Send)?;
    let (headed_at, path) = (Instant::now(), connection.path());
    let (head, body) = response.into_parts();
    let standing = in_flight.candidate().standing();
    standing.load.reported(number(&head.headers, LOAD.as_str()), path);
    let is_full = head.headers.get(NOT_DELIVERED).is_some_and(|why| why == "full");
    match asks_for_pause(&head) {
        Some(_) if is_full => standing.load.is_full_for(FULL_FOR),
        Some(pause) => standing.load.pauses_for(pause),
        None => {}
    }
    let node = node_stages(&head.headers);
    let begin = begin(app, &head, body);
    let begun = match request.settings.stall_within {
        Some(within) => timeout(within, begin).await.unwrap_or(Err(Failure::Stalled(within))),
        None => begin.await,
    };
    match begun {
        Err(Failure::Truncated) if app.peer.is_lost(&connection).await => {
            Err(Failure::Send(SendError::PathLost { delivered: true }))
        }
        Err(failure) => Err(failure.with_answer(head, path)),
        Ok(body) => {
            // Whoever sends a head at once and its first event later takes that time for itself.
            let waited = headed_at.elapsed();
            let node = node.map(|node| NodeStages { engine: node.engine + waited, ..node });
            let exchange = sent_at.elapsed();
            Ok(Begun { head, path, body, asked_usage: outgoing.asks_usage, exchange, node })
        }
    }
}

/// Whether the node has certainly heard that an attempt was cancelled: what is sent to it afterwards, on the same
/// connection, has been answered.
pub(crate) async fn has_heard(app: &App, in_flight: &InFlight, request: &Inference) -> bool {
    let mut head = request.head();
    head.method = Method::GET;
    head.uri = PathAndQuery::from_static("/health").into();
    head.headers.remove(header::CONTENT_TYPE);
    let node = in_flight.candidate().node();
    let asked = app.peer.send(&node, head, RequestBody::Whole(Bytes::new()));
    matches!(timeout(CANCELLED_WITHIN, asked).await, Ok(Ok(_)))
}

/// Waits for what is worth passing on of an answer whose head is there.
async fn begin(app: &App, head: &response::Parts, body: PooledBody) -> Result<BegunBody, Failure> {
    if is_event_stream(head) {
        return begin_events(app, head, body).await;
    }
    let (whole, rest) = hold(body).await?;
    if let Some(rest) = rest {
        return Ok(BegunBody::Large(whole, rest));
    }
    check_whole(head, &whole)?;
    Ok(BegunBody::Whole(whole))
}

/// Waits for the first event that says more than that there will be an answer, so that one which says that it has failed
/// can be had again elsewhere; but not longer than the client should wait for a sign of life, and hardly any longer once
/// there is something to pass on.
async fn begin_events(app: &App, head: &response::Parts, mut body: PooledBody) -> Result<BegunBody, Failure> {
    let (mut held, mut framer) = (BytesMut::new(), Framer::default());
    let mut until = Instant::now() + app.settings.load().keep_alive_every;
    let is_opaque = head.headers.contains_key(header::CONTENT_ENCODING);
    loop {
        let data = match timeout_at(until, next_data(&mut body)).await {
            Ok(Some(Ok(data))) => data,
            // Nothing was passed on yet, so nothing is lost.
            Ok(Some(Err(_))) => return Err(Failure::Truncated),
            Ok(None) if held.is_empty() && head.status.is_success() => return Err(Failure::Empty),
            Ok(None) | Err(_) => break,
        };
        if held.is_empty() {
            until = until.min(Instant::now() + PRELUDE_WITHIN);
        }
        held.extend_from_slice(&data);
        framer.push(data);
        let mut is_telling = is_opaque || held.len() > PRELUDE_BYTES_MAX || !head.status.is_success();
        while let Some(piece) = framer.next() {
            let event = piece.into_bytes();
            if Faults::of(&event) == Some(Fault::Engine) && head.status.is_success() && !is_telling {
                return Err(Failure::ErrorEvent(held.freeze()));
            }
            is_telling |= !fault::is_prelude(&event);
        }
        if is_telling {
            break;
        }
    }
    Ok(BegunBody::Events(held.freeze(), body))
}

/// The next bytes of a body; frames that hold none are passed over.
pub(crate) async fn next_data(body: &mut PooledBody) -> Option<Result<Bytes, hyper::Error>> {
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
pub(crate) async fn hold(mut body: PooledBody) -> Result<(Bytes, Option<PooledBody>), Failure> {
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
    if head.headers.get(NOT_DELIVERED).is_some_and(|why| why == "full") {
        return Err(Failure::Full);
    }
    let unavailable = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    if unavailable.contains(&head.status) || asks_for_pause(head).is_some() {
        // Whoever is too busy has not begun.
        let refused_at_the_door = head.status == StatusCode::TOO_MANY_REQUESTS;
        let delivered = !head.headers.contains_key(NOT_DELIVERED) && !refused_at_the_door;
        let whole = Whole { head: head.clone(), body: body.clone(), delivered, path: None };
        return Err(Failure::Refused(Box::new(whole)));
    }
    if head.status == StatusCode::OK && body.is_empty() {
        return Err(Failure::Empty);
    }
    Ok(())
}

/// For how long the engine or its node wants no further requests.
fn asks_for_pause(head: &response::Parts) -> Option<Duration> {
    let is_busy = matches!(head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    retry_after(&head.headers).filter(|_| is_busy).map(|pause| pause.min(PAUSE_MAX))
}

pub(crate) fn is_event_stream(head: &response::Parts) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
}

fn number(headers: &HeaderMap, name: &str) -> Option<u32> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Two numbers of microseconds: the agent's, and the engine's.
pub(crate) fn node_stages(headers: &HeaderMap) -> Option<NodeStages> {
    let (agent, engine) = headers.get(NODE_TIMING)?.to_str().ok()?.split_once(' ')?;
    let micros = |text: &str| text.parse().ok().map(Duration::from_micros);
    Some(NodeStages { agent: micros(agent)?, engine: micros(engine)? })
}
