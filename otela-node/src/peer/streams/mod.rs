//! Our own stream behaviour: substreams on a *chosen* connection, opened concurrently, none lost silently.
//!
//! [`Streams`] is the cloneable handle: a table of the open connections to each peer, and a way to open a
//! substream on one of them without going through the swarm's task. [`Behaviour`] keeps the table true. Inbound
//! substreams go to one bounded queue; when it is full they are reset and counted.

mod ending;
mod handler;

pub use ending::EndingIo;

use handler::{Accepting, Handler, Open};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{ConnectedPoint, Endpoint, transport::PortUse},
    multiaddr::Protocol,
    swarm::{ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, ToSwarm},
};
use prometheus_client::metrics::counter::Counter;
use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Inbound substreams that wait to be taken up.
const INBOUND_QUEUE: usize = 4_096;
/// Requests to open that one connection has not looked at yet.
const OPEN_QUEUE: usize = 1_024;

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Over a connection of our own.
    Direct,
    /// Over a circuit through a relay.
    Relayed,
}

/// What carries a connection. A dead peer shows at once over TCP, and after seconds over QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Carrier {
    Tcp,
    Quic,
}

/// One open connection to a peer.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    peer: PeerId,
    path: Path,
    carrier: Carrier,
    remote: Multiaddr,
    rtt_micros: AtomicU64,
    since: Instant,
    /// When it was last said that the peer serves, in milliseconds after `since`; 0 for never.
    served_ms: AtomicU64,
    opens: mpsc::Sender<Open>,
    /// Cancelled when the connection has ended or is given up; see [`EndingIo`].
    ended: CancellationToken,
}

/// Why no substream could be opened. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection is gone.
    #[error("the connection is closed")]
    Closed,
    /// The remote does not speak the protocol: it is of another mesh, or has no service.
    #[error("the peer does not speak {0}")]
    Unsupported(StreamProtocol),
    /// Negotiation did not finish in time.
    #[error("opening a stream timed out")]
    Timeout,
    /// The connection failed meanwhile.
    #[error("the stream could not be opened")]
    Io(#[source] std::io::Error),
}

impl Connection {
    /// The swarm's name for it.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The peer has answered a request. Returns whether that is worth telling, which it is once in `every`.
    pub(super) fn has_served(&self, every: Duration) -> bool {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let (now_ms, last_ms) = (millis(self.since.elapsed()), self.served_ms.load(Ordering::Relaxed));
        let due = last_ms == 0 || now_ms >= last_ms.saturating_add(millis(every));
        due && self.served_ms.compare_exchange(last_ms, now_ms.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whose it is; proven by the handshake.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Direct or relayed.
    #[must_use]
    pub fn path(&self) -> Path {
        self.path
    }

    /// The remote's address.
    #[must_use]
    pub fn remote(&self) -> &Multiaddr {
        &self.remote
    }

    /// The last measured round trip.
    #[must_use]
    pub fn rtt(&self) -> Option<Duration> {
        let micros = self.rtt_micros.load(Ordering::Relaxed);
        (micros != u64::MAX).then(|| Duration::from_micros(micros))
    }

    /// Whether it is open, as far as is known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.opens.is_closed() && !self.ended.is_cancelled()
    }

    /// A new substream. With lazy negotiation a protocol that the remote does not speak may only show at the
    /// first read.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(&self, protocol: StreamProtocol) -> Result<EndingIo, OpenError> {
        let (reply, stream) = oneshot::channel();
        self.opens.send(Open { protocol, reply }).await.map_err(|_| OpenError::Closed)?;
        let stream = stream.await.map_err(|_| OpenError::Closed)??;
        Ok(EndingIo::new(stream, self.ended.clone()))
    }
}

/// A substream that a remote opened.
#[derive(Debug)]
pub struct Inbound {
    /// Who opened it.
    pub peer: PeerId,
    /// What for.
    pub protocol: StreamProtocol,
    /// The stream.
    pub stream: EndingIo,
}

type Table = HashMap<PeerId, Vec<Arc<Connection>>>;

/// The open connections. Cloning shares the table.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    table: Arc<RwLock<Table>>,
}

impl Streams {
    /// The connection to use for new requests to `peer`: direct before relayed, TCP before QUIC, then the shortest
    /// round trip, then the newest.
    #[must_use]
    pub(super) fn best(&self, peer: &PeerId) -> Option<Arc<Connection>> {
        let table = self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let open = table.get(peer)?.iter().filter(|connection| connection.is_open());
        open.min_by_key(|c| (c.path, c.carrier, c.rtt().unwrap_or(Duration::MAX), std::cmp::Reverse(c.id))).cloned()
    }

    /// One of the open connections to `peer`.
    #[must_use]
    pub(super) fn get(&self, peer: &PeerId, id: ConnectionId) -> Option<Arc<Connection>> {
        let table = self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        table.get(peer)?.iter().find(|connection| connection.id == id).cloned()
    }

    /// All open connections.
    #[must_use]
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        let table = self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        table.values().flatten().cloned().collect()
    }

    pub(super) fn measured(&self, peer: &PeerId, id: ConnectionId, rtt: Duration) {
        let table = self.table.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let connections = table.get(peer).into_iter().flatten();
        for connection in connections.filter(|connection| connection.id == id) {
            let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX - 1);
            connection.rtt_micros.store(micros, Ordering::Relaxed);
        }
    }

    /// Takes a connection out of use at once and ends its streams: closing it may take for ever if nobody is there.
    pub(super) fn give_up(&self, peer: &PeerId, id: ConnectionId) {
        let mut table = self.write();
        let Some(connections) = table.get_mut(peer) else { return };
        for connection in connections.iter().filter(|connection| connection.id == id) {
            connection.ended.cancel();
        }
        connections.retain(|connection| connection.id != id);
        if connections.is_empty() {
            table.remove(peer);
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Keeps [`Streams`] true and gives inbound substreams out.
#[derive(Debug)]
pub(super) struct Behaviour {
    streams: Streams,
    protocols: Arc<[StreamProtocol]>,
    inbound: mpsc::Sender<Inbound>,
    refused: Counter,
    /// Connections whose establishment a sibling behaviour may still deny: not in the table yet.
    pending: HashMap<ConnectionId, (mpsc::Sender<Open>, CancellationToken)>,
}

impl Behaviour {
    /// A behaviour that accepts `protocols`. `refused` counts inbound substreams that found the queue full.
    pub(super) fn new(protocols: Vec<StreamProtocol>, refused: Counter) -> (Self, Streams, mpsc::Receiver<Inbound>) {
        let (inbound, accepted) = mpsc::channel(INBOUND_QUEUE);
        let streams = Streams::default();
        let behaviour =
            Self { streams: streams.clone(), protocols: protocols.into(), inbound, refused, pending: HashMap::new() };
        (behaviour, streams, accepted)
    }

    fn handler(&mut self, id: ConnectionId, peer: PeerId) -> Handler {
        let (opens, requests) = mpsc::channel(OPEN_QUEUE);
        let ended = CancellationToken::new();
        self.pending.insert(id, (opens, ended.clone()));
        let accept = Accepting { peer, inbound: self.inbound.clone(), refused: self.refused.clone(), ended };
        Handler::new(Arc::clone(&self.protocols), requests, accept)
    }

    fn established(&mut self, id: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) {
        let Some((opens, ended)) = self.pending.remove(&id) else { return };
        let path = if endpoint.is_relayed() { Path::Relayed } else { Path::Direct };
        let remote = endpoint.get_remote_address().clone();
        let quic = remote.iter().any(|part| matches!(part, Protocol::QuicV1));
        let carrier = if quic { Carrier::Quic } else { Carrier::Tcp };
        let rtt_micros = u64::MAX.into();
        let (since, served_ms) = (Instant::now(), 0.into());
        let connection = Connection { id, peer, path, carrier, remote, rtt_micros, since, served_ms, opens, ended };
        self.streams.write().entry(peer).or_default().push(Arc::new(connection));
    }

    fn closed(&mut self, id: ConnectionId, peer: &PeerId) {
        self.streams.give_up(peer, id);
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _local: &Multiaddr,
        _remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(id, peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _address: &Multiaddr,
        _role: Endpoint,
        _port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(id, peer))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(e) => self.established(e.connection_id, e.peer_id, e.endpoint),
            FromSwarm::ConnectionClosed(e) => self.closed(e.connection_id, &e.peer_id),
            FromSwarm::DialFailure(e) => drop(self.pending.remove(&e.connection_id)),
            FromSwarm::ListenFailure(e) => drop(self.pending.remove(&e.connection_id)),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _peer: PeerId, _id: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
