//! When others are looked for with Kademlia, and what is made of what is found.

use super::{addresses::is_relayed, driver::Driver, kademlia};
use crate::peer::defaults::{LOOKUP_AFTER, LOOKUP_EVERY_MAX};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

/// When to search.
#[derive(Debug)]
pub(super) struct Lookup {
    at: Option<Instant>,
    pauses: ExponentialBackoff,
}

impl Default for Lookup {
    fn default() -> Self {
        Self { at: None, pauses: pauses() }
    }
}

impl Lookup {
    /// Whether no bootstrap is connected.
    pub(super) fn watch(&mut self, deserted: bool, now: Instant) {
        match (deserted, self.at) {
            (true, None) => self.at = Some(now + LOOKUP_AFTER),
            (false, Some(_)) => *self = Self::default(),
            _ => {}
        }
    }

    /// When the next search is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.at
    }

    /// A search begins.
    fn begin(&mut self, now: Instant) {
        self.at = Some(now + self.pauses.next().unwrap_or(LOOKUP_EVERY_MAX));
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(LOOKUP_AFTER)
        .with_max_delay(LOOKUP_EVERY_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

impl Driver {
    /// Looks whether bootstraps have come or gone.
    pub(super) fn watch_bootstraps(&mut self) {
        let deserted = self.dialer.is_deserted();
        self.published.deserted.send_if_modified(|old| std::mem::replace(old, deserted) != deserted);
        self.lookup.watch(deserted, Instant::now());
    }

    /// Looks for public peers that the registry does not know.
    pub(super) fn look_up(&mut self) {
        self.lookup.begin(Instant::now());
        if self.swarm.behaviour_mut().kademlia.search() {
            tracing::debug!("no bootstrap answers: looking for other peers");
        }
    }

    /// Tells Kademlia the public peers that the registry knows: relays, and those that have shown that they answer.
    pub(super) fn feed_kademlia(&mut self) {
        let own = |addresses: &[Multiaddr]| addresses.iter().filter(|address| !is_relayed(address)).cloned().collect();
        let others = self.wanted.iter().filter(|contact| !contact.is_relay && self.answering.contains(&contact.peer));
        let public = self.public.iter().chain(others);
        let public: Vec<_> = public.map(|contact| (contact.peer, own(&contact.addresses))).collect();
        self.swarm.behaviour_mut().kademlia.feed(public);
    }

    /// Kademlia has news.
    pub(super) fn on_kademlia(&mut self, event: kademlia::Event) {
        match event {
            kademlia::Event::Public(peer) => {
                if self.answering.insert(peer) {
                    self.feed_kademlia();
                }
            }
            kademlia::Event::Found(peer, addresses) => self.on_found(peer, addresses),
            kademlia::Event::Searched => {}
        }
    }

    /// Whom the registry knows it looks after itself.
    fn on_found(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let is_known = |known: &PeerId| *known == peer;
        let mut known = self.public.iter().chain(&self.wanted).map(|contact| &contact.peer);
        if known.any(is_known) || self.swarm.is_connected(&peer) {
            return;
        }
        let me = *self.swarm.local_peer_id();
        if self.dialer.found(peer, addresses, &me, Instant::now()) {
            self.metrics.peers_found.inc();
            tracing::debug!(%peer, "Kademlia has found a peer that the registry does not know");
        }
    }
}
