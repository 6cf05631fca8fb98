//! A pool of keep-alive HTTP/1.1 connections over any byte stream.
//!
//! Both hops of a request use it: ingress to node over libp2p substreams, node to engine over TCP. Last in, first
//! out; bounded; a request whose *reused* connection died before any byte of the answer is sent once more on a
//! fresh one, which closes the race with the far side's idle time-out. Dropping a request or its answer before
//! the end closes the connection at once: that is how cancellation travels.

use crate::tasks::Tasks;
use bytes::Bytes;
use http::{Request, Response, request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Either;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use std::{
    error::Error,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::AbortHandle,
    time::Instant,
};

/// An error of whatever kind a stream has.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A request's body on its way out.
type Upload = Either<Slices, Incoming>;

/// Opens the byte streams of one pool, all to the same place.
pub trait Connect: Send + Sync + 'static {
    /// The stream.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// A new stream.
    fn connect(&self) -> impl Future<Output = Result<Self::Io, BoxError>> + Send;
}

/// A whole body in pieces: in one piece it would be copied as a whole into the connection's buffer, which keeps that
/// size.
#[derive(Debug, Clone)]
struct Slices(Bytes);

impl Slices {
    const BYTES_MAX: usize = 64 * 1024;
}

impl Body for Slices {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let length = self.0.len().min(Self::BYTES_MAX);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.0.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// How large a pool may grow, and how patient it is.
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// Most requests at once; further ones wait for a place.
    pub in_use_max: usize,
    /// Most idle connections; the oldest is closed beyond it.
    pub idle_max: usize,
    /// Idle connections older than this are not used again.
    pub idle_for_max: Duration,
    /// How long opening a connection may take.
    pub connect_within: Duration,
    /// How long to wait for a place.
    pub queue_within: Duration,
    /// Whether a request that a reused connection may have delivered is sent again when that connection died before
    /// any byte of the answer. Right where the far side closes idle connections by itself.
    pub resend_delivered: bool,
}

/// What the body of a request is.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it: can be sent again.
    Whole(Bytes),
    /// A stream: goes out once, on a fresh connection.
    Stream(Incoming),
}

/// Why a request has no answer. What the caller may do depends on [`SendError::delivered`].
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Every place in the pool was taken for too long. Nothing was sent.
    #[error("all connections are busy")]
    Busy,
    /// No connection could be opened. Nothing was sent.
    #[error("cannot connect")]
    Connect(#[source] BoxError),
    /// Opening a connection took too long. Nothing was sent.
    #[error("connecting took longer than {0:?}")]
    ConnectTimeout(Duration),
    /// The connection broke before an answer began. `delivered` tells whether the request may have arrived.
    #[error("connection broke before an answer began")]
    Broken {
        /// Whether (part of) the request may have reached the far side.
        delivered: bool,
        /// What broke.
        #[source]
        source: hyper::Error,
    },
}

impl SendError {
    /// Whether the far side may have seen the request. If not, trying elsewhere is free.
    #[must_use]
    pub fn delivered(&self) -> bool {
        matches!(self, Self::Broken { delivered: true, .. })
    }
}

/// Connections to one place.
#[derive(Debug)]
pub struct Pool<C> {
    shared: Arc<Shared>,
    connector: C,
    limits: PoolLimits,
    places: Arc<Semaphore>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Shared {
    idle: Mutex<Vec<Idle>>,
    limits: PoolLimits,
    tasks: Tasks,
}

#[derive(Debug)]
struct Idle {
    line: Line,
    since: Instant,
}

/// One connection: dropping it closes the connection at once.
#[derive(Debug)]
struct Line {
    sender: SendRequest<Upload>,
    driver: AbortHandle,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl<C: Connect> Pool<C> {
    /// An empty pool. Its connections run on `tasks`.
    #[must_use]
    pub fn new(connector: C, limits: PoolLimits, tasks: Tasks) -> Self {
        Self {
            shared: Arc::new(Shared { idle: Mutex::default(), limits, tasks: tasks.clone() }),
            connector,
            limits,
            places: Arc::new(Semaphore::new(limits.in_use_max)),
            tasks,
        }
    }

    /// Sends a request and waits for the head of its answer. Dropping the future, or the answer's body before its
    /// end, closes the connection.
    ///
    /// # Errors
    /// [`SendError`], with the connection closed.
    pub async fn send(&self, head: request::Parts, body: RequestBody) -> Result<Response<PooledBody>, SendError> {
        let queued = tokio::time::timeout(self.limits.queue_within, Arc::clone(&self.places).acquire_owned());
        let place = queued.await.ok().and_then(Result::ok).ok_or(SendError::Busy)?;
        match body {
            RequestBody::Stream(body) => {
                let line = self.open().await?;
                self.exchange(line, Request::from_parts(head, Either::Right(body)), place).await.map_err(|lost| lost.0)
            }
            RequestBody::Whole(bytes) => self.send_whole(head, bytes, place).await,
        }
    }

    /// What opens the connections.
    pub fn connector(&self) -> &C {
        &self.connector
    }

    /// Idle connections now.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.shared.lock().len()
    }

    /// Opens connections until `spare` are idle, so that the next requests find them open.
    ///
    /// # Errors
    /// [`SendError`] if one cannot be opened.
    pub async fn warm(&self, spare: usize) -> Result<(), SendError> {
        while self.shared.lock().len() < spare.min(self.limits.idle_max) {
            let line = self.open().await?;
            self.shared.put(line);
        }
        Ok(())
    }

    async fn send_whole(
        &self,
        head: request::Parts,
        bytes: Bytes,
        place: OwnedSemaphorePermit,
    ) -> Result<Response<PooledBody>, SendError> {
        let request = || Request::from_parts(head.clone(), Either::Left(Slices(bytes.clone())));
        let Some(line) = self.reuse().await else {
            let line = self.open().await?;
            return self.exchange(line, request(), place).await.map_err(|lost| lost.0);
        };
        // The far side may close an idle connection just as we use it: that is no failure of the far side, so the
        // request goes out once more. If that fails too, what the first try may have delivered still counts.
        let Lost(first, place) = match self.exchange(line, request(), place).await {
            Ok(response) => return Ok(response),
            Err(lost) => lost,
        };
        if first.delivered() && !self.limits.resend_delivered {
            return Err(first);
        }
        let again = match self.open().await {
            Ok(line) => self.exchange(line, request(), place).await.map_err(|lost| lost.0),
            Err(error) => Err(error),
        };
        again.map_err(|second| if first.delivered() { first } else { second })
    }

    async fn exchange(
        &self,
        mut line: Line,
        request: Request<Upload>,
        place: OwnedSemaphorePermit,
    ) -> Result<Response<PooledBody>, Lost> {
        match line.sender.try_send_request(request).await {
            Ok(response) => {
                let lease = Lease { line, shared: Arc::clone(&self.shared), _place: place };
                Ok(response.map(|incoming| PooledBody::new(incoming, lease)))
            }
            Err(mut failed) => {
                let delivered = failed.take_message().is_none();
                Err(Lost(SendError::Broken { delivered, source: failed.into_error() }, place))
            }
        }
    }

    /// The connection that was used last, if it is still good.
    async fn reuse(&self) -> Option<Line> {
        loop {
            let Idle { mut line, since } = self.shared.lock().pop()?;
            if since.elapsed() > self.limits.idle_for_max || line.sender.is_closed() {
                continue;
            }
            // The answer's end may have overtaken the connection's own bookkeeping by a moment.
            let settled = tokio::time::timeout(Duration::from_millis(10), line.sender.ready());
            if matches!(settled.await, Ok(Ok(()))) {
                return Some(line);
            }
        }
    }

    async fn open(&self) -> Result<Line, SendError> {
        let within = self.limits.connect_within;
        let io = tokio::time::timeout(within, self.connector.connect())
            .await
            .map_err(|_| SendError::ConnectTimeout(within))?
            .map_err(SendError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(|source| SendError::Broken { delivered: false, source })?;
        let driver = self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "pooled connection ended");
            }
        });
        Ok(Line { sender, driver: driver.abort_handle() })
    }
}

/// A failed exchange, and the place in the pool that it held.
struct Lost(SendError, OwnedSemaphorePermit);

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(self: &Arc<Self>, line: Line) {
        let mut idle = self.lock();
        // The first one to rest starts the task that sees to it that none rests for ever.
        if idle.is_empty() {
            self.tasks.spawn(reap(Arc::downgrade(self)));
        }
        idle.push(Idle { line, since: Instant::now() });
        if idle.len() > self.limits.idle_max {
            idle.remove(0);
        }
    }
}

/// Closes connections that rest for too long, until none is left.
async fn reap(pool: Weak<Shared>) {
    loop {
        let Some(wait) = pool.upgrade().map(|shared| shared.limits.idle_for_max) else { return };
        tokio::time::sleep(wait / 2).await;
        let Some(shared) = pool.upgrade() else { return };
        let mut idle = shared.lock();
        idle.retain(|idle| idle.since.elapsed() < shared.limits.idle_for_max);
        if idle.is_empty() {
            return;
        }
    }
}

/// A connection in use, and the place it takes.
#[derive(Debug)]
struct Lease {
    line: Line,
    shared: Arc<Shared>,
    _place: OwnedSemaphorePermit,
}

impl Lease {
    fn give_back(self) {
        if !self.line.sender.is_closed() {
            self.shared.put(self.line);
        }
    }
}

/// The body of an answer. At its end the connection goes back to the pool; dropped before, it is closed.
#[derive(Debug)]
pub struct PooledBody {
    incoming: Incoming,
    lease: Option<Lease>,
}

impl PooledBody {
    fn new(incoming: Incoming, lease: Lease) -> Self {
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

#[cfg(test)]
mod tests;
