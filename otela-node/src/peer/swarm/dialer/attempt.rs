//! One target and its dials: when the next is due, which addresses it takes, and who waits for it.

use super::{Waiter, peer_of};
use crate::peer::{
    defaults::{HANDSHAKE_LOOK_EVERY, HANDSHAKE_PATIENCE, REDIAL_MAX, REDIAL_MEETING_MAX, REDIAL_MIN},
    swarm::addresses::{Stage, Way, staged},
    transport::{Answers, Proxy},
};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use libp2p::{Multiaddr, PeerId};
use otela_proto::id::Epoch;
use std::collections::VecDeque;
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
    /// What is dialled in the second place and after that...
    pub(super) rest: VecDeque<Stage>,
    /// ...and when the first of it is.
    pub(super) rest_at: Instant,
    /// What was dialled last, and when.
    pub(super) latest: (Vec<Multiaddr>, Instant),
    /// Since when a connection stands.
    pub(super) connected: Option<Instant>,
    /// Whether that came of our own dial.
    pub(super) dialled: bool,
    /// How it was last reached: if not at its own addresses, there is no use in trying these alone first.
    pub(super) last: Way,
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
            rest: VecDeque::new(),
            rest_at: now,
            latest: (Vec::new(), now),
            connected: None,
            dialled: false,
            last: Way::Own,
            waiters: Vec::new(),
        }
    }

    /// The dials of a bootstrap, at addresses of one peer.
    pub(super) fn at_bootstrap(addresses: Vec<Multiaddr>, now: Instant) -> Self {
        let peer = addresses.first().and_then(peer_of);
        Self { meeting: true, pauses: pauses(true), ..Self::new(addresses, peer, now) }
    }

    /// Whether it is a dial of `peer`, as far as is known.
    pub(super) fn is_of(&self, peer: &PeerId) -> bool {
        self.peer == Some(*peer) || self.wanted == Some(*peer)
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_closed())
    }

    /// When it is to be dialled, or dialled in the next place; `None` if it is not.
    pub(super) fn due_at(&self) -> Option<Instant> {
        if self.connected.is_some() || self.addresses.is_empty() {
            return None;
        }
        if self.rest.is_empty() { (self.under_way == 0).then_some(self.next) } else { Some(self.rest_at) }
    }

    /// The addresses to dial now.
    pub(super) fn take_up(&mut self, proxy: Option<&Proxy>, now: Instant) -> Vec<Multiaddr> {
        self.under_way += 1;
        if self.rest.is_empty() {
            self.rest = staged(&self.addresses, proxy, self.last);
        }
        let Some(stage) = self.rest.pop_front() else { return Vec::new() };
        if let Some(next) = self.rest.front() {
            self.rest_at = now + next.after(&stage);
        }
        self.latest = (stage.addresses.clone(), now);
        stage.addresses
    }

    /// Where somebody has answered, the next place waits for the end of the handshake; not for ever, as a gateway may
    /// answer for everybody.
    pub(super) fn have_patience(&mut self, answers: &Answers, now: Instant) {
        let (addresses, since) = &self.latest;
        let is_pending = self.under_way > 0 && self.connected.is_none() && !self.rest.is_empty() && self.rest_at <= now;
        if is_pending && now < *since + HANDSHAKE_PATIENCE && addresses.iter().any(|address| answers.is_there(address))
        {
            self.rest_at = (now + HANDSHAKE_LOOK_EVERY).min(*since + HANDSHAKE_PATIENCE);
        }
    }

    /// A dial has reached nobody. Returns whether that was the last one; if not, the next place has its turn.
    pub(super) fn is_decided(&mut self, now: Instant) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.rest_at = now;
        }
        self.under_way == 0 && self.rest.is_empty() && self.connected.is_none()
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
