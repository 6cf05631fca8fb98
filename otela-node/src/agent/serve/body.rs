//! Bodies of requests and answers at the door, and what holds while they last.

use super::{Shared, answering::Answering};
use crate::{
    http1::{BoxError, PooledBody, RequestBody},
    telemetry::trace::Span,
};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Sleep, sleep};

/// Bodies up to this size are held, so that they can be sent again over a fresh connection; larger ones stream.
const HELD_BODY_BYTES_MAX: u64 = 1024 * 1024;
/// What an engine sent before it broke off has this long to leave.
const LAST_BYTES_WITHIN: Duration = Duration::from_millis(100);

/// A body in one piece, if it is small; else as it comes.
pub(super) async fn whole_or_stream(body: Incoming) -> Result<RequestBody, hyper::Error> {
    match body.size_hint().exact() {
        Some(length) if length <= HELD_BODY_BYTES_MAX => Ok(RequestBody::Whole(body.collect().await?.to_bytes())),
        _ => Ok(RequestBody::Stream(body)),
    }
}

/// A request in the engine's hands, until its answer has gone or its caller has.
#[derive(Debug)]
pub(in crate::agent) struct Running(Arc<Shared>);

impl Running {
    /// One more, unless there are as many as may be.
    pub(super) fn new(shared: &Arc<Shared>) -> Option<Self> {
        let most = match shared.opening.in_flight_max {
            0 => usize::MAX,
            most => most as usize,
        };
        let one_more = |running: &mut usize| {
            let fits = *running < most;
            *running += usize::from(fits);
            fits
        };
        shared.in_flight.send_if_modified(one_more).then(|| {
            shared.counters.requests.inc();
            shared.counters.in_flight.inc();
            Self(Arc::clone(shared))
        })
    }

    /// How many there are.
    pub(super) fn all(&self) -> usize {
        *self.0.in_flight.borrow()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.counters.in_flight.dec();
        self.0.in_flight.send_modify(|running| *running -= 1);
    }
}

/// The body of an answer to the mesh.
#[derive(Debug)]
pub(in crate::agent) enum ServedBody {
    /// The engine's, what counts it as running, and the spans that end with it. Once it has broken off, the error waits a
    /// moment, so that what came before it leaves before the substream is reset.
    Engine {
        body: PooledBody,
        held: (Running, Answering),
        spans: [Span; 2],
        broken: Option<(Pin<Box<Sleep>>, hyper::Error)>,
    },
    /// Ours.
    Own(Full<Bytes>),
}

impl Body for ServedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Engine { body, broken, spans, held } => {
                if broken.is_none() {
                    match std::task::ready!(Pin::new(body).poll_frame(cx)) {
                        Some(Err(error)) => {
                            spans.iter().for_each(|span| span.failed("broke_off"));
                            held.1.ends(true);
                            *broken = Some((Box::pin(sleep(LAST_BYTES_WITHIN)), error));
                        }
                        frame => {
                            match &frame {
                                Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| held.1.goes_on(data)),
                                _ => held.1.ends(false),
                            }
                            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
                        }
                    }
                }
                if let Some((moment, _)) = broken {
                    std::task::ready!(moment.as_mut().poll(cx));
                }
                Poll::Ready(broken.take().map(|(_, error)| Err(error.into())))
            }
            Self::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Engine { body, .. } => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Engine { body, .. } => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
