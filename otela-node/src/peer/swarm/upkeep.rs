//! What the driver looks after beside dials: reservations at relays, direct ways to peers that are reached through
//! relays, and connections that are not needed.

use super::{
    addresses::{bounded, is_relayed},
    direct::Look,
    driver::{Driver, Observed, Reach},
    reservations::Lost,
};
use crate::peer::{
    admission::By,
    defaults::{OBSERVED_MAX, TIDY_AFTER, TIDY_EVERY},
    streams::{Carrier, Relays},
};
use libp2p::{
    Multiaddr, PeerId,
    core::transport::ListenerId,
    multiaddr::Protocol,
    swarm::{
        ConnectionId,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use otela_proto::admission::Refused;
use std::collections::HashSet;
use tokio::time::Instant;

impl Driver {
    /// Asks relays that are connected to relay for us, as many as are wanted.
    pub(super) fn reserve(&mut self) {
        let now = Instant::now();
        for overdue in self.reservations.overdue(now) {
            tracing::warn!(relay = %overdue, "a relay does not answer, asking another if there is one");
        }
        let streams = &self.streams;
        let connected = |relay: &PeerId| streams.direct(relay).map(|connection| connection.remote().clone());
        for (relay, address) in self.reservations.due(connected, now) {
            let address = match address.iter().last() {
                Some(Protocol::P2p(_)) => address,
                _ => address.with(Protocol::P2p(relay)),
            };
            match self.swarm.listen_on(address.with(Protocol::P2pCircuit)) {
                Ok(listener) => self.reservations.asked(&relay, listener, now),
                Err(error) => tracing::warn!(%relay, %error, "cannot ask a relay"),
            }
        }
        let chosen: Vec<_> = self.reservations.chosen().into_iter().cloned().collect();
        if chosen != self.relays_wanted {
            self.relays_wanted = chosen;
            self.want();
        }
        self.publish_reach();
    }

    /// A relay relays for us.
    pub(super) fn on_reserved(&mut self, listener: ListenerId) {
        if let Some(relay) = self.reservations.held(listener) {
            tracing::info!(%relay, "reachable through a relay");
            self.publish_reach();
            self.look_over_quic(relay);
        }
    }

    /// Lets a relay that we talk to over TCP tell us how we look over QUIC.
    fn look_over_quic(&mut self, relay: PeerId) {
        let listens = self.swarm.listeners().any(|own| Carrier::of(own) == Carrier::Quic && !is_relayed(own));
        let over_tcp = self.streams.direct(&relay).is_some_and(|connection| connection.carrier() == Carrier::Tcp);
        let contact = self.reservations.contact(&relay);
        if listens
            && over_tcp
            && let Some(contact) = contact
            && let Some(address) = self.search.over_quic(relay, &contact.addresses, Instant::now())
        {
            self.dial_again(relay, vec![address]);
        }
    }

    /// A relay has refused, or relays for us no more.
    pub(super) fn on_reservation_ended(&mut self, listener: ListenerId, why: &str) {
        let Some((relay, lost)) = self.reservations.lost(listener, Instant::now()) else { return };
        match lost {
            Lost::Held => {
                self.metrics.reservations_lost.inc();
                tracing::warn!(%relay, why, "a relay does not relay for this peer any more, will ask again");
            }
            Lost::Refused => {
                self.metrics.reservations_refused.inc();
                tracing::warn!(%relay, why, "a relay does not relay for this peer, will ask again");
            }
            Lost::RefusedAgain => {
                self.metrics.reservations_refused.inc();
                tracing::debug!(%relay, why, "a relay does not relay for this peer, will ask again");
            }
        }
        self.reserve();
    }

    /// Somebody has connected to an address that we listen on.
    pub(super) fn on_dialled(&mut self) {
        self.is_dialled = true;
        self.publish_reach();
    }

    /// Another peer has told as what it sees us.
    pub(super) fn on_observed(&mut self, by: PeerId, id: ConnectionId, address: Multiaddr) {
        // Of connections that others have dialled, it is the address that they knew already.
        let is_ours = self.streams.get(&by, id).is_some_and(|connection| connection.is_ours());
        if !is_ours || is_relayed(&address) {
            return;
        }
        let carrier = Carrier::of(&address);
        self.observed.retain(|old| old.by != by || Carrier::of(&old.address) != carrier);
        self.observed.push(Observed { by, address });
        let surplus = self.observed.len().saturating_sub(OBSERVED_MAX);
        self.observed.drain(..surplus);
        self.publish_reach();
    }

    pub(super) fn publish_reach(&self) {
        let relays = self.reservations.holding();
        self.metrics.reservations.set(i64::try_from(relays.len()).unwrap_or(i64::MAX));
        let relays_known = self.is_told.then(|| self.reservations.len());
        let (left_out, unmatched) = (self.left_out.clone(), self.unmatched.clone());
        let (is_dialled, observed) = (self.is_dialled, self.observed.clone());
        let reach = Reach { is_dialled, relays, relays_known, left_out, unmatched, observed };
        self.published.reach.send_if_modified(|old| {
            let changed = *old != reach;
            *old = reach;
            changed
        });
    }

    /// Who may not be here any more is put out; who was refused may be welcome now, here or, since the same file changes
    /// everywhere, there.
    pub(super) fn on_rules_changed(&mut self) {
        self.judge_again();
        self.dialer.begin_anew(Instant::now());
    }

    /// Closes connections to peers that the rules do not admit any more.
    pub(super) fn judge_again(&mut self) {
        for (peer, id, refused) in self.admission.judge_again() {
            self.put_out(peer, id, refused);
        }
    }

    /// Closes a connection whose peer may not be here.
    pub(super) fn put_out(&mut self, peer: PeerId, id: ConnectionId, refused: Refused) {
        let reason = refused.reason();
        tracing::warn!(%peer, reason, "closing a connection: by the rules as they are now its peer may not be here");
        self.admission.tally().refused(By::Us, refused, &peer, None);
        self.streams.give_up(&peer, id);
        self.swarm.close_connection(id);
    }

    /// Has [`Self::tidy`] called soon, once for all connections of one moment.
    pub(super) fn tidy_soon(&mut self) {
        let soon = Instant::now() + TIDY_AFTER;
        self.tidy_at = Some(self.tidy_at.map_or(soon, |at| at.min(soon)));
    }

    /// Of several connections to one peer closes those that are not needed, once nothing runs on them, and looks for
    /// direct ways to peers that have none.
    pub(super) fn tidy(&mut self) {
        let known = self.wanted.iter().filter(|contact| contact.is_relay).map(|contact| contact.peer);
        let known: HashSet<_> = known.chain(self.reservations.peers()).collect();
        let relays = if self.swarm.behaviour().relay.is_enabled() { Relays::We } else { Relays::Other(&known) };
        let (unused, several) = self.streams.tidy(self.swarm.local_peer_id(), &relays);
        for connection in unused {
            tracing::debug!(peer = %connection.peer(), path = ?connection.path(), "closing a connection beside a better one");
            self.metrics.connections_retired.inc();
            self.streams.give_up(&connection.peer(), connection.id());
            self.swarm.close_connection(connection.id());
        }
        let relayed = self.streams.relayed();
        self.tidy_at = (several || !relayed.is_empty()).then(|| Instant::now() + TIDY_EVERY);
        for Look { connection, again } in self.search.due(relayed, Instant::now()) {
            let peer = connection.peer();
            let known = self.wanted.iter().find(|contact| contact.peer == peer);
            let known = known.or_else(|| self.reservations.contact(&peer));
            let own: Vec<_> = known.into_iter().flat_map(|contact| &contact.addresses).cloned().collect();
            let own =
                bounded(own, self.swarm.local_peer_id()).into_iter().filter(|address| !is_relayed(address)).collect();
            if let Some(id) = self.dial_again(peer, own) {
                self.search.dialled(id);
            }
            if again {
                self.dial_again(peer, vec![connection.remote().clone()]);
            }
        }
    }

    /// Dials a peer that is connected.
    fn dial_again(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) -> Option<ConnectionId> {
        if addresses.is_empty() {
            return None;
        }
        let again = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses).build();
        let id = again.connection_id();
        self.swarm.dial(again).inspect_err(|error| tracing::debug!(%peer, %error, "dial refused")).ok()?;
        Some(id)
    }
}
