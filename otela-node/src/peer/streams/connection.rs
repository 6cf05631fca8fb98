//! One open connection to a peer.

use super::{
    CircuitLimit, EndingIo,
    ending::{Life, now_ms},
    handler::{Open, Substreams},
};
use crate::peer::{
    defaults::{PATH_LOST_WITHIN, RETIRED_FOR},
    swarm::relay_of,
    transport::is_proxied,
};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{ConnectedPoint, Endpoint},
    multiaddr::Protocol,
    swarm::ConnectionId,
};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::{Mutex, MutexGuard, mpsc, oneshot};

/// How a peer is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Over a connection of our own.
    Direct,
    /// Over a circuit through a relay.
    Relayed,
}

impl Path {
    /// Its name in headers, logs and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Relayed => "relayed",
        }
    }
}

/// What carries a connection. A dead peer shows at once over TCP, and after seconds over QUIC; whatever looks like the
/// web is watched and cut by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::peer) enum Carrier {
    Tcp,
    Quic,
    /// WebSocket over TCP, with TLS between or without.
    Wss,
}

impl Carrier {
    /// That of an address.
    pub(in crate::peer) fn of(address: &Multiaddr) -> Self {
        let of = |part| match part {
            Protocol::QuicV1 => Some(Self::Quic),
            Protocol::Ws(_) | Protocol::Wss(_) => Some(Self::Wss),
            _ => None,
        };
        address.iter().find_map(of).unwrap_or(Self::Tcp)
    }

    /// Its name in metrics.
    pub(in crate::peer) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::Wss => "wss",
        }
    }
}

/// One open connection to a peer.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    peer: PeerId,
    path: Path,
    carrier: Carrier,
    proxied: bool,
    remote: Multiaddr,
    /// Through whom, if it is relayed.
    relay: Option<PeerId>,
    /// Whether we are the side that began it; of a hole punch both sides dial, and one of them counts as this.
    ours: bool,
    rtt_micros: AtomicU64,
    since: Instant,
    began_ms: u64,
    /// When it was last said that the peer serves, in milliseconds after `since`; 0 for never.
    served_ms: AtomicU64,
    retired_at: OnceLock<Instant>,
    /// What its relay allows it, if that is known.
    limit: OnceLock<CircuitLimit>,
    /// Held by whoever looks for a fresh circuit in its place.
    renewal: Mutex<()>,
    opens: mpsc::Sender<Open>,
    protocols: Substreams,
    life: Life,
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
    /// `opens` leads to the connection's handler.
    pub(super) fn new(
        id: ConnectionId,
        peer: PeerId,
        endpoint: &ConnectedPoint,
        (opens, protocols): (mpsc::Sender<Open>, Substreams),
        life: Life,
    ) -> Self {
        let path = if endpoint.is_relayed() { Path::Relayed } else { Path::Direct };
        let remote = endpoint.get_remote_address().clone();
        let (through, ours) = match endpoint {
            ConnectedPoint::Dialer { address, role_override, .. } => (address, *role_override == Endpoint::Dialer),
            ConnectedPoint::Listener { local_addr, .. } => (local_addr, false),
        };
        let carrier = Carrier::of(through);
        let (relay, proxied) = (relay_of(through), is_proxied(through));
        let (rtt_micros, since, began_ms, served_ms) = (u64::MAX.into(), Instant::now(), now_ms(), 0.into());
        Self {
            id,
            peer,
            path,
            carrier,
            proxied,
            remote,
            relay,
            ours,
            rtt_micros,
            since,
            began_ms,
            served_ms,
            retired_at: OnceLock::new(),
            limit: OnceLock::new(),
            renewal: Mutex::new(()),
            opens,
            protocols,
            life,
        }
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

    /// The relay that it goes through, if it is relayed.
    #[must_use]
    pub fn relay(&self) -> Option<PeerId> {
        self.relay
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
    pub(in crate::peer) fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Whether it leads through the HTTP proxy of this site. Of that at the other end nothing is known.
    pub(in crate::peer) fn is_proxied(&self) -> bool {
        self.proxied
    }

    /// The name of what carries it: `tcp` or `quic`.
    #[must_use]
    pub fn carrier_name(&self) -> &'static str {
        self.carrier.name()
    }

    /// Since when it stands.
    pub(in crate::peer) fn since(&self) -> Instant {
        self.since
    }

    /// Whether we began it.
    pub(in crate::peer) fn is_ours(&self) -> bool {
        self.ours
    }

    /// For how long it has stood.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// When it began, in milliseconds of [`now_ms`].
    pub(super) fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// Whether nothing has come on it since `ms`, in milliseconds of [`now_ms`].
    pub(super) fn is_silent_since(&self, ms: u64) -> bool {
        self.life.heard_ms() < ms
    }

    /// Its relay allows it no more than this.
    pub(in crate::peer) fn is_limited(&self, limit: CircuitLimit) {
        self.limit.get_or_init(|| limit);
    }

    /// Whether it has used up so much of what its relay allows that the next request had better take another.
    pub(in crate::peer) fn is_worn(&self) -> bool {
        self.limit.get().is_some_and(|limit| limit.is_near(self.life.bytes(), self.age()))
    }

    /// For the one that looks for another; `None` while somebody does.
    pub(in crate::peer) fn begin_renewal(&self) -> Option<MutexGuard<'_, ()>> {
        self.renewal.try_lock().ok()
    }

    /// Keeps a measured round trip.
    pub(super) fn measured(&self, rtt: Duration) {
        let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX - 1);
        self.rtt_micros.store(micros, Ordering::Relaxed);
    }

    /// Ends its streams, and takes no new ones.
    pub(super) fn end(&self) {
        self.life.ended.cancel();
        self.life.retired.cancel();
    }

    /// Takes no new requests, as there is a better connection; those that run finish.
    pub(in crate::peer) fn retire(&self) {
        self.retired_at.get_or_init(Instant::now);
        self.life.retired.cancel();
    }

    /// Whether it was retired and nothing runs on it. For a moment the other side may not have seen the better one.
    pub(super) fn is_unused(&self) -> bool {
        self.retired_at.get().is_some_and(|at| at.elapsed() >= RETIRED_FOR) && self.life.users() == 0
    }

    /// Whether it takes no new requests.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.life.retired.is_cancelled()
    }

    /// Resolves when it takes no new requests.
    pub(in crate::peer) async fn retired(&self) {
        self.life.retired.cancelled().await;
    }

    /// Whether the connection has ended, or does so within a moment.
    pub(in crate::peer) async fn ends_soon(&self) -> bool {
        // Behind a relay the news takes two hops.
        let within = if self.path == Path::Relayed { PATH_LOST_WITHIN } else { PATH_LOST_WITHIN / 5 };
        tokio::time::timeout(within, self.life.ended.cancelled()).await.is_ok()
    }

    /// Whether it is open, as far as is known.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.opens.is_closed() && !self.life.ended.is_cancelled()
    }

    /// A new substream. With lazy negotiation a protocol that the remote does not speak may only show at the
    /// first read.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(&self, protocol: StreamProtocol) -> Result<EndingIo, OpenError> {
        let (reply, stream) = oneshot::channel();
        let counts = self.protocols.counts(&protocol);
        self.opens.send(Open { protocol, reply }).await.map_err(|_| OpenError::Closed)?;
        let stream = stream.await.map_err(|_| OpenError::Closed)??;
        Ok(EndingIo::new(stream, &self.life, counts))
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
