//! Where an answer's bytes come from, with a limit on how long they may pause.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use otela_node::peer::PooledBody;
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};

/// Why no more bytes come.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The connection broke.
    #[error("the connection broke")]
    Lost(#[source] hyper::Error),
    /// Nothing came for too long.
    #[error("nothing came for {0:?}")]
    Stalled(Duration),
}

/// The rest of a body.
#[derive(Debug)]
pub(super) struct Source {
    body: PooledBody,
    stall: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Source {
    pub(super) fn new(body: PooledBody, stall_within: Option<Duration>) -> Self {
        Self { body, stall: stall_within.map(|within| (within, Box::pin(sleep(within)))) }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => match &mut self.stall {
                // Not polled while the client does not read, so only the engine's own pauses count.
                Some((within, timer)) => timer.as_mut().poll(cx).map(|()| Some(Err(Broken::Stalled(*within)))),
                None => Poll::Pending,
            },
            Poll::Ready(frame) => {
                if let Some((within, timer)) = &mut self.stall {
                    timer.as_mut().reset(Instant::now() + *within);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Broken::Lost)))
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
