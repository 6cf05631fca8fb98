//! One target and its dials: when the next is due, which addresses it takes, and who waits for it.

use super::{Waiter, peer_of, staged};
use crate::peer::defaults::{DIRECT_FIRST_FOR, REDIAL_MAX, REDIAL_MEETING_MAX, REDIAL_MIN};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use libp2p::{Multiaddr, PeerId};
use otela_proto::id::Epoch;
use tokio::time::Instant;

/// The dials of one target.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) addresses: Vec<Multiaddr>,
    pub(super) epoch: Epoch,
    /// Who has to be there; `None` where only an address was configured, since whoever is there will do.
    pub(super) wanted: Option<PeerId>,
    /// Who was there last.
    pub(super) peer: Option<PeerId>,
    /// Whether others are reached through it, so that it must not be missed for long.
    pub(super) meeting: bool,
    pub(super) pauses: ExponentialBackoff,
    /// Dials in a row that reached nobody.
    pub(super) failures: u32,
    pub(super) next: Instant,
    /// Dials taken up, and not yet decided.
    pub(super) under_way: usize,
    /// What is dialled in the second place, and when.
    pub(super) rest: Option<(Instant, Vec<Multiaddr>)>,
    /// Since when a connection stands.
    pub(super) connected: Option<Instant>,
    /// Whether that came of our own dial.
    pub(super) dialled: bool,
    /// Whether it was last reached through a relay: then there is no use in trying without one first.
    pub(super) relayed: bool,
    /// Who waits for it; such dials come first.
    pub(super) waiters: Vec<Waiter>,
}

impl Attempt {
    pub(super) fn new(addresses: Vec<Multiaddr>, peer: Option<PeerId>, now: Instant) -> Self {
        Self {
            addresses,
            epoch: Epoch(0),
            wanted: peer,
            peer,
            meeting: false,
            pauses: pauses(false),
            failures: 0,
            next: now,
            under_way: 0,
            rest: None,
            connected: None,
            dialled: false,
            relayed: false,
            waiters: Vec::new(),
        }
    }

    /// The dials of a bootstrap, at addresses of one peer.
    pub(super) fn at_bootstrap(addresses: Vec<Multiaddr>, now: Instant) -> Self {
        let peer = addresses.first().and_then(peer_of);
        Self { meeting: true, pauses: pauses(true), ..Self::new(addresses, peer, now) }
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_closed())
    }

    /// When it is to be dialled, or dialled in the second place; `None` if it is not.
    pub(super) fn due_at(&self) -> Option<Instant> {
        if self.connected.is_some() || self.addresses.is_empty() {
            return None;
        }
        match &self.rest {
            Some((at, _)) => Some(*at),
            None => (self.under_way == 0).then_some(self.next),
        }
    }

    /// The addresses to dial now.
    pub(super) fn take_up(&mut self, now: Instant) -> Vec<Multiaddr> {
        self.under_way += 1;
        if let Some((_, rest)) = self.rest.take() {
            return rest;
        }
        if self.relayed {
            return self.addresses.clone();
        }
        let (first, rest) = staged(&self.addresses);
        self.rest = (!rest.is_empty()).then(|| (now + DIRECT_FIRST_FOR, rest));
        first
    }

    /// A dial has reached nobody. Returns whether that was the last one; if not, the second place has its turn.
    pub(super) fn is_decided(&mut self, now: Instant) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some((at, _)) = &mut self.rest {
            *at = now;
        }
        self.under_way == 0 && self.rest.is_none() && self.connected.is_none()
    }

    pub(super) fn tell(&mut self, connected: bool) {
        for waiter in self.waiters.drain(..) {
            // One that has given up does not mind.
            let _ = waiter.send(connected);
        }
    }

    pub(super) fn pause(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.next = now + self.pauses.next().unwrap_or(REDIAL_MAX);
    }
}

pub(super) fn pauses(meeting: bool) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(REDIAL_MIN)
        .with_max_delay(if meeting { REDIAL_MEETING_MAX } else { REDIAL_MAX })
        .without_max_times()
        .with_jitter()
        .build()
}
