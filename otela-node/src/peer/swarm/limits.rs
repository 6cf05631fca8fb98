//! What relays have said that they allow circuits, until the connections over these are there.

use crate::peer::{
    defaults::CIRCUITS_TOLD_MAX,
    streams::{CircuitLimit, Streams},
};
use libp2p::{PeerId, core::ConnectedPoint, relay::client, swarm::ConnectionId};
use std::collections::HashMap;

/// What relays have said. Of our own circuits it comes from the relay they lead through, of those that others have begun
/// it comes with each of them.
#[derive(Debug, Default)]
pub(super) struct Limits {
    of_relays: HashMap<PeerId, CircuitLimit>,
    of_callers: HashMap<PeerId, CircuitLimit>,
}

impl Limits {
    /// Takes what a relay says of a circuit.
    pub(super) fn told(&mut self, event: &client::Event) {
        let (of, peer, limit) = match event {
            client::Event::OutboundCircuitEstablished { relay_peer_id, limit } => {
                (&mut self.of_relays, relay_peer_id, limit)
            }
            client::Event::InboundCircuitEstablished { src_peer_id, limit } => {
                (&mut self.of_callers, src_peer_id, limit)
            }
            client::Event::ReservationReqAccepted { .. } => return,
        };
        // Of callers that never came through the door nothing is needed any more.
        if of.len() >= CIRCUITS_TOLD_MAX && !of.contains_key(peer) {
            of.clear();
        }
        let (bytes, lasts) = limit.as_ref().map_or((None, None), |limit| (limit.data_in_bytes(), limit.duration()));
        // Zero is for none.
        let (bytes, lasts) = (bytes.filter(|bytes| *bytes > 0), lasts.filter(|lasts| !lasts.is_zero()));
        of.insert(*peer, CircuitLimit { bytes, lasts });
    }

    /// A connection stands; if it is over a circuit, it is told what that may carry.
    pub(super) fn apply(&mut self, streams: &Streams, peer: &PeerId, id: ConnectionId, endpoint: &ConnectedPoint) {
        let Some(connection) = streams.get(peer, id).filter(|_| endpoint.is_relayed()) else { return };
        let limit = match endpoint {
            ConnectedPoint::Dialer { .. } => connection.relay().and_then(|relay| self.of_relays.get(&relay).copied()),
            ConnectedPoint::Listener { .. } => self.of_callers.remove(peer),
        };
        if let Some(limit) = limit {
            connection.is_limited(limit);
        }
    }
}
