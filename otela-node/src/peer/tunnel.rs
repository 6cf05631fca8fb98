//! HTTP between peers: keep-alive HTTP/1.1 over long-lived substreams of a mesh connection.
//!
//! The near half keeps one pool for each connection, so that new requests move to a better connection at once
//! while running ones finish where they are. The far half hands requests to a service and drops it, which
//! cancels the work, when the substream is reset.

use super::{
    defaults::{OPEN_WITHIN, TUNNEL_IDLE_FOR, TUNNEL_IDLE_MAX, TUNNEL_IN_USE_MAX, TUNNEL_QUEUE_WITHIN, TUNNEL_SPARE},
    streams::{Connection, EndingIo, Inbound},
};
use crate::{
    http1::{BoxError, Connect, Pool, PoolLimits, PooledBody, RequestBody, SendError},
    tasks::Tasks,
};
use bytes::Bytes;
use http::{Request, Response, request};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::rt::TokioIo;
use libp2p::{PeerId, StreamProtocol, swarm::ConnectionId};
use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, PoisonError, RwLock},
};
use tokio::sync::mpsc;

/// Which peer a request came from; proven by its connection's handshake. In the extensions of each request that
/// [`serve`] hands on.
#[derive(Debug, Clone, Copy)]
pub struct Caller(pub PeerId);

/// Opens the substreams of one connection.
#[derive(Debug)]
struct Substreams {
    connection: Arc<Connection>,
    protocol: StreamProtocol,
}

impl Connect for Substreams {
    type Io = EndingIo;

    async fn connect(&self) -> Result<Self::Io, BoxError> {
        Ok(self.connection.open(self.protocol.clone()).await?)
    }
}

type Pools = HashMap<ConnectionId, Arc<Pool<Substreams>>>;

/// The near half.
#[derive(Debug)]
pub(super) struct Tunnel {
    protocol: StreamProtocol,
    pools: Arc<RwLock<Pools>>,
    tasks: Tasks,
}

impl Tunnel {
    pub(super) fn new(protocol: StreamProtocol, tasks: Tasks) -> Self {
        Self { protocol, pools: Arc::default(), tasks }
    }

    /// Sends a request over `connection`; see [`Pool::send`] for errors and cancellation.
    pub(super) async fn send(
        &self,
        connection: &Arc<Connection>,
        head: request::Parts,
        body: RequestBody,
    ) -> Result<Response<PooledBody>, SendError> {
        let pool = self.pool(connection);
        let response = pool.send(head, body).await;
        if response.is_ok() && pool.idle() < TUNNEL_SPARE {
            self.tasks.spawn(async move {
                // Only the next request's speed depends on it.
                let _ = pool.warm(TUNNEL_SPARE).await;
            });
        }
        response
    }

    fn pool(&self, connection: &Arc<Connection>) -> Arc<Pool<Substreams>> {
        let pools = self.pools.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&connection.id()) {
            return Arc::clone(pool);
        }
        drop(pools);
        let mut pools = self.pools.write().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(connection.id()).or_insert_with(|| {
            let limits = PoolLimits {
                in_use_max: TUNNEL_IN_USE_MAX,
                idle_max: TUNNEL_IDLE_MAX,
                idle_for_max: TUNNEL_IDLE_FOR,
                connect_within: OPEN_WITHIN,
                queue_within: TUNNEL_QUEUE_WITHIN,
                // Nodes do not close idle substreams: a request that arrived there has arrived.
                resend_delivered: false,
            };
            let connector = Substreams { connection: Arc::clone(connection), protocol: self.protocol.clone() };
            self.forget_when_retired(Arc::clone(connection));
            Arc::new(Pool::new(connector, limits, self.tasks.clone()))
        });
        Arc::clone(pool)
    }

    /// Closes what rests on a connection once that takes no new requests, so that the connection can be closed.
    fn forget_when_retired(&self, connection: Arc<Connection>) {
        let pools = Arc::clone(&self.pools);
        self.tasks.spawn(async move {
            connection.retired().await;
            pools.write().unwrap_or_else(PoisonError::into_inner).remove(&connection.id());
        });
    }
}

/// The far half: serves the requests on `streams` until the queue closes. A request's future is dropped as soon as
/// the caller resets its substream.
pub async fn serve<S, B>(mut streams: mpsc::Receiver<Inbound>, service: S, tasks: Tasks)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    while let Some(Inbound { peer, stream, .. }) = streams.recv().await {
        let service = service.clone();
        let with_caller = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Caller(peer));
            service.call(request)
        });
        let io = TokioIo::new(stream);
        tasks.spawn(async move {
            let served = http1::Builder::new().serve_connection(io, with_caller).await;
            if let Err(error) = served {
                tracing::trace!(%peer, %error, "substream ended");
            }
        });
    }
}
