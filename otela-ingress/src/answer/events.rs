//! The body of an event stream.

use super::{
    BrokeOff, Polled,
    framed::{Framed, Taken},
    source::{Broken, Source},
};
use crate::{
    account::Account,
    defaults::{LAST_WORDS_WITHIN, RESUMES_MAX},
    forward::App,
    metrics::End,
    request::{Inference, Resume},
    resume::{NotResumed, Resumed, resume},
    standing::Strike,
    stream::{Dialect, Fault, Faults, Tap},
    trial,
};
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use otela_node::{
    peer::{Path, PooledBody},
    telemetry::chain,
};
use otela_proto::id::Session;
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

/// A comment says nothing and keeps the connection alive.
const KEEP_ALIVE: Bytes = Bytes::from_static(b":\n\n");

type Resuming = Pin<Box<dyn Future<Output = Result<Resumed, NotResumed>> + Send>>;

/// Where the next bytes come from.
enum From {
    Engine(Source),
    /// Another engine is looked for.
    Resuming(Resuming),
    /// All has been said.
    Ended,
    /// The client has been told that the stream is broken: the abort waits for the words to leave.
    Aborting(Pin<Box<Sleep>>),
}

impl std::fmt::Debug for From {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Engine(_) => "Engine",
            Self::Resuming(_) => "Resuming",
            Self::Ended => "Ended",
            Self::Aborting(_) => "Aborting",
        })
    }
}

/// How the stream's bytes are treated.
#[derive(Debug)]
enum Bytewise {
    /// As they come.
    Raw(Tap, Bytes),
    /// Event by event.
    Framed(Box<Framed>),
}

#[derive(Debug)]
pub(super) struct Events {
    request: Arc<Inference>,
    first: Bytes,
    from: From,
    bytewise: Bytewise,
    faults: Faults,
    has_spoken: bool,
    tried: Vec<Session>,
    /// How much had been said when the answer was continued last, and how often in a row that was so.
    progress: (usize, u32),
    keep_alive: Pin<Box<Sleep>>,
    keep_alive_every: Duration,
    /// Until the client closes its sending side, once.
    half_closed: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Until the ingress has no more time for it.
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    is_closing: bool,
}

impl Events {
    pub(super) fn new(
        app: &App,
        request: &Arc<Inference>,
        status: StatusCode,
        first: Bytes,
        rest: PooledBody,
        asked_usage: bool,
    ) -> Self {
        let settings = app.settings.load();
        let is_understood = request.endpoint() != crate::request::Endpoint::Other && status.is_success();
        let may_continue = request.scan.is_plain
            && request.scan.stream
            && request.settings.resume
            && request.wishes.resume != Resume::Off;
        let bytewise = if is_understood && (asked_usage || may_continue) {
            Bytewise::Framed(Box::new(Framed::new(asked_usage, may_continue)))
        } else {
            Bytewise::Raw(Tap::default(), Bytes::new())
        };
        Self {
            request: Arc::clone(request),
            first,
            from: From::Engine(Source::new(rest, request.settings.stall_within)),
            bytewise,
            faults: Faults::default(),
            has_spoken: false,
            tried: Vec::new(),
            progress: (0, 0),
            // A stream that has been silent for so long gets its first comment at once.
            keep_alive: Box::pin(sleep(settings.keep_alive_every)),
            keep_alive_every: settings.keep_alive_every,
            half_closed: Some(Box::pin(request.client.half_closed())),
            closing: Box::pin(app.closing.clone().cancelled_owned()),
            is_closing: false,
        }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>, account: &mut Account) -> Polled {
        loop {
            if let Some(bytes) = self.next_out() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if !self.first.is_empty() {
                let first = std::mem::take(&mut self.first);
                self.take_in(first, account);
                continue;
            }
            self.is_closing = self.is_closing || self.closing.as_mut().poll(cx).is_ready();
            if self.is_closing && self.is_between() && matches!(self.from, From::Engine(_) | From::Resuming(_)) {
                account.metrics().stream_broke("stopping");
                self.break_off(account);
                continue;
            }
            match &mut self.from {
                From::Engine(source) => match source.poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) => self.take_in(data, account),
                        Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                    },
                    Poll::Ready(None) => self.ended(account),
                    Poll::Ready(Some(Err(broken))) => self.broken(&broken, account),
                    Poll::Pending => return self.poll_silence(cx),
                },
                From::Resuming(resuming) => match resuming.as_mut().poll(cx) {
                    Poll::Ready(Ok(resumed)) => self.resumed(resumed, account),
                    Poll::Ready(Err(NotResumed(reason))) => {
                        account.metrics().stream_broke(reason);
                        self.break_off(account);
                    }
                    Poll::Pending => return self.poll_silence(cx),
                },
                From::Ended => return Poll::Ready(None),
                From::Aborting(words) => {
                    ready!(words.as_mut().poll(cx));
                    return Poll::Ready(Some(Err(BrokeOff)));
                }
            }
        }
    }

    fn next_out(&mut self) -> Option<Bytes> {
        match &mut self.bytewise {
            Bytewise::Raw(tap, out) => {
                let out = Some(std::mem::take(out)).filter(|out| !out.is_empty());
                out.inspect(|out| tap.note(out))
            }
            Bytewise::Framed(framed) => framed.next(),
        }
        .inspect(|_| self.keep_alive.as_mut().reset(Instant::now() + self.keep_alive_every))
    }

    /// Whether the client has been handed all that matters, up to the event after which nothing comes. Many clients close
    /// then, and do not wait for the end of the body.
    pub(super) fn is_done(&self) -> bool {
        let done = match &self.bytewise {
            Bytewise::Raw(tap, out) => out.is_empty() && tap.is_done(),
            Bytewise::Framed(framed) => framed.is_between() && framed.is_done(),
        };
        done && self.faults.seen().is_none()
    }

    /// Whether something may be put in here.
    fn is_between(&self) -> bool {
        match &self.bytewise {
            Bytewise::Raw(tap, out) => out.is_empty() && tap.between_events(),
            Bytewise::Framed(framed) => framed.is_between(),
        }
    }

    fn put_in(&mut self, event: Bytes) {
        match &mut self.bytewise {
            Bytewise::Raw(_, out) => *out = event,
            Bytewise::Framed(framed) => framed.put_in(event),
        }
    }

    fn take_in(&mut self, data: Bytes, account: &mut Account) {
        self.faults.note(&data);
        if !self.has_spoken && self.faults.seen().is_none() {
            self.has_spoken = true;
            if let Some(in_flight) = account.in_flight() {
                in_flight.candidate().standing().health.succeeded();
            }
        }
        let taken = match &mut self.bytewise {
            Bytewise::Raw(_, out) => {
                *out = data;
                Taken::Well
            }
            Bytewise::Framed(framed) => framed.take_in(data),
        };
        if taken == Taken::Failed {
            tracing::info!(request = %self.request.id, "the engine says within a stream that it has failed");
            account.metrics().error_events.inc();
            self.faults = Faults::default();
            self.go_on(account);
        }
        if let Bytewise::Framed(framed) = &self.bytewise {
            account.usage = framed.transcript().usage;
            account.seen_tokens = framed.transcript().tokens();
        }
    }

    /// The engine has ended its answer.
    fn ended(&mut self, account: &mut Account) {
        let failed = self.faults.seen();
        account.metrics().error_events.inc_by(u64::from(failed.is_some()));
        account.ended(if failed.is_some() { End::Failed } else { End::Complete });
        if failed == Some(Fault::Engine)
            && let Some(in_flight) = account.in_flight()
        {
            trial::strike(account.app(), in_flight.candidate(), &self.request, Strike::Failed);
        }
        if let Bytewise::Framed(framed) = &mut self.bytewise
            && let Some(rest) = framed.take_rest()
        {
            framed.put_in(rest);
        }
        account.let_go();
        self.from = From::Ended;
    }

    /// The engine's answer has broken off.
    fn broken(&mut self, broken: &Broken, account: &mut Account) {
        tracing::info!(request = %self.request.id, error = chain(broken), "stream broke off");
        if matches!(&self.bytewise, Bytewise::Framed(framed) if framed.is_done()) {
            // Only the end of the connection was missing.
            self.ended(account);
            return;
        }
        self.go_on(account);
    }

    /// Looks for an engine that continues the answer, if that is possible.
    fn go_on(&mut self, account: &mut Account) {
        if let Some(in_flight) = account.let_go() {
            self.tried = vec![in_flight.candidate().session()];
            trial::strike(account.app(), in_flight.candidate(), &self.request, Strike::Failed);
            account.tried(&in_flight, "broke_off", Duration::ZERO);
        }
        let Bytewise::Framed(framed) = &self.bytewise else {
            account.metrics().stream_broke("not_text");
            return self.break_off(account);
        };
        if !framed.can_continue() {
            account.metrics().stream_broke("not_text");
            return self.break_off(account);
        }
        let transcript = framed.transcript();
        let said = transcript.text.len();
        let again = if said > self.progress.0 { 0 } else { self.progress.1 + 1 };
        self.progress = (said, again);
        if again > RESUMES_MAX {
            account.metrics().stream_broke("no_progress");
            return self.break_off(account);
        }
        let (app, request) = (Arc::clone(account.app()), Arc::clone(&self.request));
        self.from = From::Resuming(Box::pin(resume(app, request, transcript.clone(), self.tried.clone())));
    }

    /// The answer goes on.
    fn resumed(&mut self, resumed: Resumed, account: &mut Account) {
        account.metrics().stream_broke("continued");
        account.resumed += 1;
        let Bytewise::Framed(framed) = &mut self.bytewise else { return };
        match resumed {
            Resumed::Closing { finish, usage } => {
                framed.close(&self.request, finish, usage);
                account.usage = framed.transcript().usage;
                account.ended(End::Complete);
                self.from = From::Ended;
            }
            Resumed::On(continued) => {
                let node = continued.in_flight.candidate().node();
                tracing::info!(request = %self.request.id, %node, "stream goes on");
                account.tried(&continued.in_flight, "continued", Duration::ZERO);
                account.answered_by(continued.in_flight, continued.path);
                framed.continues(continued.continues, continued.asked_usage);
                if self.request.wishes.resume == Resume::Marked {
                    framed.put_in(format!(": otela: continued on {node}\n\n").into());
                }
                self.has_spoken = false;
                self.first = continued.first;
                self.from = From::Engine(Source::new(continued.rest, self.request.settings.stall_within));
            }
        }
    }

    /// The client is told that the answer is not whole, if something may be put in, and then the connection is aborted.
    fn break_off(&mut self, account: &mut Account) {
        account.ended(End::BrokeOff);
        account.let_go();
        let path = account.route().unwrap_or(Path::Direct);
        let words = if self.is_between() {
            let event = Dialect::of(self.request.path.path()).broken(&self.request.id, path);
            self.put_in(event.into());
            LAST_WORDS_WITHIN
        } else {
            Duration::ZERO
        };
        self.from = From::Aborting(Box::pin(sleep(words)));
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
        if self.is_between() {
            if probe {
                self.half_closed = None;
            }
            return Poll::Ready(Some(Ok(Frame::data(KEEP_ALIVE))));
        }
        // The timer was reset and has to be asked once more to wake us.
        self.keep_alive.as_mut().poll(cx).map(|()| None)
    }
}
