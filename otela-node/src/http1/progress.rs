//! How far a request has got on its way out, so that a slow way is not taken for a slow engine.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, timeout_at},
};

/// The progress of one request. Clones share it.
#[derive(Debug, Clone)]
pub struct SendProgress {
    began: Instant,
    /// Writes of the connection that carries the request now.
    writes: Arc<Mutex<Option<Writes>>>,
}

impl SendProgress {
    /// Starts the clock of a request that is sent from now on.
    #[must_use]
    pub fn new() -> Self {
        Self { began: Instant::now(), writes: Arc::default() }
    }

    /// Waits for `answer`, at most so long after the connection took more of the request: a large body on a slow way is no
    /// fault of the engine at its end. `None` if that time is over. The connection may hold a window's worth of bytes, 256 KiB
    /// over the mesh, that are still on their way.
    pub async fn answered_within<T>(&self, within: Duration, answer: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(answer);
        // More time than the clock can count is all the time there is.
        while let Some(until) = self.last().checked_add(within) {
            if let Ok(answer) = timeout_at(until, answer.as_mut()).await {
                return Some(answer);
            }
            if self.last().checked_add(within).is_some_and(|until| until <= Instant::now()) {
                return None;
            }
        }
        Some(answer.await)
    }

    fn last(&self) -> Instant {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.as_ref().map_or(self.began, |writes| writes.last().max(self.began))
    }

    pub(super) fn follow(&self, writes: &Writes) {
        *self.writes.lock().unwrap_or_else(PoisonError::into_inner) = Some(writes.clone());
    }
}

impl Default for SendProgress {
    fn default() -> Self {
        Self::new()
    }
}

/// When a connection last took bytes to send. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Writes(Arc<Taken>);

#[derive(Debug)]
struct Taken {
    began: Instant,
    last_us: AtomicU64,
}

impl Writes {
    fn last(&self) -> Instant {
        self.0.began + Duration::from_micros(self.0.last_us.load(Ordering::Relaxed))
    }

    fn note(&self) {
        let us = u64::try_from(self.0.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.last_us.store(us, Ordering::Relaxed);
    }
}

/// A stream that notes when bytes were taken.
#[derive(Debug)]
pub(super) struct Noting<Io> {
    io: Io,
    writes: Writes,
}

impl<Io> Noting<Io> {
    pub(super) fn new(io: Io) -> (Self, Writes) {
        let writes = Writes(Arc::new(Taken { began: Instant::now(), last_us: AtomicU64::new(0) }));
        (Self { io, writes: writes.clone() }, writes)
    }

    fn noted(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(polled, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.writes.note();
        }
        polled
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Noting<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Noting<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.noted(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, parts);
        self.noted(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
