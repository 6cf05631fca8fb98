//! The dialling half of a process: whom to dial, when, and how many at once. It keeps to the rules of a real peer's
//! dialler: pauses grow from 200 ms to a minute, bootstraps are tried for ever, a peer that the core wants to reach
//! goes before all others.

use libp2p_identity::PeerId;
use std::{collections::BTreeMap, time::Duration};

/// Dials at once.
pub(crate) const DIALS_MAX: usize = 32;
/// First and longest pause between two dials of one peer.
const REDIAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(1));

/// A connection that lasted this long was a good one: when it is lost, it is dialled again at once.
const STEADY_AFTER: Duration = Duration::from_secs(10);

/// Whom a dial is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// Whoever answers at this host.
    Bootstrap(usize),
    Peer(PeerId),
}

#[derive(Debug, Clone, Copy, Default)]
struct Attempt {
    is_wanted: bool,
    is_urgent: bool,
    is_under_way: bool,
    failures: u32,
    next: Duration,
    connected_at: Option<Duration>,
}

impl Attempt {
    fn pause(&mut self, now: Duration) {
        self.next = now + (REDIAL.0 * (1 << self.failures.min(12))).min(REDIAL.1);
        self.failures += 1;
    }
}

/// The dials of one process.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    attempts: BTreeMap<Target, Attempt>,
    /// When the set of wanted peers is looked at next.
    pub(crate) want_at: Duration,
    /// When dials have been planned for.
    pub(crate) dial_at: Duration,
}

impl Driver {
    pub(crate) fn new(bootstraps: impl Iterator<Item = usize>, now: Duration) -> Self {
        let attempt = Attempt { is_wanted: true, next: now, ..Attempt::default() };
        let attempts = bootstraps.map(|host| (Target::Bootstrap(host), attempt)).collect();
        Self { attempts, want_at: Duration::MAX, dial_at: Duration::MAX }
    }

    /// From now on these peers are wanted, and no others.
    pub(crate) fn want(&mut self, peers: &[PeerId], now: Duration) {
        for (target, attempt) in &mut self.attempts {
            attempt.is_wanted = matches!(target, Target::Bootstrap(_));
        }
        for peer in peers {
            let fresh = Attempt { next: now, ..Attempt::default() };
            self.attempts.entry(Target::Peer(*peer)).or_insert(fresh).is_wanted = true;
        }
        self.tidy();
    }

    /// This peer is to be dialled now, whatever happened before.
    pub(crate) fn hurry(&mut self, peer: PeerId, now: Duration) {
        let attempt = self.attempts.entry(Target::Peer(peer)).or_default();
        if attempt.is_under_way {
            return;
        }
        attempt.is_urgent = true;
        attempt.next = now;
    }

    /// The targets whose time has come, as many as may be dialled. `is_connected` are left alone.
    pub(crate) fn take_due(&mut self, now: Duration, is_connected: impl Fn(&Target) -> bool) -> Vec<Target> {
        let room = DIALS_MAX.saturating_sub(self.under_way());
        let mut due: Vec<_> = self
            .attempts
            .iter()
            .filter(|(target, attempt)| !attempt.is_under_way && attempt.next <= now && !is_connected(target))
            .map(|(target, attempt)| ((!attempt.is_urgent, attempt.failures, attempt.next), *target))
            .collect();
        due.sort();
        due.truncate(room);
        for (_, target) in &due {
            if let Some(attempt) = self.attempts.get_mut(target) {
                attempt.is_under_way = true;
                attempt.is_urgent = false;
            }
        }
        due.into_iter().map(|(_, target)| target).collect()
    }

    pub(crate) fn under_way(&self) -> usize {
        self.attempts.values().filter(|attempt| attempt.is_under_way).count()
    }

    /// When [`Self::take_due`] has something to do, if there is room.
    pub(crate) fn next(&self, is_connected: impl Fn(&Target) -> bool) -> Option<Duration> {
        if self.under_way() >= DIALS_MAX {
            return None;
        }
        let waiting = self.attempts.iter().filter(|(target, attempt)| !attempt.is_under_way && !is_connected(target));
        waiting.map(|(_, attempt)| attempt.next).min()
    }

    /// A dial has ended.
    pub(crate) fn ended(&mut self, target: Target, is_connected: bool, now: Duration) {
        let Some(attempt) = self.attempts.get_mut(&target) else { return };
        attempt.is_under_way = false;
        if is_connected {
            attempt.connected_at = Some(now);
        } else {
            attempt.pause(now);
        }
        self.tidy();
    }

    /// A connection is gone.
    pub(crate) fn lost(&mut self, target: Target, now: Duration) {
        let Some(attempt) = self.attempts.get_mut(&target) else { return };
        let Some(since) = attempt.connected_at.take() else { return };
        if now - since >= STEADY_AFTER {
            attempt.failures = 0;
            attempt.next = now;
        } else {
            attempt.pause(now);
        }
    }

    fn tidy(&mut self) {
        self.attempts.retain(|_, attempt| attempt.is_wanted || attempt.is_urgent || attempt.is_under_way);
    }
}
