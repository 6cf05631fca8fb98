//! Whom to dial, and when: exponential pauses with jitter for each peer, for ever, bounded in number at once.
//!
//! Pure bookkeeping; the driver does the dialling.

mod attempt;
mod due;

use super::addresses::{Stage, Way, bounded};
use crate::peer::{
    bootstrap::peer_of,
    defaults::{
        COURTESY, FOUND_MAX, FOUND_TRIES_MAX, REFUSED_PAUSE, RELAY_LOOK_EVERY, REMEMBERED_AFTER, REMEMBERED_TRIES_MAX,
        STEADY_AFTER,
    },
    state::Known,
    transport::{Answers, Proxy},
};
use attempt::{Attempt, pauses};
use libp2p::{Multiaddr, PeerId, swarm::ConnectionId};
use otela_proto::id::Epoch;
use std::collections::{BTreeMap, HashMap, HashSet};
use tokio::{sync::oneshot, time::Instant};

/// Told once whether a dial that somebody waits for has led to a connection.
pub(super) type Waiter = oneshot::Sender<bool>;

/// Where a peer of the registry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::peer) struct Contact {
    pub(in crate::peer) peer: PeerId,
    /// Of its present session: a new one means that it is back.
    pub(in crate::peer) epoch: Epoch,
    pub(in crate::peer) addresses: Vec<Multiaddr>,
    /// Whether others are reached through it.
    pub(in crate::peer) is_relay: bool,
}

/// What is dialled: a known peer, or whoever is at a bootstrap address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Target {
    /// A peer from the registry.
    Peer(PeerId),
    /// A configured bootstrap address, by its number.
    Bootstrap(usize),
    /// One that a list of bootstraps names, by a number of its own.
    Listed(usize),
    /// A peer of an earlier run.
    Remembered(PeerId),
    /// A peer that Kademlia has found.
    Found(PeerId),
}

/// A dial that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) target: Target,
    pub(super) peer: Option<PeerId>,
    pub(super) addresses: Vec<Multiaddr>,
}

/// What a failed dial means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// Nothing is left to try of it now; whom it was for, if that is known.
    All(Option<PeerId>),
    /// There are further addresses.
    NotAll,
    /// It is not wanted any more.
    NotWanted,
}

/// All dials that are wanted.
#[derive(Debug, Default)]
pub(super) struct Dialer {
    attempts: BTreeMap<Target, Attempt>,
    /// The configured bootstraps, lists among them.
    sources: usize,
    /// Which list each of [`Target::Listed`] is from, and the last number that was given.
    listed: (BTreeMap<usize, usize>, usize),
    dials: HashMap<ConnectionId, Target>,
    /// Whom a connection stands to.
    connected: HashSet<PeerId>,
    /// A further way to most addresses.
    proxy: Option<Proxy>,
    /// Where a handshake is under way.
    answers: Answers,
    /// Who does not want us, or whom we do not want, and until when that is taken for granted.
    refused: HashMap<PeerId, Instant>,
}

impl Dialer {
    /// A dialer of so many configured bootstraps, which are wanted for ever: those that are addresses, with their
    /// numbers. Of the others [`Self::list`] will tell.
    pub(super) fn new(sources: usize, bootstraps: impl IntoIterator<Item = (usize, Multiaddr)>, now: Instant) -> Self {
        let mut dialer = Self { sources, ..Self::default() };
        for (n, address) in bootstraps {
            dialer.attempts.insert(Target::Bootstrap(n), Attempt::at_bootstrap(vec![address], now));
        }
        dialer
    }

    /// These are the addresses on a list now. Each peer is tried at all of its addresses together; what stays on the
    /// list keeps its pauses.
    pub(super) fn list(&mut self, source: usize, addresses: Vec<Multiaddr>, me: &PeerId, now: Instant) {
        let mut wanted: BTreeMap<_, Vec<Multiaddr>> = BTreeMap::new();
        for (n, address) in addresses.into_iter().enumerate() {
            let peer = peer_of(&address);
            // Who is at an address without an id, only a dial tells.
            wanted.entry((peer, if peer.is_some() { 0 } else { n })).or_default().push(address);
        }
        let mut wanted: Vec<_> = wanted.into_iter().filter(|((peer, _), _)| peer.as_ref() != Some(me)).collect();
        wanted.iter_mut().for_each(|(_, addresses)| *addresses = bounded(std::mem::take(addresses), me));
        let old: Vec<_> = self.listed.0.iter().filter(|(_, of)| **of == source).map(|(n, _)| *n).collect();
        for n in old {
            let stays = self.attempts.get(&Target::Listed(n)).and_then(|attempt| {
                wanted
                    .iter()
                    .position(|((peer, _), addresses)| *peer == attempt.wanted && *addresses == attempt.addresses)
            });
            if let Some(at) = stays {
                wanted.swap_remove(at);
            } else {
                self.attempts.remove(&Target::Listed(n));
                self.listed.0.remove(&n);
            }
        }
        for ((peer, _), addresses) in wanted {
            self.listed.1 += 1;
            self.listed.0.insert(self.listed.1, source);
            let connected = peer.filter(|peer| self.connected.contains(peer)).map(|_| now);
            let attempt = Attempt { connected, ..Attempt::at_bootstrap(addresses, now) };
            self.attempts.insert(Target::Listed(self.listed.1), attempt);
        }
        self.dials.retain(|_, target| self.attempts.contains_key(target));
    }

    /// Whether there are bootstraps, and none of them is connected.
    pub(super) fn is_deserted(&self) -> bool {
        self.sources > 0 && self.bootstraps_connected() == 0
    }

    fn bootstraps_connected(&self) -> usize {
        let bootstraps = self.attempts.range(Target::Bootstrap(0)..).take_while(|(target, _)| target.is_bootstrap());
        bootstraps.filter(|(_, attempt)| attempt.connected.is_some()).count()
    }

    /// Kademlia has found `peer` here: it is tried a few times, and from then on the registry's matter. Returns whether
    /// it is tried.
    pub(super) fn found(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, me: &PeerId, now: Instant) -> bool {
        let found = self.attempts.keys().filter(|target| matches!(target, Target::Found(_))).count();
        let is_new = !self.attempts.contains_key(&Target::Found(peer)) && !self.connected.contains(&peer);
        let addresses = bounded(addresses, me);
        if peer == *me || addresses.is_empty() || !is_new || found >= FOUND_MAX {
            return false;
        }
        self.attempts.insert(Target::Found(peer), Attempt::new(addresses, Some(peer), now));
        true
    }

    /// Which configured bootstrap a target is or comes from, and its first address.
    pub(super) fn bootstrap(&self, target: Target) -> Option<(usize, &Multiaddr)> {
        let source = match target {
            Target::Bootstrap(n) => n,
            Target::Listed(n) => *self.listed.0.get(&n)?,
            _ => return None,
        };
        Some((source, self.attempts.get(&target)?.addresses.first()?))
    }

    /// The configured bootstraps that have led to `peer`, or are meant to.
    pub(super) fn bootstraps_of(&self, peer: &PeerId) -> Vec<usize> {
        let is_there = |a: &Attempt| a.peer == Some(*peer) || a.wanted == Some(*peer);
        let bootstraps = self.attempts.range(Target::Bootstrap(0)..).take_while(|(target, _)| target.is_bootstrap());
        let there = bootstraps.filter(|(_, attempt)| is_there(attempt));
        there.filter_map(|(target, _)| self.bootstrap(*target).map(|(source, _)| source)).collect()
    }

    /// With a proxy to try after all else, and word of who has answered.
    pub(super) fn with(self, proxy: Option<Proxy>, answers: Answers) -> Self {
        Self { proxy, answers, ..self }
    }

    /// Peers of an earlier run are further ways into the mesh: after the configured ones, few at a time, and only as
    /// long as few peers are connected. Whoever has been connected, or does not answer, is the registry's matter.
    pub(super) fn remember(&mut self, peers: Vec<Known>, now: Instant) {
        let head_start = self.sources > 0;
        let at = if head_start { now + REMEMBERED_AFTER } else { now };
        for Known { peer, addresses } in peers {
            let attempt = Attempt::new(addresses, Some(peer), at);
            self.attempts.insert(Target::Remembered(peer), attempt);
        }
    }

    /// Whether this dial is of a peer that nobody expects to be there.
    pub(super) fn is_quiet(&self, id: ConnectionId) -> bool {
        self.dials.get(&id).is_some_and(|target| target.is_quiet())
    }

    /// Whether this dial was taken up here.
    pub(super) fn is_ours(&self, id: ConnectionId) -> bool {
        self.dials.contains_key(&id)
    }

    /// Replaces the set of wanted peers. Those that stay keep their pauses; `is_connected` tells the state of new
    /// ones. Two peers often begin to want each other at the same moment: of new ones, those with an id below `me` are
    /// given the time to call first, so that there is one connection and not two.
    pub(super) fn want(
        &mut self,
        wanted: Vec<Contact>,
        is_connected: impl Fn(&PeerId) -> bool,
        me: &PeerId,
        now: Instant,
    ) {
        let is_peer = |target: &Target| matches!(target, Target::Peer(_));
        let (mut kept, bootstraps): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.attempts).into_iter().partition(|(target, _)| is_peer(target));
        self.attempts = bootstraps;
        for Contact { peer, epoch, addresses, is_relay } in wanted {
            let addresses = bounded(addresses, me);
            let target = Target::Peer(peer);
            let fresh = |at| Attempt {
                epoch,
                meeting: is_relay,
                pauses: pauses(is_relay),
                ..Attempt::new(addresses.clone(), Some(peer), at)
            };
            let mut attempt = match kept.remove(&target) {
                Some(old) if old.addresses == addresses && old.epoch == epoch => old,
                // New addresses are worth a try at once, and so is a peer that is back, perhaps with another binary.
                Some(old) if old.epoch != epoch => {
                    self.refused.remove(&peer);
                    Attempt { waiters: old.waiters, ..fresh(now) }
                }
                Some(old) => Attempt { waiters: old.waiters, ..fresh(now) },
                None => fresh(if peer < *me { now + COURTESY } else { now }),
            };
            attempt.connected = if is_connected(&peer) { attempt.connected.or(Some(now)) } else { None };
            self.attempts.insert(target, attempt);
        }
        // Somebody waits for it, wanted or not.
        self.attempts.extend(kept.into_iter().filter(|(_, attempt)| attempt.is_awaited()));
        self.dials.retain(|_, target| self.attempts.contains_key(target));
    }

    /// Makes a dial of `peer` due now, wanted or not, and ahead of others if somebody waits; `waiter` is told how it
    /// ends.
    pub(super) fn hurry(&mut self, peer: PeerId, addresses: Vec<Multiaddr>, waiter: Option<Waiter>, now: Instant) {
        let attempt =
            self.attempts.entry(Target::Peer(peer)).or_insert_with(|| Attempt::new(addresses, Some(peer), now));
        attempt.next = now;
        attempt.waiters.extend(waiter);
    }

    /// What kept others from us may be over: whoever is not connected is dialled as if for the first time.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        self.refused.clear();
        for attempt in self.attempts.values_mut().filter(|a| a.connected.is_none() && a.under_way == 0) {
            attempt.pauses = pauses(attempt.meeting);
            attempt.failures = 0;
            attempt.next = now;
        }
    }

    /// Whoever does not want us, or whom we do not want, will think so for a while, whichever way we come: it is not
    /// dialled before that, whoever waits for it.
    pub(super) fn put_off(&mut self, peer: &PeerId, now: Instant) {
        self.refused.retain(|_, until| *until > now);
        self.refused.insert(*peer, now + REFUSED_PAUSE);
        for attempt in self.attempts.values_mut().filter(|a| a.is_of(peer)) {
            attempt.rest.clear();
            if attempt.under_way == 0 {
                attempt.tell(false);
            }
        }
    }

    /// Circuits that cannot be dialled yet are put back for a moment; `all` if there is nothing else to dial now.
    pub(super) fn put_back(&mut self, target: Target, circuits: Vec<Multiaddr>, all: bool, now: Instant) {
        let Some(attempt) = self.attempts.get_mut(&target) else { return };
        attempt.under_way = attempt.under_way.saturating_sub(usize::from(all));
        attempt.rest.push_front(Stage::of_circuits(circuits));
        attempt.rest_at = now + RELAY_LOOK_EVERY;
    }

    /// A dial has begun.
    pub(super) fn started(&mut self, target: Target, id: ConnectionId) {
        if self.attempts.contains_key(&target) {
            self.dials.insert(id, target);
        }
    }

    /// A dial could not even begin. Returns whether that was all there was to try now.
    pub(super) fn refused(&mut self, target: Target, now: Instant) -> bool {
        if let Some(attempt) = self.attempts.get_mut(&target)
            && attempt.is_decided(now)
        {
            attempt.tell(false);
            attempt.pause(now);
            let given_up = match target {
                // As long as nobody else is there, anybody is worth another try.
                Target::Remembered(_) => attempt.failures >= REMEMBERED_TRIES_MAX && !self.connected.is_empty(),
                Target::Found(_) => attempt.failures >= FOUND_TRIES_MAX,
                _ => false,
            };
            if given_up {
                self.attempts.remove(&target);
            }
            return true;
        }
        false
    }

    /// A dial has reached nobody.
    pub(super) fn failed(&mut self, id: ConnectionId, now: Instant) -> Failed {
        let Some(target) = self.dials.remove(&id) else { return Failed::NotWanted };
        self.refused(target, now);
        match self.attempts.get(&target) {
            Some(attempt) if attempt.under_way > 0 || !attempt.rest.is_empty() => Failed::NotAll,
            Some(attempt) => Failed::All(attempt.peer),
            None => Failed::NotWanted,
        }
    }

    /// A connection to `peer` stands, and this is the way it has come about.
    pub(super) fn connected(&mut self, peer: PeerId, id: ConnectionId, way: Way, now: Instant) {
        if let Some(target) = self.dials.remove(&id)
            && let Some(attempt) = self.attempts.get_mut(&target)
        {
            attempt.peer = Some(peer);
            attempt.under_way = attempt.under_way.saturating_sub(1);
            attempt.dialled = true;
        }
        self.connected.insert(peer);
        self.attempts.remove(&Target::Remembered(peer));
        self.attempts.remove(&Target::Found(peer));
        for attempt in self.attempts.values_mut().filter(|a| a.peer == Some(peer)) {
            attempt.connected.get_or_insert(now);
            attempt.rest.clear();
            attempt.last = way;
            attempt.tell(true);
        }
    }

    /// The last connection to `peer` is gone. It is dialled again at once, unless it did not last: then the pauses
    /// go on growing, so that a peer which hangs up on us is not hammered. One that the peer itself had opened says
    /// nothing of our own dials: it may have looked for somebody else at our address.
    pub(super) fn lost(&mut self, peer: &PeerId, now: Instant) {
        self.connected.remove(peer);
        for attempt in self.attempts.values_mut().filter(|a| a.peer == Some(*peer)) {
            let since = attempt.connected.take();
            if !std::mem::take(&mut attempt.dialled) {
                continue;
            }
            if since.is_some_and(|since| now - since >= STEADY_AFTER) {
                attempt.pauses = pauses(attempt.meeting);
                attempt.failures = 0;
                attempt.next = now;
            } else {
                attempt.pause(now);
            }
        }
    }
}

impl Target {
    /// Whether nobody expects it to be there.
    fn is_quiet(self) -> bool {
        matches!(self, Self::Remembered(_) | Self::Found(_))
    }

    fn is_bootstrap(self) -> bool {
        matches!(self, Self::Bootstrap(_) | Self::Listed(_))
    }
}

#[cfg(test)]
mod tests;
