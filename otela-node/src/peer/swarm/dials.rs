//! Dials that are due: names are resolved, and the swarm is told.

use super::{
    addresses::{has_name, relay_of, resolve_all},
    dialer::Target,
    driver::Driver,
};
use crate::tasks::Tasks;
use libp2p::{
    Multiaddr, PeerId,
    core::transport::PortUse,
    swarm::dial_opts::{DialOpts, PeerCondition},
};
use std::io;
use tokio::time::Instant;

/// How a peer is dialled.
#[derive(Debug, Clone, Copy)]
struct How {
    port: PortUse,
    condition: PeerCondition,
}

impl Driver {
    /// Begins what is due.
    pub(super) fn dial_due(&mut self, tasks: &Tasks) {
        for mut due in self.dialer.take_due(Instant::now()) {
            let too_early: Vec<_> = due.addresses.extract_if(.., |address| self.is_too_early(address)).collect();
            if !too_early.is_empty() {
                let all = due.addresses.is_empty();
                self.dialer.put_back(due.target, too_early, all, Instant::now());
                if all {
                    continue;
                }
            }
            let how = How { port: self.port_for(due.target), condition: self.condition_for(due.peer) };
            if !due.addresses.iter().any(has_name) {
                self.dial(due.target, dial_opts(due.peer, due.addresses, how));
                continue;
            }
            // A resolver may take its time; the swarm cannot wait for it.
            let resolved = self.resolved.0.clone();
            tasks.spawn(async move {
                let addresses = resolve_all(due.addresses).await;
                let _ = resolved.send((due.target, addresses.map(|found| dial_opts(due.peer, found, how)))).await;
            });
        }
    }

    /// Whether an address leads through a relay that is just being dialled: libp2p would dial that as well, find that
    /// somebody does so already, and give up.
    fn is_too_early(&self, address: &Multiaddr) -> bool {
        let is_awaited = |relay| !self.swarm.is_connected(&relay) && self.dialling.values().any(|peer| *peer == relay);
        relay_of(address).is_some_and(is_awaited)
    }

    /// From which port to dial. A relay must see the one that we listen on: that is where the NAT before us has to be
    /// punched. Otherwise it is another one. Two strangers who hear of each other at the same moment would else dial
    /// each other between the same two ports, and TCP makes one connection of two that meet on the way: both sides
    /// take themselves for the dialer, and neither gets anywhere.
    fn port_for(&self, target: Target) -> PortUse {
        let of_relays = [&self.relays_wanted, &self.wanted, &self.public];
        let is_relay = |peer: &PeerId| of_relays.into_iter().flatten().any(|c| c.is_relay && c.peer == *peer);
        match target {
            _ if self.swarm.behaviour().relay.is_enabled() => PortUse::New,
            Target::Peer(peer) if !is_relay(&peer) => PortUse::New,
            _ => PortUse::Reuse,
        }
    }

    /// Whoever is connected is not dialled again, unless nothing is left of that but its end.
    fn condition_for(&self, peer: Option<PeerId>) -> PeerCondition {
        let is_ending = peer.is_some_and(|peer| self.streams.best(&peer).is_none());
        if is_ending { PeerCondition::Always } else { PeerCondition::Disconnected }
    }

    /// The names of a dial are resolved, or cannot be.
    pub(super) fn on_resolved(&mut self, target: Target, opts: io::Result<Option<DialOpts>>) {
        match opts {
            Ok(opts) => self.dial(target, opts),
            Err(error) => {
                let all = self.dialer.refused(target, Instant::now());
                let error = format!("cannot resolve its name: {error}");
                match target {
                    Target::Bootstrap(_) => self.complain(target, error, all),
                    Target::Peer(peer) if all => tracing::warn!(%peer, error, "cannot dial a peer, will try again"),
                    Target::Peer(_) | Target::Listed(_) | Target::Remembered(_) | Target::Found(_) => {}
                }
            }
        }
    }

    fn dial(&mut self, target: Target, opts: Option<DialOpts>) {
        let Some(opts) = opts else {
            self.dialer.refused(target, Instant::now());
            return;
        };
        let id = opts.connection_id();
        self.dialer.started(target, id);
        if let Target::Bootstrap(_) | Target::Listed(_) = target {
            self.bootstrap_dials.insert(id, target);
        }
        let peer = opts.get_peer_id();
        match self.swarm.dial(opts) {
            Ok(()) => self.dialling.extend(peer.map(|peer| (id, peer))),
            Err(error) => {
                tracing::debug!(%error, ?target, "dial refused");
                self.dialer.failed(id, Instant::now());
            }
        }
    }
}

/// `None` if there is nothing to dial.
fn dial_opts(peer: Option<PeerId>, addresses: Vec<Multiaddr>, how: How) -> Option<DialOpts> {
    let first = addresses.first()?.clone();
    let is_new = matches!(how.port, PortUse::New);
    Some(match peer {
        Some(peer) => {
            let opts = DialOpts::peer_id(peer).condition(how.condition).addresses(addresses);
            if is_new { opts.allocate_new_port().build() } else { opts.build() }
        }
        None => {
            let opts = DialOpts::unknown_peer_id().address(first);
            if is_new { opts.allocate_new_port().build() } else { opts.build() }
        }
    })
}
