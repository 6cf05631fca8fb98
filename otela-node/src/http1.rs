//! A pool of keep-alive HTTP/1.1 connections over any byte stream.
//!
//! Both hops of a request use it: ingress to node over libp2p substreams, node to engine over TCP. Last in, first
//! out; bounded; a request whose *reused* connection died before any byte of the answer is sent once more on a
//! fresh one, which closes the race with the far side's idle time-out. Dropping a request or its answer before
//! the end closes the connection at once: that is how cancellation travels.

mod body;
mod lines;
mod progress;

pub use body::PooledBody;
pub use progress::SendProgress;

use crate::tasks::Tasks;
use body::Slices;
use bytes::Bytes;
use http::{Request, Response, request};
use http_body_util::Either;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use lines::{Lease, Line, Lines, Upload};
use progress::Noting;
use std::{error::Error, future::Future, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
};

/// An error of whatever kind a stream has.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Opens the byte streams of one pool, all to the same place.
pub trait Connect: Send + Sync + 'static {
    /// The stream.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// A new stream.
    fn connect(&self) -> impl Future<Output = Result<Self::Io, BoxError>> + Send;
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
    /// All of it, in parts that follow each other and are not copied together, and who sees how far it has got: can be sent
    /// again.
    Parts(Arc<[Bytes]>, SendProgress),
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
    /// The connection that carried the request is gone, and what lies between rather than the far side may be the
    /// reason: there may be another way.
    #[error("the connection that carried the request is gone")]
    PathLost {
        /// Whether (part of) the request may have reached the far side.
        delivered: bool,
    },
}

impl SendError {
    /// Whether the far side may have seen the request. If not, trying elsewhere is free.
    #[must_use]
    pub fn delivered(&self) -> bool {
        matches!(self, Self::Broken { delivered: true, .. } | Self::PathLost { delivered: true })
    }

    /// Whether there was no way to the far side, or there is none any more.
    #[must_use]
    pub fn is_unreached(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::ConnectTimeout(_) | Self::PathLost { .. })
    }
}

/// Connections to one place.
#[derive(Debug)]
pub struct Pool<C> {
    lines: Arc<Lines>,
    connector: C,
    limits: PoolLimits,
    places: Arc<Semaphore>,
    tasks: Tasks,
}

impl<C: Connect> Pool<C> {
    /// An empty pool. Its connections run on `tasks`.
    #[must_use]
    pub fn new(connector: C, limits: PoolLimits, tasks: Tasks) -> Self {
        Self {
            lines: Arc::new(Lines::new(limits, tasks.clone())),
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
            RequestBody::Whole(bytes) => self.send_whole(head, Slices::new([bytes].into()), place, None).await,
            RequestBody::Parts(parts, progress) => {
                self.send_whole(head, Slices::new(parts), place, Some(progress)).await
            }
        }
    }

    /// What opens the connections.
    pub fn connector(&self) -> &C {
        &self.connector
    }

    /// Idle connections now.
    #[must_use]
    pub fn idle(&self) -> usize {
        self.lines.idle()
    }

    /// Opens connections until `spare` are idle, so that the next requests find them open.
    ///
    /// # Errors
    /// [`SendError`] if one cannot be opened.
    pub async fn warm(&self, spare: usize) -> Result<(), SendError> {
        while self.lines.idle() < spare.min(self.limits.idle_max) {
            let line = self.open().await?;
            self.lines.put(line);
        }
        Ok(())
    }

    async fn send_whole(
        &self,
        head: request::Parts,
        body: Slices,
        place: OwnedSemaphorePermit,
        progress: Option<SendProgress>,
    ) -> Result<Response<PooledBody>, SendError> {
        let request = || Request::from_parts(head.clone(), Either::Left(body.clone()));
        let follow = |line: &Line| progress.iter().for_each(|progress| progress.follow(&line.writes));
        let Some(line) = self.lines.reuse().await else {
            let line = self.open().await?;
            follow(&line);
            return self.exchange(line, request(), place).await.map_err(|lost| lost.0);
        };
        // The far side may close an idle connection just as we use it: that is no failure of the far side, so the
        // request goes out once more. If that fails too, what the first try may have delivered still counts.
        follow(&line);
        let Lost(first, place) = match self.exchange(line, request(), place).await {
            Ok(response) => return Ok(response),
            Err(lost) => lost,
        };
        if first.delivered() && !self.limits.resend_delivered {
            return Err(first);
        }
        let again = match self.open().await.inspect(follow) {
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
                let lease = Lease::new(line, Arc::clone(&self.lines), place);
                Ok(response.map(|incoming| PooledBody::new(incoming, lease)))
            }
            Err(mut failed) => {
                let delivered = failed.take_message().is_none();
                Err(Lost(SendError::Broken { delivered, source: failed.into_error() }, place))
            }
        }
    }

    async fn open(&self) -> Result<Line, SendError> {
        let within = self.limits.connect_within;
        let io = tokio::time::timeout(within, self.connector.connect())
            .await
            .map_err(|_| SendError::ConnectTimeout(within))?
            .map_err(SendError::Connect)?;
        let (io, writes) = Noting::new(io);
        let (sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(|source| SendError::Broken { delivered: false, source })?;
        let driver = self.tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "pooled connection ended");
            }
        });
        Ok(Line::new(sender, driver.abort_handle(), writes))
    }
}

/// A failed exchange, and the place in the pool that it held.
struct Lost(SendError, OwnedSemaphorePermit);

#[cfg(test)]
mod tests;
