//! What the swarm reports, and what the driver makes of it.

use super::{
    addresses::{Way, is_relayed, tcp_remotes},
    dialer::{Failed, Target},
    driver::Driver,
    net::NetEvent,
    why::{of_system, words},
};
use crate::{
    peer::{
        bootstrap::Bootstrap,
        defaults::PING_MISSES_MAX,
        gossip::Event,
        streams::{Carrier, Path},
        transport::{is_proxied, may_lead_to, socket_of},
    },
    telemetry::chain,
};
use libp2p::{
    Multiaddr, PeerId,
    core::ConnectedPoint,
    dcutr, identify, ping,
    swarm::{ConnectionId, DialError, ListenError, SwarmEvent},
};
use std::{collections::BTreeSet, io};
use tokio::time::Instant;

impl Driver {
    /// Handles one event of the swarm.
    pub(super) async fn on_event(&mut self, event: SwarmEvent<NetEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_established(peer_id, connection_id, &endpoint).await;
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, endpoint, num_established, cause } => {
                self.metrics.connections.dec();
                self.misses.remove(&connection_id);
                self.admission.is_gone(connection_id);
                if num_established == 0 {
                    tracing::debug!(peer = %peer_id, ?cause, "disconnected");
                    self.dialer.lost(&peer_id, Instant::now());
                    self.answering.remove(&peer_id);
                }
                let (relayed, last) = (endpoint.is_relayed(), num_established == 0);
                self.tell(Event::Disconnected { peer: peer_id, id: connection_id, relayed, last }).await;
            }
            SwarmEvent::Dialing { peer_id: Some(peer), connection_id } => _ = self.dialling.insert(connection_id, peer),
            SwarmEvent::OutgoingConnectionError { connection_id, error, peer_id } => {
                self.dialling.remove(&connection_id);
                self.on_dial_failed(connection_id, &error, peer_id).await;
            }
            SwarmEvent::NewListenAddr { address, listener_id } => {
                if is_relayed(&address) {
                    self.on_reserved(listener_id);
                } else {
                    tracing::info!(%address, "listening");
                }
                self.publish_addresses();
            }
            SwarmEvent::ListenerClosed { listener_id, reason, .. } => {
                let why = reason.err().map_or_else(|| "the connection to it is gone".to_owned(), |error| chain(&error));
                self.on_reservation_ended(listener_id, &why);
                self.publish_addresses();
            }
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                self.on_address_gone(&address);
                self.publish_addresses();
            }
            SwarmEvent::IncomingConnectionError { error, send_back_addr, .. } => {
                let reason = if matches!(error, ListenError::Denied { .. }) { "denied" } else { "handshake" };
                self.metrics.incoming_failed(reason);
                if reason == "denied" && self.said.is_due(reason, Instant::now()) {
                    tracing::warn!(from = %send_back_addr, "more connections come in than may be; the newest are denied, see otela_peer_incoming_failed_total");
                }
                tracing::debug!(from = %send_back_addr, error = chain(&error), "a connection of somebody came to nothing");
            }
            // Strangers' packets are no trouble of ours; what the system does not give us is.
            SwarmEvent::ListenerError { error, .. } if of_system(&error).is_none() => {
                self.metrics.incoming_failed("listener");
                tracing::debug!(%error, "what came to a listener is no connection");
            }
            SwarmEvent::ListenerError { error, .. } => self.complain_of_listener(&error),
            SwarmEvent::Behaviour(event) => self.on_behaviour(event),
            _ => {}
        }
    }

    async fn on_established(&mut self, peer: PeerId, id: ConnectionId, endpoint: &ConnectedPoint) {
        self.dialling.remove(&id);
        self.metrics.connections.inc();
        self.metrics.opened(Carrier::of(used(endpoint)).name(), through(endpoint));
        let way = match endpoint {
            ConnectedPoint::Dialer { address, .. } => Way::of(address),
            // It says nothing of our own dials.
            ConnectedPoint::Listener { .. } if endpoint.is_relayed() => Way::Around,
            ConnectedPoint::Listener { .. } => Way::Own,
        };
        self.dialer.connected(peer, id, way, Instant::now());
        if let Some(target) = self.bootstrap_dials.remove(&id)
            && let Some((bootstrap, _)) = self.dialer.bootstrap(target)
        {
            self.via.found(bootstrap, peer);
        }
        for bootstrap in self.dialer.bootstraps_of(&peer) {
            self.complaints.reached(bootstrap);
            self.published.troubles.are_over(&self.bootstraps[bootstrap].to_string());
        }
        self.limits.apply(&self.streams, &peer, id, endpoint);
        self.search.ended(id);
        self.asked.connected(id);
        tracing::debug!(%peer, address = %endpoint.get_remote_address(), "connected");
        if endpoint.is_listener() && !endpoint.is_relayed() {
            self.on_dialled();
        }
        if let Err(refused) = self.admission.is_here(peer, id) {
            self.put_out(peer, id, refused);
        }
        self.reserve();
        self.tidy_soon();
        self.tell(Event::Connected(peer, id)).await;
    }

    /// This machine has an address no more. What was connected from it would hang until TCP gives up, which takes a
    /// quarter of an hour; over QUIC silence tells after seconds.
    fn on_address_gone(&mut self, address: &Multiaddr) {
        let Some((own, true)) = socket_of(address).filter(|_| !is_relayed(address)) else { return };
        let remotes = tcp_remotes(own.ip());
        for connection in self.streams.all() {
            let is_over_tcp = connection.path() == Path::Direct && connection.carrier() != Carrier::Quic;
            if is_over_tcp && remotes.iter().any(|remote| may_lead_to(connection.remote(), remote)) {
                tracing::info!(peer = %connection.peer(), own = %own.ip(), "closing a connection from an address that is gone");
                self.streams.give_up(&connection.peer(), connection.id());
                self.swarm.close_connection(connection.id());
            }
        }
    }

    fn on_behaviour(&mut self, event: NetEvent) {
        match event {
            NetEvent::Pings(event) => self.on_ping(event),
            NetEvent::Relay(event) => {
                let swarm = &self.swarm;
                self.guests.on_event(&event, |peer| swarm.is_connected(peer), &self.metrics);
            }
            NetEvent::RelayClient(event) => self.limits.told(&event),
            NetEvent::Dcutr(event) => self.on_hole_punch(&event),
            NetEvent::Kademlia(event) => self.on_kademlia(event),
            NetEvent::Identify(identify::Event::Received { connection_id, peer_id, info }) => {
                self.on_observed(peer_id, connection_id, info.observed_addr);
            }
            _ => {}
        }
    }

    /// A direct way was looked for to a peer that is reached through a relay.
    fn on_hole_punch(&mut self, event: &dcutr::Event) {
        let peer = event.remote_peer_id;
        match &event.result {
            Ok(id) => {
                let carrier = self.streams.get(&peer, *id).map_or("gone", |connection| connection.carrier().name());
                self.metrics.hole_punched(carrier, "ok");
                tracing::info!(%peer, carrier, "a direct way was found to a peer that was reached through a relay");
            }
            Err(error) => {
                tracing::debug!(%peer, error = chain(error), "no direct way was found, the relayed one stays");
            }
        }
    }

    /// Counts a try at a hole punch that has failed, once for each transport that was tried.
    fn on_hole_punch_failed(&self, error: &DialError) {
        let DialError::Transport(failed) = error else { return };
        let carriers: BTreeSet<_> = failed.iter().map(|(address, _)| Carrier::of(address).name()).collect();
        for carrier in carriers {
            self.metrics.hole_punched(carrier, "failed");
        }
    }

    /// Out of file descriptors, a listener fails ten times a second.
    fn complain_of_listener(&mut self, error: &io::Error) {
        if self.said.is_due("listener", Instant::now()) {
            tracing::warn!(%error, "cannot accept connections of other peers, will go on trying");
        }
    }

    async fn on_dial_failed(&mut self, id: ConnectionId, error: &DialError, peer: Option<PeerId>) {
        if self.asked.failed(id, error) {
            return;
        }
        if self.search.ended(id) {
            return tracing::debug!(?peer, %error, "no direct way by its own addresses");
        }
        if !self.dialer.is_ours(id) && peer.is_some_and(|peer| self.swarm.is_connected(&peer)) {
            return self.on_hole_punch_failed(error);
        }
        let quiet = self.dialer.is_quiet(id);
        let outcome = self.dialer.failed(id, Instant::now());
        let meant = peer.or(if let Failed::All(meant) = outcome { meant } else { None });
        if let Some(meant) = meant.filter(|meant| self.admission.was_refused(meant)) {
            self.dialer.put_off(&meant, Instant::now());
        }
        let unreachable = match outcome {
            Failed::All(meant) => peer.or(meant),
            Failed::NotAll => None,
            Failed::NotWanted => peer,
        };
        if matches!(error, DialError::DialPeerConditionFalse(_)) {
            return;
        }
        self.metrics.dials_failed.inc();
        tracing::debug!(?peer, %error, "dial failed");
        if let Some(target) = self.bootstrap_dials.remove(&id) {
            self.complain(target, words(error), matches!(outcome, Failed::All(_)));
        }
        // Whoever is known from an earlier run or by hearsay only is nobody yet.
        if !quiet
            && let Some(peer) = unreachable
            && !self.swarm.is_connected(&peer)
        {
            if self.reservations.unreachable(&peer, Instant::now()) {
                self.want();
            }
            self.tell(Event::Unreachable(peer)).await;
        }
    }

    /// A bootstrap that does not answer is worth a line now and then; other peers come and go.
    pub(super) fn complain(&mut self, target: Target, error: String, all: bool) {
        let Some((bootstrap, address)) = self.dialer.bootstrap(target) else { return };
        let address = address.clone();
        // Of many that are on a list some are always gone.
        if matches!(target, Target::Listed(_)) && !self.dialer.is_deserted() {
            return;
        }
        // Under an address without an id it may be itself; what comes of that is nobody's trouble.
        let is_own = |own: &Multiaddr| socket_of(own).is_some() && socket_of(own) == socket_of(&address);
        if self.published.addresses.borrow().iter().any(is_own) {
            return;
        }
        let Some((error, is_due)) = self.complaints.failed(bootstrap, error, all, Instant::now()) else { return };
        self.published.troubles.begin(self.bootstraps[bootstrap].to_string(), error.clone());
        match &self.bootstraps[bootstrap] {
            _ if !is_due => {}
            Bootstrap::Address(_) => tracing::warn!(%address, error, "a bootstrap does not answer, will go on trying"),
            list => tracing::warn!(%list, %address, error, "no bootstrap on a list answers, will go on trying"),
        }
    }

    fn on_ping(&mut self, event: ping::Event) {
        match event.result {
            Ok(rtt) => {
                self.misses.remove(&event.connection);
                self.streams.measured(&event.peer, event.connection, rtt);
            }
            Err(ping::Failure::Unsupported) => {}
            Err(failure) => {
                let misses = self.misses.entry(event.connection).or_default();
                *misses += 1;
                if *misses >= PING_MISSES_MAX {
                    tracing::warn!(peer = %event.peer, %failure, "closing a connection that does not answer");
                    self.metrics.connections_closed_by_ping.inc();
                    self.streams.give_up(&event.peer, event.connection);
                    self.swarm.close_connection(event.connection);
                }
            }
        }
    }

    /// The gossip task never waits for the driver, so this wait is bounded by its own work.
    async fn tell(&mut self, event: Event) {
        // It is gone only while the peer stops.
        let _ = self.events.send(event).await;
    }
}

/// The address that tells how a connection has come about.
fn used(endpoint: &ConnectedPoint) -> &Multiaddr {
    match endpoint {
        ConnectedPoint::Dialer { address, .. } => address,
        ConnectedPoint::Listener { local_addr, .. } => local_addr,
    }
}

/// What a connection leads through, for the metrics.
fn through(endpoint: &ConnectedPoint) -> &'static str {
    match endpoint {
        relayed if relayed.is_relayed() => "relay",
        proxied if is_proxied(used(proxied)) => "proxy",
        _ => "nothing",
    }
}
