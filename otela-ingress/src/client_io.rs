//! A client's connection, and whether the client is still there.
//!
//! A client that closes and one that only closes its sending side look alike: both send FIN. The first must cancel
//! its request within a second, the second must get its answer. Only sending something tells them apart, because a
//! closed socket answers with a reset. So when FIN arrives while a request waits for the head of its answer, we send
//! the one thing that HTTP/1.1 lets a server say before an answer and that every client ignores: `100 Continue`. An
//! event stream sends a comment instead. Where nothing may be put in, a long silence after FIN counts as gone.

use crate::defaults::HALF_CLOSED_SILENCE_MAX;
use rustix::net::sockopt;
use std::{
    io::{self, IoSlice},
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
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
#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    address: Option<IpAddr>,
    half_closed: CancellationToken,
    /// Requests on this connection whose answer has not ended.
    waiting: AtomicU32,
    /// Whether the socket took no more when it was last written to.
    blocked: AtomicBool,
    /// Writes so far.
    writes: AtomicU64,
    /// HTTP/1.0 knows no interim answers.
    may_probe: AtomicBool,
    /// A request has begun on this connection.
    begun: CancellationToken,
    /// Whoever closes its sending side has gone: so it is in HTTP/2 and within TLS.
    fin_is_gone: AtomicBool,
}

impl Client {
    /// A request has arrived, of whatever kind.
    pub(crate) fn request_begins(&self, version: http::Version) {
        self.state.begun.cancel();
        self.state.may_probe.store(version == http::Version::HTTP_11, Ordering::Relaxed);
        if version >= http::Version::HTTP_2 {
            self.state.fin_is_gone.store(true, Ordering::Relaxed);
        }
    }

    /// A request has arrived of which an engine is to be spared as soon as its client has gone.
    pub(crate) fn waits(&self) -> Waiting {
        self.state.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(Arc::clone(&self.state))
    }

    /// Cancelled once a request has begun on this connection.
    pub(crate) fn begun(&self) -> &CancellationToken {
        &self.state.begun
    }

    /// Where the client calls from.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.state.address
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
    let address = tcp.peer_addr().ok().map(|address| address.ip());
    let (tcp, state) = (Arc::new(tcp), Arc::new(State { address, ..State::default() }));
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
        if self.state.fin_is_gone.load(Ordering::Relaxed) {
            return;
        }
        let waiting = self.state.waiting.load(Ordering::Relaxed) > 0;
        let clear = !self.state.blocked.load(Ordering::Relaxed);
        // Nothing of an answer has been written yet, so this cannot fall into the middle of one.
        let probed = waiting
            && clear
            && self.state.may_probe.load(Ordering::Relaxed)
            && self.tcp.try_write(CONTINUE).is_ok_and(|written| written == CONTINUE.len());
        // An answer that is being written finds a reset by itself.
        let reset = self.tcp.ready(Interest::ERROR);
        if probed {
            let _ = reset.await;
        } else {
            tokio::select! {
                _ = reset => {}
                () = self.long_silence() => {}
            }
        }
        tracing::trace!("client has gone");
    }

    /// Whoever closes its sending side counts as gone from now on.
    pub(crate) fn takes_fin_for_gone(&self) {
        self.state.fin_is_gone.store(true, Ordering::Relaxed);
    }

    /// Resolves when nothing has been written for a long while.
    async fn long_silence(&self) {
        loop {
            let before = self.state.writes.load(Ordering::Relaxed);
            tokio::time::sleep(HALF_CLOSED_SILENCE_MAX).await;
            if self.state.writes.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }

    /// Makes the coming close a reset: for clients of HTTP/1.0, to whom an end is an end.
    pub(crate) fn reset_if_old(&self) {
        let is_old = !self.state.may_probe.load(Ordering::Relaxed) && !self.state.fin_is_gone.load(Ordering::Relaxed);
        if is_old {
            // If it fails the connection has ended already.
            let _ = sockopt::set_socket_linger(&self.tcp, Some(Duration::ZERO));
        }
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
        loop {
            let ready = self.tcp.poll_write_ready(cx);
            self.state.blocked.store(ready.is_pending(), Ordering::Relaxed);
            std::task::ready!(ready)?;
            match write(&self.tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    self.state.writes.fetch_add(1, Ordering::Relaxed);
                    return Poll::Ready(done);
                }
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
