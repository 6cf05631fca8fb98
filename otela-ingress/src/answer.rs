//! The client's answer: the node's bytes as they come, and what happens when they stop coming.
//!
//! An event stream that breaks ends with an error event in the endpoint's dialect and an aborted connection, never
//! with a clean end; one that is silent gets comments between events. Everything else is passed on untouched.

use crate::{
    attempt::{Begun, BegunBody, Whole},
    balance::InFlight,
    defaults::LAST_WORDS_WITHIN,
    events::{Dialect, Failures, Tap},
    forward::{App, Inference},
    headers,
    metrics::{End, IngressMetrics},
};
use bytes::Bytes;
use http::{Response, Version, header};
use http_body::{Body, Frame, SizeHint};
use otela_node::peer::{Path, PooledBody};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// A comment says nothing and keeps the connection alive.
const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

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
    Large(Option<Bytes>, PooledBody),
    Events(Box<Events>),
}

#[derive(Debug)]
struct Events {
    first: Option<Bytes>,
    rest: PooledBody,
    tap: Tap,
    failures: Failures,
    dialect: Dialect,
    request: String,
    path: Path,
    keep_alive: Pin<Box<Sleep>>,
    keep_alive_every: Duration,
    /// Until the client closes its sending side, once.
    half_closed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Until the ingress has no more time for it.
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    is_closing: bool,
    /// Set once the stream is broken and the client has been told: the abort waits for the words to leave.
    aborting: bool,
}

/// Counts the request exactly once, when its body ends or is dropped.
#[derive(Debug)]
struct Account {
    metrics: IngressMetrics,
    end: Option<End>,
    started: Instant,
    _in_flight: Option<InFlight>,
}

impl Account {
    fn new(app: &App, in_flight: Option<InFlight>) -> Self {
        app.metrics.in_flight.inc();
        Self { metrics: app.metrics.clone(), end: None, started: Instant::now(), _in_flight: in_flight }
    }

    fn ended(mut self, end: End) -> Self {
        self.end = Some(end);
        self
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        // A body that is dropped before its end has lost its client.
        self.metrics.ended(self.end.unwrap_or(End::ClientGone), self.started.elapsed());
    }
}

/// Makes the client's answer from what has begun.
pub(crate) fn answer(app: &App, begun: Begun, in_flight: InFlight, request: &Inference) -> Response<Answer> {
    let Begun { mut head, path, body } = begun;
    // Framing is made anew on each hop.
    head.version = Version::HTTP_11;
    let node = in_flight.replica().session().peer;
    headers::to_client(&mut head.headers, &request.id, Some((&node, path)));
    let mut account = Account::new(app, Some(in_flight));
    let kind = match body {
        BegunBody::Whole(bytes) => {
            let failed = head.status.is_server_error();
            account.end = Some(if failed { End::Failed } else { End::Complete });
            Kind::Whole(Some(bytes))
        }
        BegunBody::Large(first, rest) => Kind::Large(Some(first), rest),
        // Encoded bytes are opaque: nothing may be put between them.
        BegunBody::Events(first, rest) if head.headers.contains_key(header::CONTENT_ENCODING) => {
            Kind::Large(first, rest)
        }
        BegunBody::Events(first, rest) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Kind::Events(Box::new(Events {
                first,
                rest,
                tap: Tap::default(),
                failures: Failures::default(),
                dialect: Dialect::of(request.path.path()),
                request: request.id.clone(),
                path,
                // A stream that has been silent for so long gets its first comment at once.
                keep_alive: Box::pin(sleep(app.config.keep_alive_every)),
                keep_alive_every: app.config.keep_alive_every,
                closing: Box::pin(app.closing.clone().cancelled_owned()),
                is_closing: false,
                half_closed: Some(Box::pin(request.client.half_closed())),
                aborting: false,
            }))
        }
    };
    Response::from_parts(head, Answer { kind, account })
}

/// Passes on a node's own refusal, when nobody else could do better.
pub(crate) fn passed_on(app: &App, mut refusal: Whole, request: &Inference) -> Response<Answer> {
    headers::to_client(&mut refusal.head.headers, &request.id, None);
    let account = Account::new(app, None).ended(End::Failed);
    Response::from_parts(refusal.head, Answer { kind: Kind::Whole(Some(refusal.body)), account })
}

type Polled = Poll<Option<Result<Frame<Bytes>, BrokeOff>>>;

impl Body for Answer {
    type Data = Bytes;
    type Error = BrokeOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let Self { kind, account } = self.get_mut();
        match kind {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b)))),
            Kind::Large(first, rest) => {
                if let Some(first) = first.take() {
                    return Poll::Ready(Some(Ok(Frame::data(first))));
                }
                let polled = Pin::new(&mut *rest).poll_frame(cx);
                let rest_ended = rest.is_end_stream();
                match polled {
                    Poll::Ready(None) => account.end = Some(End::Complete),
                    Poll::Ready(Some(Err(_))) => account.end = Some(End::BrokeOff),
                    // With a length announced, nobody asks again after the last byte.
                    Poll::Ready(Some(Ok(_))) if rest_ended => account.end = Some(End::Complete),
                    Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
                }
                polled.map(|frame| frame.map(|frame| frame.map_err(|_| BrokeOff)))
            }
            Kind::Events(events) => events.poll_frame(cx, account),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Kind::Large(first, rest) => first.is_none() && rest.is_end_stream(),
            // Its end has to be seen by `poll_frame`, which counts it.
            Kind::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Large(first, rest) => {
                let first = first.as_ref().map_or(0, |b| b.len() as u64);
                rest.size_hint().exact().map_or_else(SizeHint::default, |rest| SizeHint::with_exact(first + rest))
            }
            Kind::Events(_) => SizeHint::default(),
        }
    }
}

impl Events {
    fn poll_frame(&mut self, cx: &mut Context<'_>, account: &mut Account) -> Polled {
        if self.aborting {
            std::task::ready!(self.keep_alive.as_mut().poll(cx));
            return Poll::Ready(Some(Err(BrokeOff)));
        }
        if let Some(first) = self.first.take() {
            return self.pass_on(first);
        }
        self.is_closing = self.is_closing || self.closing.as_mut().poll(cx).is_ready();
        if self.is_closing && self.tap.between_events() {
            account.end = Some(End::BrokeOff);
            return self.break_off();
        }
        match Pin::new(&mut self.rest).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => self.pass_on(data),
                Err(trailers) => Poll::Ready(Some(Ok(trailers))),
            },
            Poll::Ready(None) => {
                let failed = self.failures.seen();
                account.end = Some(if failed { End::Failed } else { End::Complete });
                account.metrics.error_events.inc_by(u64::from(failed));
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::info!(request = %self.request, %error, "stream broke off");
                account.end = Some(End::BrokeOff);
                self.break_off()
            }
            Poll::Pending => self.poll_silence(cx),
        }
    }

    fn pass_on(&mut self, data: Bytes) -> Polled {
        self.tap.note(&data);
        self.failures.note(&data);
        self.keep_alive.as_mut().reset(Instant::now() + self.keep_alive_every);
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn break_off(&mut self) -> Polled {
        if !self.tap.between_events() {
            return Poll::Ready(Some(Err(BrokeOff)));
        }
        self.aborting = true;
        self.keep_alive.as_mut().reset(Instant::now() + LAST_WORDS_WITHIN);
        Poll::Ready(Some(Ok(Frame::data(self.dialect.broken(&self.request, self.path).into()))))
    }

    /// Only polled while the client reads, so comments never pile up before a client that does not.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Polled {
        // A client that has closed its sending side may have gone altogether; only sending something tells.
        let probe = self.half_closed.as_mut().is_some_and(|closed| closed.as_mut().poll(cx).is_ready());
        let silent = self.keep_alive.as_mut().poll(cx).is_ready();
        if !probe && !silent {
            return Poll::Pending;
        }
        self.keep_alive.as_mut().reset(Instant::now() + self.keep_alive_every);
        if self.tap.between_events() {
            if probe {
                self.half_closed = None;
            }
            return Poll::Ready(Some(Ok(Frame::data(KEEP_ALIVE))));
        }
        // The timer was reset and has to be asked once more to wake us.
        self.keep_alive.as_mut().poll(cx).map(|()| None)
    }
}
