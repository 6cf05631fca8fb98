//! The search for direct ways to peers that are reached through relays.
//!
//! libp2p tries when a relayed connection begins, and never again. What was in the way may go away, so we try again,
//! more and more rarely, by dialling the peer through its relay once more: that begins another search, and the new
//! connection is closed later if the old one is no worse.

use crate::peer::{
    defaults::{LOOK_AGAIN_MAX, LOOK_AGAIN_MIN, LOOK_OVER_QUIC_EVERY},
    streams::Connection,
};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol, swarm::ConnectionId};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tokio::time::Instant;

/// When to look for a direct way to whom.
#[derive(Debug, Default)]
pub(super) struct Search {
    peers: HashMap<PeerId, (Instant, ExponentialBackoff)>,
    /// When relays were last asked how we look over QUIC.
    over_quic: HashMap<PeerId, Instant>,
    dials: HashSet<ConnectionId>,
}

/// What to do for one peer.
#[derive(Debug)]
pub(super) struct Look {
    /// The relayed connection to it.
    pub(super) connection: Arc<Connection>,
    /// Whether to dial it through its relay once more. If not, its own addresses only are to be dialled: it has
    /// reached us, and we may not have tried them.
    pub(super) again: bool,
}

impl Search {
    /// Whom to look for now. `relayed` are the best connections to peers without a direct one.
    pub(super) fn due(&mut self, relayed: Vec<Arc<Connection>>, now: Instant) -> Vec<Look> {
        let peers: HashSet<_> = relayed.iter().map(|connection| connection.peer()).collect();
        self.peers.retain(|peer, _| peers.contains(peer));
        let look = |connection: Arc<Connection>| {
            let Some((next, pauses)) = self.peers.get_mut(&connection.peer()) else {
                let mut pauses = pauses();
                let next = now + pauses.next().unwrap_or(LOOK_AGAIN_MAX);
                self.peers.insert(connection.peer(), (next, pauses));
                return (!connection.is_ours()).then_some(Look { connection, again: false });
            };
            let is_due = *next <= now;
            if is_due {
                *next = now + pauses.next().unwrap_or(LOOK_AGAIN_MAX);
            }
            let again = connection.is_ours();
            is_due.then_some(Look { connection, again })
        };
        relayed.into_iter().filter_map(look).collect()
    }

    /// A dial of a peer's own addresses has begun.
    pub(super) fn dialled(&mut self, id: ConnectionId) {
        self.dials.insert(id);
    }

    /// A dial has ended. Whether it was one of ours.
    pub(super) fn ended(&mut self, id: ConnectionId) -> bool {
        self.dials.remove(&id)
    }

    /// The address at which to ask a relay how we look over QUIC, if that was not asked lately: peers can then find us
    /// over either transport. `addresses` are the relay's.
    pub(super) fn over_quic(&mut self, relay: PeerId, addresses: &[Multiaddr], now: Instant) -> Option<Multiaddr> {
        let is_quic = |address: &&Multiaddr| address.iter().any(|part| matches!(part, Protocol::QuicV1));
        let address = addresses.iter().find(is_quic)?;
        self.over_quic.retain(|_, asked| now < *asked + LOOK_OVER_QUIC_EVERY);
        (self.over_quic.insert(relay, now).is_none()).then(|| address.clone())
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(LOOK_AGAIN_MIN)
        .with_max_delay(LOOK_AGAIN_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}
