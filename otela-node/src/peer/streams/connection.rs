//! One open connection to a peer.

use super::{EndingIo, handler::Open};
use libp2p::{Multiaddr, PeerId, StreamProtocol, core::ConnectedPoint, multiaddr::Protocol, swarm::ConnectionId};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

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
pub(super) enum Carrier {
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
    /// `opens` leads to the connection's handler; `ended` ends its streams.
    pub(super) fn new(
        id: ConnectionId,
        peer: PeerId,
        endpoint: &ConnectedPoint,
        opens: mpsc::Sender<Open>,
        ended: CancellationToken,
    ) -> Self {
        let path = if endpoint.is_relayed() { Path::Relayed } else { Path::Direct };
        let remote = endpoint.get_remote_address().clone();
        let quic = remote.iter().any(|part| matches!(part, Protocol::QuicV1));
        let carrier = if quic { Carrier::Quic } else { Carrier::Tcp };
        let (rtt_micros, since, served_ms) = (u64::MAX.into(), Instant::now(), 0.into());
        Self { id, peer, path, carrier, remote, rtt_micros, since, served_ms, opens, ended }
    }

    /// The swarm's name for it.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// The peer has answered a request. Returns whether that is worth telling, which it is once in `every`.
    pub(in crate::peer) fn has_served(&self, every: Duration) -> bool {
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

    /// What carries it.
    pub(super) fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Keeps a measured round trip.
    pub(super) fn measured(&self, rtt: Duration) {
        let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX - 1);
        self.rtt_micros.store(micros, Ordering::Relaxed);
    }

    /// Ends its streams, and takes no new ones.
    pub(super) fn end(&self) {
        self.ended.cancel();
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
