//! Whom to dial, and when: exponential pauses with jitter for each peer, for ever, bounded in number at once.
//!
//! Pure bookkeeping; the driver does the dialling.

use super::addresses::{bounded, staged};
use crate::peer::{
    defaults::{
        COURTESY, DIALS_MAX, DIALS_RESERVED, DIRECT_FIRST_FOR, REDIAL_MAX, REDIAL_MEETING_MAX, REDIAL_MIN,
        REMEMBERED_AFTER, REMEMBERED_DIALS_MAX, REMEMBERED_TRIES_MAX, REMEMBERED_UNTIL, STEADY_AFTER,
    },
    state::Known,
};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol, swarm::ConnectionId};
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
    /// The n-th configured bootstrap address.
    Bootstrap(usize),
    /// A peer of an earlier run.
    Remembered(PeerId),
}

#[derive(Debug)]
struct Attempt {
    addresses: Vec<Multiaddr>,
    epoch: Epoch,
    /// Who has to be there; `None` where only an address was configured, since whoever is there will do.
    wanted: Option<PeerId>,
    /// Who was there last.
    peer: Option<PeerId>,
    /// Whether others are reached through it, so that it must not be missed for long.
    meeting: bool,
    pauses: ExponentialBackoff,
    /// Dials in a row that reached nobody.
    failures: u32,
    next: Instant,
    /// Dials taken up, and not yet decided.
    under_way: usize,
    /// What is dialled in the second place, and when.
    rest: Option<(Instant, Vec<Multiaddr>)>,
    /// Since when a connection stands.
    connected: Option<Instant>,
    /// Whether that came of our own dial.
    dialled: bool,
    /// Whether it was last reached through a relay: then there is no use in trying without one first.
    relayed: bool,
    /// Who waits for it; such dials come first.
    waiters: Vec<Waiter>,
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
    dials: HashMap<ConnectionId, Target>,
    /// Whom a connection stands to.
    connected: HashSet<PeerId>,
}

impl Dialer {
    /// Bootstraps are wanted for ever.
    pub(super) fn new(bootstrap: Vec<Multiaddr>, now: Instant) -> Self {
        let mut dialer = Self::default();
        for (n, address) in bootstrap.into_iter().enumerate() {
            let peer = address.iter().find_map(|part| match part {
                Protocol::P2p(peer) => Some(peer),
                _ => None,
            });
            let attempt = Attempt { meeting: true, pauses: pauses(true), ..Attempt::new(vec![address], peer, now) };
            dialer.attempts.insert(Target::Bootstrap(n), attempt);
        }
        dialer
    }

    /// Peers of an earlier run are further ways into the mesh: after the configured ones, few at a time, and only as
    /// long as few peers are connected. Whoever has been connected, or does not answer, is the registry's matter.
    pub(super) fn remember(&mut self, peers: Vec<Known>, now: Instant) {
        let head_start = self.attempts.keys().any(|target| matches!(target, Target::Bootstrap(_)));
        let at = if head_start { now + REMEMBERED_AFTER } else { now };
        for Known { peer, addresses } in peers {
            let attempt = Attempt::new(addresses, Some(peer), at);
            self.attempts.insert(Target::Remembered(peer), attempt);
        }
    }

    /// Whether this dial is of a peer of an earlier run, which nobody expects to be there.
    pub(super) fn is_of_remembered(&self, id: ConnectionId) -> bool {
        matches!(self.dials.get(&id), Some(Target::Remembered(_)))
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
                // New addresses are worth a try at once, and so is a peer that is back.
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
        for attempt in self.attempts.values_mut().filter(|a| a.connected.is_none() && a.under_way == 0) {
            attempt.pauses = pauses(attempt.meeting);
            attempt.failures = 0;
            attempt.next = now;
        }
    }

    /// Takes up the dials that are due, as many as may be under way. Each is to be [`Self::started`] or
    /// [`Self::refused`].
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let room = DIALS_MAX.saturating_sub(self.under_way());
        let room_unless_awaited = room.saturating_sub(DIALS_RESERVED);
        let mut room_for_remembered = self.room_for_remembered();
        let mut due: Vec<_> =
            self.attempts.iter_mut().filter(|(_, a)| a.due_at().is_some_and(|at| at <= now)).collect();
        // Then those that never failed: a mesh full of ghosts must not keep the living waiting.
        due.sort_by_key(|(target, a)| (!a.is_awaited(), target.is_remembered(), a.failures, a.next));
        due.retain(|(target, _)| {
            let fits = !target.is_remembered() || room_for_remembered > 0;
            room_for_remembered = room_for_remembered.saturating_sub(usize::from(target.is_remembered()));
            fits
        });
        let fits =
            |(n, (_, a)): &(usize, (_, &mut Attempt))| *n < if a.is_awaited() { room } else { room_unless_awaited };
        let due = due.into_iter().enumerate().filter(fits);
        due.map(|(_, (target, attempt))| Due { target: *target, peer: attempt.wanted, addresses: attempt.take_up(now) })
            .collect()
    }

    /// When the next dial is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let remembered_too = self.room_for_remembered() > 0;
        let under_way = self.under_way();
        let others_too = under_way < DIALS_MAX - DIALS_RESERVED;
        let waiting = self
            .attempts
            .iter()
            .filter(|(target, a)| (others_too || a.is_awaited()) && (remembered_too || !target.is_remembered()));
        (under_way < DIALS_MAX).then(|| waiting.filter_map(|(_, a)| a.due_at()).min()).flatten()
    }

    /// How many more peers of an earlier run may be dialled now.
    fn room_for_remembered(&self) -> usize {
        if self.connected.len() >= REMEMBERED_UNTIL {
            return 0;
        }
        let under_way = self.attempts.iter().filter(|(target, a)| target.is_remembered() && a.under_way > 0).count();
        REMEMBERED_DIALS_MAX.saturating_sub(under_way)
    }

    fn under_way(&self) -> usize {
        self.attempts.values().map(|attempt| attempt.under_way).sum()
    }

    /// A dial has begun.
    pub(super) fn started(&mut self, target: Target, id: ConnectionId) {
        if self.attempts.contains_key(&target) {
            self.dials.insert(id, target);
        }
    }

    /// A dial could not even begin.
    pub(super) fn refused(&mut self, target: Target, now: Instant) {
        if let Some(attempt) = self.attempts.get_mut(&target)
            && attempt.is_decided(now)
        {
            attempt.tell(false);
            attempt.pause(now);
            // As long as nobody else is there, anybody is worth another try.
            if target.is_remembered() && attempt.failures >= REMEMBERED_TRIES_MAX && !self.connected.is_empty() {
                self.attempts.remove(&target);
            }
        }
    }

    /// A dial has reached nobody.
    pub(super) fn failed(&mut self, id: ConnectionId, now: Instant) -> Failed {
        let Some(target) = self.dials.remove(&id) else { return Failed::NotWanted };
        self.refused(target, now);
        match self.attempts.get(&target) {
            Some(attempt) if attempt.under_way > 0 || attempt.rest.is_some() => Failed::NotAll,
            Some(attempt) => Failed::All(attempt.peer),
            None => Failed::NotWanted,
        }
    }

    /// A connection to `peer` stands, perhaps through a relay.
    pub(super) fn connected(&mut self, peer: PeerId, id: ConnectionId, relayed: bool, now: Instant) {
        if let Some(target) = self.dials.remove(&id)
            && let Some(attempt) = self.attempts.get_mut(&target)
        {
            attempt.peer = Some(peer);
            attempt.under_way = attempt.under_way.saturating_sub(1);
            attempt.dialled = true;
        }
        self.connected.insert(peer);
        self.attempts.remove(&Target::Remembered(peer));
        for attempt in self.attempts.values_mut().filter(|a| a.peer == Some(peer)) {
            attempt.connected.get_or_insert(now);
            attempt.rest = None;
            attempt.relayed = relayed;
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
    fn is_remembered(self) -> bool {
        matches!(self, Self::Remembered(_))
    }
}

impl Attempt {
    fn new(addresses: Vec<Multiaddr>, peer: Option<PeerId>, now: Instant) -> Self {
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

    fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_closed())
    }

    /// When it is to be dialled, or dialled in the second place; `None` if it is not.
    fn due_at(&self) -> Option<Instant> {
        if self.connected.is_some() || self.addresses.is_empty() {
            return None;
        }
        match &self.rest {
            Some((at, _)) => Some(*at),
            None => (self.under_way == 0).then_some(self.next),
        }
    }

    /// The addresses to dial now.
    fn take_up(&mut self, now: Instant) -> Vec<Multiaddr> {
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
    fn is_decided(&mut self, now: Instant) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        if let Some((at, _)) = &mut self.rest {
            *at = now;
        }
        self.under_way == 0 && self.rest.is_none() && self.connected.is_none()
    }

    fn tell(&mut self, connected: bool) {
        for waiter in self.waiters.drain(..) {
            // One that has given up does not mind.
            let _ = waiter.send(connected);
        }
    }

    fn pause(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.next = now + self.pauses.next().unwrap_or(REDIAL_MAX);
    }
}

fn pauses(meeting: bool) -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(REDIAL_MIN)
        .with_max_delay(if meeting { REDIAL_MEETING_MAX } else { REDIAL_MAX })
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()
    }

    #[test]
    fn pauses_grow_and_end_with_a_connection() {
        let now = Instant::now();
        let mut dialer = Dialer::new(vec![address(1)], now);
        let (peer, mut at, mut longest) = (PeerId::random(), now, std::time::Duration::ZERO);
        for n in 0..30 {
            let due = dialer.take_due(at);
            assert_eq!(due.len(), 1);
            let id = ConnectionId::new_unchecked(n);
            dialer.started(due[0].target, id);
            assert!(dialer.take_due(at).is_empty(), "one dial at a time");
            dialer.failed(id, at);
            assert!(dialer.take_due(at).is_empty(), "not again at once");
            let next = dialer.next().unwrap();
            longest = longest.max(next - at);
            at = next;
        }
        assert!(longest >= REDIAL_MEETING_MAX && longest <= REDIAL_MEETING_MAX * 2, "a bootstrap: {longest:?}");
        let id = ConnectionId::new_unchecked(99);
        dialer.take_due(at);
        dialer.started(Target::Bootstrap(0), id);
        dialer.connected(peer, id, false, at);
        assert_eq!(dialer.next(), None);
        dialer.lost(&peer, at);
        assert!(dialer.take_due(at).is_empty(), "one that hangs up at once is not hammered");
        let at = dialer.next().unwrap();
        assert_eq!(dialer.take_due(at)[0].peer, None, "whoever is at the address now will do");
        dialer.started(Target::Bootstrap(0), id);
        dialer.connected(peer, id, false, at);
        let at = at + STEADY_AFTER;
        dialer.lost(&peer, at);
        assert_eq!(dialer.take_due(at).len(), 1, "a lost bootstrap is dialled at once");
    }

    fn contact(peer: PeerId, n: u16) -> Contact {
        Contact { peer, epoch: Epoch(1), addresses: vec![address(n)], is_relay: false }
    }

    /// Nobody is given the time to call first.
    fn lowest() -> PeerId {
        PeerId::from_bytes(&[0, 0]).unwrap()
    }

    #[test]
    fn of_two_that_want_each_other_one_calls() {
        let now = Instant::now();
        let (a, b) = (PeerId::random(), PeerId::random());
        let (low, high) = (a.min(b), a.max(b));
        let wants = |me: &PeerId, other| {
            let mut dialer = Dialer::default();
            dialer.want(vec![contact(other, 1)], |_| false, me, now);
            (dialer.take_due(now).len(), dialer.take_due(now + COURTESY).len())
        };
        assert_eq!(wants(&low, high), (1, 0));
        assert_eq!(wants(&high, low), (0, 1), "later, if nobody has called");
    }

    #[test]
    fn own_addresses_come_before_those_at_relays_and_those_in_time() {
        let (now, peer) = (Instant::now(), PeerId::random());
        let relay: Multiaddr = format!("/ip4/10.0.0.9/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
        let quic: Multiaddr = "/ip4/10.0.0.1/udp/1/quic-v1".parse().unwrap();
        let all = vec![relay.clone(), quic.clone(), address(1)];
        let wants = || {
            let mut dialer = Dialer::default();
            dialer.want(vec![Contact { addresses: all.clone(), ..contact(peer, 1) }], |_| false, &lowest(), now);
            let first = dialer.take_due(now);
            assert_eq!(first[0].addresses, [address(1)]);
            dialer.started(first[0].target, ConnectionId::new_unchecked(1));
            dialer
        };
        let mut slow = wants();
        assert_eq!(slow.next(), Some(now + DIRECT_FIRST_FOR));
        let second = slow.take_due(now + DIRECT_FIRST_FOR);
        assert_eq!(second[0].addresses, [quic, relay], "both are under way now");
        slow.started(second[0].target, ConnectionId::new_unchecked(2));
        assert_eq!(slow.next(), None);
        slow.failed(ConnectionId::new_unchecked(1), now);
        assert_eq!(slow.next(), None, "one still is");
        slow.failed(ConnectionId::new_unchecked(2), now);
        assert!(slow.next().unwrap() > now, "a pause, then both again");
        let mut refused = wants();
        refused.failed(ConnectionId::new_unchecked(1), now);
        assert_eq!(refused.next(), Some(now), "nobody is there: no need to wait");
        let mut connected = wants();
        connected.connected(peer, ConnectionId::new_unchecked(1), false, now);
        assert_eq!(connected.next(), None, "the others are not needed");
    }

    #[test]
    fn p46_who_is_back_is_dialled_at_once() {
        let (now, peer) = (Instant::now(), PeerId::random());
        let mut dialer = Dialer::default();
        let want = |dialer: &mut Dialer, epoch| {
            dialer.want(vec![Contact { epoch: Epoch(epoch), ..contact(peer, 1) }], |_| false, &lowest(), now);
        };
        want(&mut dialer, 1);
        for n in 0..8 {
            let at = dialer.next().unwrap();
            let due = dialer.take_due(at);
            dialer.started(due[0].target, ConnectionId::new_unchecked(n));
            dialer.failed(ConnectionId::new_unchecked(n), at);
        }
        want(&mut dialer, 1);
        assert!(dialer.next().unwrap() > now, "it is still gone");
        want(&mut dialer, 2);
        assert_eq!(dialer.next(), Some(now), "a new session");
    }

    #[test]
    fn who_calls_us_and_hangs_up_does_not_keep_us_from_calling() {
        let now = Instant::now();
        let (peer, mut dialer) = (PeerId::random(), Dialer::default());
        dialer.want(vec![contact(peer, 1)], |_| false, &lowest(), now);
        for n in 0..20 {
            dialer.connected(peer, ConnectionId::new_unchecked(n), false, now);
            dialer.lost(&peer, now);
        }
        assert_eq!(dialer.take_due(now).len(), 1, "at once, as if nothing had been");
    }

    #[test]
    fn p42_dead_peers_do_not_starve_the_living() {
        let now = Instant::now();
        let mut dialer = Dialer::default();
        let wanted = (0..500).map(|n| contact(PeerId::random(), n)).collect();
        dialer.want(wanted, |_| false, &lowest(), now);
        let due = dialer.take_due(now);
        assert_eq!(due.len(), DIALS_MAX - DIALS_RESERVED);
        for (n, due) in due.iter().enumerate() {
            dialer.started(due.target, ConnectionId::new_unchecked(n));
        }
        assert_eq!(dialer.next(), None, "no more than that at once");
        // But for those that somebody waits for.
        let waiters = [0; DIALS_RESERVED + 1].map(|_| {
            let (waiter, told) = oneshot::channel();
            dialer.hurry(PeerId::random(), vec![address(2)], Some(waiter), now);
            told
        });
        assert_eq!(dialer.next(), Some(now));
        let awaited = dialer.take_due(now);
        assert_eq!(awaited.len(), DIALS_RESERVED);
        assert_eq!(dialer.next(), None, "these too are bounded");
        for (n, due) in awaited.iter().enumerate() {
            dialer.started(due.target, ConnectionId::new_unchecked(1_000 + n));
            dialer.failed(ConnectionId::new_unchecked(1_000 + n), now);
        }
        let last = dialer.take_due(now);
        assert_eq!(last.len(), 1, "the last of them has its turn");
        dialer.refused(last[0].target, now);
        drop(waiters);
        dialer.failed(ConnectionId::new_unchecked(0), now);
        let later = now + REDIAL_MAX * 3;
        let next = dialer.take_due(later);
        assert_eq!(next.len(), 1);
        assert!(due.iter().all(|earlier| earlier.target != next[0].target), "fresh ones before failed ones");
        let (peer, (waiter, mut told)) = (PeerId::random(), oneshot::channel());
        dialer.hurry(peer, vec![address(1)], Some(waiter), later);
        dialer.failed(ConnectionId::new_unchecked(1), later);
        assert_eq!(dialer.take_due(later)[0].peer, Some(peer), "one that somebody waits for before all");
        dialer.started(Target::Peer(peer), ConnectionId::new_unchecked(99));
        dialer.failed(ConnectionId::new_unchecked(99), later);
        assert_eq!(told.try_recv(), Ok(false));
    }

    #[test]
    fn remembered_peers_are_tried_gently() {
        let start = Instant::now();
        let known = |_| Known { peer: PeerId::random(), addresses: vec![address(1)] };
        let mut dialer = Dialer::new(vec![address(9)], start);
        dialer.remember((0..20).map(known).collect(), start);
        let due = dialer.take_due(start);
        assert_eq!(
            due.iter().map(|due| due.target).collect::<Vec<_>>(),
            [Target::Bootstrap(0)],
            "configured ones first"
        );
        let now = start + REMEMBERED_AFTER;
        assert_eq!(dialer.next(), Some(now));
        let due = dialer.take_due(now);
        assert_eq!(due.len(), REMEMBERED_DIALS_MAX);
        assert_eq!(dialer.next(), None, "and no more at once");
        let ids: Vec<_> = (0..REMEMBERED_DIALS_MAX).map(ConnectionId::new_unchecked).collect();
        for (due, id) in due.iter().zip(&ids) {
            dialer.started(due.target, *id);
            assert!(dialer.is_of_remembered(*id));
        }
        dialer.failed(ids[0], now);
        assert_eq!(dialer.next(), Some(now), "one that failed makes room");
        for n in 0..REMEMBERED_UNTIL {
            dialer.connected(PeerId::random(), ConnectionId::new_unchecked(100 + n), false, now);
        }
        assert_eq!((dialer.take_due(now), dialer.next()), (vec![], None), "the mesh has been found");
        let found = due[1].peer.unwrap();
        dialer.connected(found, ids[1], false, now);
        dialer.lost(&found, now);
        assert!(!dialer.attempts.contains_key(&Target::Remembered(found)), "the registry's matter from now on");
    }

    #[test]
    fn remembered_peers_that_are_gone_are_given_up_once_anybody_is_there() {
        let mut at = Instant::now();
        let mut dialer = Dialer::default();
        dialer.remember(vec![Known { peer: PeerId::random(), addresses: vec![address(1)] }], at);
        let mut fail = |dialer: &mut Dialer, n: u32| {
            at = dialer.next().expect("it is tried again");
            let id = ConnectionId::new_unchecked(n as usize);
            let due = dialer.take_due(at);
            dialer.started(due[0].target, id);
            dialer.failed(id, at);
        };
        for n in 0..3 * REMEMBERED_TRIES_MAX {
            fail(&mut dialer, n);
        }
        let at = dialer.next().unwrap();
        dialer.connected(PeerId::random(), ConnectionId::new_unchecked(1_000), false, at);
        fail(&mut dialer, 999);
        assert_eq!(dialer.next(), None);
    }
}
