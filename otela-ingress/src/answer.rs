//! The client's answer: the node's bytes as they come, and what happens when they stop coming.
//!
//! An event stream that breaks is continued on another node where that is possible. Where it is not, it ends with an
//! error event in the endpoint's dialect and an aborted connection, never with a clean end. One that is silent gets
//! comments between events. Everything else is passed on untouched.

mod events;
mod framed;
mod source;

use crate::{
    account::Account,
    attempt::{Begun, BegunBody, node_stages},
    balance::InFlight,
    failure::Whole,
    headers::{self, SERVER_TIMING},
    metrics::End,
    request::Inference,
    stream::Usage,
};
use bytes::Bytes;
use events::Events;
pub(crate) use framed::Continues;
use http::{HeaderMap, HeaderValue, Response, Version, header};
use http_body::{Body, Frame, SizeHint};
use otela_node::telemetry::chain;
use source::Source;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// The answer broke off; the connection is aborted so that the client cannot take it for whole.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct BrokeOff;

/// The body of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    kind: Kind,
    account: Account,
}

#[derive(Debug)]
enum Kind {
    Whole(Option<Bytes>),
    Large(Bytes, Source),
    Events(Box<Events>),
}

/// Makes the client's answer from what has begun.
pub(crate) fn answer(
    begun: Begun,
    in_flight: InFlight,
    request: &Arc<Inference>,
    mut account: Account,
) -> Response<Answer> {
    let Begun { mut head, path, body, asked_usage, exchange, node } = begun;
    let standing = Arc::clone(in_flight.candidate().standing());
    // Framing is made anew on each hop.
    head.version = Version::HTTP_11;
    headers::to_client(&mut head.headers, &request.id, Some((in_flight.candidate(), path)));
    account.tried(&in_flight, "ok", exchange);
    (account.stages.exchange, account.stages.node) = (exchange, node);
    account.status = Some(head.status);
    account.answered_by(in_flight, path);
    tell_timing(&mut head.headers, request, &account);
    let stall = request.settings.stall_within;
    let is_opaque = head.headers.contains_key(header::CONTENT_ENCODING);
    let kind = match body {
        BegunBody::Whole(bytes) => {
            let failed = head.status.is_server_error();
            if head.status.is_success() {
                standing.health.succeeded();
                account.usage = usage_of(&bytes);
            } else if failed {
                strike(&account, request);
            }
            account.ended(if failed { End::Failed } else { End::Complete });
            Kind::Whole(Some(bytes))
        }
        BegunBody::Large(first, rest) => Kind::Large(first, Source::new(rest, stall)),
        // Encoded bytes are opaque: nothing may be put between them.
        BegunBody::Events(first, rest) if is_opaque => Kind::Large(first, Source::new(rest, stall)),
        BegunBody::Events(first, rest) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Kind::Events(Box::new(Events::new(account.app(), request, head.status, first, rest, asked_usage)))
        }
    };
    Response::from_parts(head, Answer { kind, account })
}

/// Passes on a node's own refusal, when nobody else could do better.
pub(crate) fn passed_on(mut refusal: Whole, request: &Inference, mut account: Account) -> Response<Answer> {
    account.stages.node = node_stages(&refusal.head.headers);
    let from = account.last_tried().zip(refusal.path);
    headers::to_client(&mut refusal.head.headers, &request.id, from);
    account.status = Some(refusal.head.status);
    tell_timing(&mut refusal.head.headers, request, &account);
    account.ended(End::Failed);
    Response::from_parts(refusal.head, Answer { kind: Kind::Whole(Some(refusal.body)), account })
}

fn tell_timing(headers: &mut HeaderMap, request: &Inference, account: &Account) {
    if request.wishes.timing
        && let Ok(timing) = HeaderValue::from_str(&account.server_timing())
    {
        headers.insert(SERVER_TIMING, timing);
    }
}

fn strike(account: &Account, request: &Inference) {
    if let Some(in_flight) = account.in_flight() {
        crate::trial::strike(account.app(), in_flight.candidate(), request, crate::standing::Strike::Error);
    }
}

/// The account at the end of an answer, as engines write it, without reading all of the answer.
fn usage_of(body: &Bytes) -> Option<Usage> {
    /// Accounts stand at the end and are small.
    const LOOKED_AT: usize = 4096;
    let tail = &body[body.len().saturating_sub(LOOKED_AT)..];
    let name = b"\"usage\"";
    let at = tail.windows(name.len()).rposition(|part| part == name)?;
    let value = tail[at + name.len()..].trim_ascii_start().strip_prefix(b":")?;
    serde_json::Deserializer::from_slice(value).into_iter::<Usage>().next()?.ok()
}

impl Drop for Answer {
    fn drop(&mut self) {
        if matches!(&self.kind, Kind::Events(events) if events.is_done()) {
            self.account.ended(End::Complete);
        }
    }
}

type Polled = Poll<Option<Result<Frame<Bytes>, BrokeOff>>>;

impl Body for Answer {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let Self { kind, account } = self.get_mut();
        let polled = match kind {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b)))),
            Kind::Large(first, rest) => poll_large(first, rest, account, cx),
            Kind::Events(events) => events.poll_frame(cx, account),
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            account.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Kind::Large(first, rest) => first.is_empty() && rest.is_end_stream(),
            // Its end has to be seen by `poll_frame`, which counts it.
            Kind::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Large(first, rest) => {
                let first = first.len() as u64;
                rest.size_hint().exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(first + rest))
            }
            Kind::Events(_) => SizeHint::default(),
        }
    }
}

fn poll_large(first: &mut Bytes, rest: &mut Source, account: &mut Account, cx: &mut Context<'_>) -> Polled {
    if !first.is_empty() {
        return Poll::Ready(Some(Ok(Frame::data(std::mem::take(first)))));
    }
    let polled = rest.poll_frame(cx);
    let rest_ended = rest.is_end_stream();
    match &polled {
        Poll::Ready(None) => account.ended(End::Complete),
        Poll::Ready(Some(Err(error))) => {
            tracing::info!(request = %account.id(), error = chain(error), "answer broke off");
            account.ended(End::BrokeOff);
        }
        // With a length announced, nobody asks again after the last byte.
        Poll::Ready(Some(Ok(_))) if rest_ended => account.ended(End::Complete),
        Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
    }
    polled.map(|frame| frame.map(|frame| frame.map_err(|_| BrokeOff)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p09_accounts_are_found_at_the_end_without_reading_what_is_before() {
        let usage = |text: &str| usage_of(&Bytes::copy_from_slice(text.as_bytes()));
        let long =
            format!(r#"{{"data":[{}],"usage": {{"prompt_tokens":7,"total_tokens":7}}}}"#, "0.1,".repeat(1 << 18));
        assert_eq!(usage(&long), Some(Usage { prompt_tokens: 7, completion_tokens: 0 }));
        let responses = r#"{"output":[],"usage":{"input_tokens":3,"output_tokens":4,"x":{}},"user":null}"#;
        assert_eq!(usage(responses), Some(Usage { prompt_tokens: 3, completion_tokens: 4 }));
        assert_eq!(usage("{}"), None);
        assert_eq!(usage(r#"{"usage":null}"#), None);
    }
}
