//! A client's connection, and whether the client is still there.
//!
//! A client that closes and one that only closes its sending side look alike: both send FIN. The first must cancel
//! its request within a second, the second must get its answer. Only sending something tells them apart, because a
//! closed socket answers with a reset. So when FIN arrives while a request waits for the head of its answer, we send
//! the one thing that HTTP/1.1 lets a server say before an answer and that every client ignores: `100 Continue`.

use rustix::net::sockopt;
use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What is known of one client connection. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    half_closed: CancellationToken,
    /// Requests on this connection whose answer has not ended.
    waiting: AtomicU32,
    /// Whether any of the present answer has been written.
    answering: AtomicBool,
    /// HTTP/1.0 knows no interim answers.
    may_probe: AtomicBool,
}

impl Client {
    /// A request has arrived.
    pub(crate) fn request_begins(&self, version: http::Version) -> Waiting {
        self.state.answering.store(false, Ordering::Relaxed);
        self.state.may_probe.store(version >= http::Version::HTTP_11, Ordering::Relaxed);
        self.state.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(&self.state))
    }

    /// Resolves once the client has closed its sending side.
    pub(crate) fn half_closed(&self) -> WaitForCancellationFutureOwned {
        self.state.half_closed.clone().cancelled_owned()
    }
}

/// A request that waits for the head of its answer.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<State>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The byte stream of a client, for the HTTP server.
#[derive(Debug)]
pub(crate) struct ClientIo {
    tcp: Arc<TcpStream>,
    state: Arc<State>,
}

/// Watches for a client that has gone.
#[derive(Debug)]
pub(crate) struct Watcher {
    tcp: Arc<TcpStream>,
    state: Arc<State>,
}

/// Splits an accepted connection into the stream to serve, the watcher to run beside it, and the handle for requests.
pub(crate) fn watched(tcp: TcpStream, keep_alive_after: Duration) -> io::Result<(ClientIo, Watcher, Client)> {
    tcp.set_nodelay(true)?;
    // A client that vanishes without a word would hold its engine for hours.
    sockopt::set_socket_keepalive(&tcp, true)?;
    sockopt::set_tcp_keepidle(&tcp, keep_alive_after)?;
    sockopt::set_tcp_keepintvl(&tcp, keep_alive_after / 3)?;
    let (tcp, state) = (Arc::new(tcp), Arc::new(State::default()));
    let io = ClientIo { tcp: Arc::clone(&tcp), state: Arc::clone(&state) };
    let client = Client { state: Arc::clone(&state) };
    Ok((io, Watcher { tcp, state }, client))
}

impl Watcher {
    /// Resolves when the client has gone for good; never for one that only stopped sending. Must run in the task
    /// that serves the connection, so that a probe cannot fall into the middle of an answer.
    pub(crate) async fn gone(&self) {
        // Readiness of this kind comes with FIN, and not with data that waits to be read.
        if self.tcp.ready(Interest::PRIORITY).await.is_err() {
            return;
        }
        self.state.half_closed.cancel();
        let waiting = self.state.waiting.load(Ordering::Relaxed) > 0;
        let silent = !self.state.answering.load(Ordering::Relaxed);
        if waiting && silent && self.state.may_probe.load(Ordering::Relaxed) {
            // Cannot block: nothing else has been written yet. If it fails, the error shows below.
            let _ = self.tcp.try_write(CONTINUE);
        }
        // An answer that is being written finds a reset by itself.
        let reset = self.tcp.ready(Interest::ERROR).await;
        tracing::trace!(?reset, "client has gone");
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            std::task::ready!(self.tcp.poll_read_ready(cx))?;
            match self.tcp.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl ClientIo {
    fn poll_write_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        self.state.answering.store(true, Ordering::Relaxed);
        loop {
            std::task::ready!(self.tcp.poll_write_ready(cx))?;
            match write(&self.tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |tcp| tcp.try_write(data))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |tcp| tcp.try_write_vectored(data))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Write) {
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
