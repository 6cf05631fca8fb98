//! A substream that ends with its connection.
//!
//! When a connection is closed from our side, the muxer says goodbye and does not wake who reads from its streams; if
//! nobody is at the other end, they would wait for ever. So each stream also watches a token of its connection.

use libp2p::Stream;
use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::{
    compat::{Compat, FuturesAsyncReadCompatExt},
    sync::{CancellationToken, WaitForCancellationFutureOwned},
};

/// A substream for tokio.
pub struct EndingIo {
    stream: Compat<Stream>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl EndingIo {
    pub(super) fn new(stream: Stream, ended: CancellationToken) -> Self {
        Self { stream: stream.compat(), ended: Box::pin(ended.cancelled_owned()) }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.ended.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
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
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for EndingIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
