//! Bodies on their way out and back.

use super::{BoxError, lines::Lease};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

/// A whole body in pieces: in one piece it would be copied as a whole into the connection's buffer, which keeps that
/// size.
#[derive(Debug, Clone)]
pub(super) struct Slices {
    parts: Arc<[Bytes]>,
    /// The part that is being sent, and how much of it has been.
    at: (usize, usize),
    left: usize,
}

impl Slices {
    const BYTES_MAX: usize = 64 * 1024;

    pub(super) fn new(parts: Arc<[Bytes]>) -> Self {
        let left = parts.iter().map(Bytes::len).sum();
        Self { parts, at: (0, 0), left }
    }
}

impl Body for Slices {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let (part, from) = self.at;
            let Some(bytes) = self.parts.get(part) else { return Poll::Ready(None) };
            let to = bytes.len().min(from + Self::BYTES_MAX);
            if to == from {
                self.at = (part + 1, 0);
                continue;
            }
            let piece = bytes.slice(from..to);
            self.at = (part, to);
            self.left -= piece.len();
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// The body of an answer. At its end the connection goes back to the pool; dropped before, it is closed.
#[derive(Debug)]
pub struct PooledBody {
    incoming: Incoming,
    lease: Option<Lease>,
}

impl PooledBody {
    pub(super) fn new(incoming: Incoming, lease: Lease) -> Self {
        let mut body = Self { incoming, lease: Some(lease) };
        body.settle();
        body
    }

    /// Gives the connection back once nothing more can come.
    fn settle(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
    }
}

impl Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => {
                if let Some(lease) = self.lease.take() {
                    lease.give_back();
                }
            }
            Poll::Ready(Some(Ok(_))) => self.settle(),
            Poll::Ready(Some(Err(_))) => self.lease = None,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
