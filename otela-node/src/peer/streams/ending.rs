//! A substream that ends with its connection.
//!
//! When a connection is closed from our side, the muxer says goodbye and does not wake who reads from its streams; if
//! nobody is at the other end, they would wait for ever. So each stream also watches a token of its connection.

use libp2p::Stream;
use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::{
    compat::{Compat, FuturesAsyncReadCompatExt},
    sync::{CancellationToken, WaitForCancellationFutureOwned},
};

/// What a connection and its substreams share.
#[derive(Debug, Clone, Default)]
pub(super) struct Life {
    /// Cancelled when the connection has ended or is given up.
    pub(super) ended: CancellationToken,
    /// Cancelled when a better connection is there: no new requests, and those that run finish.
    pub(super) retired: CancellationToken,
    /// Substreams that requests use or wait on.
    users: Arc<AtomicUsize>,
    /// When something was last read, in milliseconds of [`now_ms`].
    heard_ms: Arc<AtomicU64>,
    /// Bytes that went either way.
    bytes: Arc<AtomicU64>,
}

/// Milliseconds since this was first asked for.
pub(in crate::peer) fn now_ms() -> u64 {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Zero is for never.
    u64::try_from(BEGAN.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

impl Life {
    /// Substreams that requests use, or that rest between requests, on both sides together.
    pub(super) fn users(&self) -> usize {
        self.users.load(Ordering::Acquire)
    }

    /// When something was last read, in milliseconds of [`now_ms`]; 0 for never.
    pub(super) fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Bytes that went either way on substreams of ours.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Counts as a user of a connection for as long as it lives.
#[derive(Debug)]
struct User(Arc<AtomicUsize>);

impl User {
    fn new(users: &Arc<AtomicUsize>) -> Self {
        users.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(users))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A substream for tokio.
pub struct EndingIo {
    stream: Compat<Stream>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    life: Life,
    /// Something has failed on it. libp2p panics when a stream whose protocol was not agreed on is used once more.
    failed: bool,
    _user: Option<User>,
}

impl EndingIo {
    /// `counts`: whether a connection with this substream is in use.
    pub(super) fn new(stream: Stream, life: &Life, counts: bool) -> Self {
        let ended = Box::pin(life.ended.clone().cancelled_owned());
        let user = counts.then(|| User::new(&life.users));
        Self { stream: stream.compat(), ended, life: life.clone(), failed: false, _user: user }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.ended.as_mut().poll(cx) {
            Poll::Pending if !self.failed => Ok(()),
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Takes note of a failure.
    fn noted<T>(&mut self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.failed |= matches!(polled, Poll::Ready(Err(_)));
        polled
    }
}

impl fmt::Debug for EndingIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndingIo").finish_non_exhaustive()
    }
}

impl AsyncRead for EndingIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let read = buffer.filled().len() - before;
        if read > 0 {
            self.life.heard_ms.store(now_ms(), Ordering::Relaxed);
            self.life.bytes.fetch_add(read as u64, Ordering::Relaxed);
        }
        self.noted(polled)
    }
}

impl AsyncWrite for EndingIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_write(cx, data);
        if let Poll::Ready(Ok(written)) = &polled {
            self.life.bytes.fetch_add(*written as u64, Ordering::Relaxed);
        }
        self.noted(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.noted(polled)
    }
}
