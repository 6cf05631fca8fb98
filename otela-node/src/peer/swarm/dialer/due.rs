//! Which dials are due: those that somebody waits for first, then those that never failed, and so many of each kind.

use super::{Attempt, Dialer, Due, Target};
use crate::peer::defaults::{
    DIALS_MAX, DIALS_RESERVED, FOUND_DIALS_MAX, LISTED_DIALS_MAX, LISTED_UNTIL, REMEMBERED_DIALS_MAX, REMEMBERED_UNTIL,
};
use std::collections::HashSet;
use tokio::time::Instant;

impl Dialer {
    /// When a dial is due, if there is one.
    fn due_at(&self, attempt: &Attempt) -> Option<Instant> {
        let refused = attempt.peer.or(attempt.wanted).and_then(|peer| self.refused.get(&peer));
        attempt.due_at().map(|at| refused.map_or(at, |until| at.max(*until)))
    }

    /// Takes up the dials that are due, as many as may be under way. Each is to be [`Self::started`] or
    /// [`Self::refused`].
    pub(in crate::peer::swarm) fn take_due(&mut self, now: Instant) -> Vec<Due> {
        let room = DIALS_MAX.saturating_sub(self.under_way());
        let room_unless_awaited = room.saturating_sub(DIALS_RESERVED);
        let mut rooms = self.rooms();
        self.attempts.values_mut().for_each(|attempt| attempt.have_patience(&self.answers, now));
        let is_due: HashSet<_> = self
            .attempts
            .iter()
            .filter(|(_, attempt)| self.due_at(attempt).is_some_and(|at| at <= now))
            .map(|(target, _)| *target)
            .collect();
        let mut due: Vec<_> = self.attempts.iter_mut().filter(|(target, _)| is_due.contains(*target)).collect();
        // Then those that never failed: a mesh full of ghosts must not keep the living waiting.
        due.sort_by_key(|(target, a)| (!a.is_awaited(), target.is_quiet(), a.failures, a.next));
        due.retain(|(target, attempt)| attempt.under_way > 0 || rooms.take(**target));
        let fits =
            |(n, (_, a)): &(usize, (_, &mut Attempt))| *n < if a.is_awaited() { room } else { room_unless_awaited };
        let due = due.into_iter().enumerate().filter(fits);
        let proxy = self.proxy.as_ref();
        let take_up = |attempt: &mut Attempt| attempt.take_up(proxy, now);
        due.map(|(_, (target, attempt))| Due { target: *target, peer: attempt.wanted, addresses: take_up(attempt) })
            .collect()
    }

    /// When the next dial is due.
    pub(in crate::peer::swarm) fn next(&self) -> Option<Instant> {
        let rooms = self.rooms();
        let under_way = self.under_way();
        let others_too = under_way < DIALS_MAX - DIALS_RESERVED;
        let waiting = self.attempts.iter().filter(|(target, a)| {
            (others_too || a.is_awaited()) && (a.under_way > 0 || rooms.of(**target).is_none_or(|room| room > 0))
        });
        (under_way < DIALS_MAX).then(|| waiting.filter_map(|(_, a)| self.due_at(a)).min()).flatten()
    }

    /// How many more dials of each kind may begin now.
    fn rooms(&self) -> Rooms {
        let under_way =
            |is: fn(&Target) -> bool| self.attempts.iter().filter(|(target, a)| is(target) && a.under_way > 0).count();
        let room = |wanted: bool, most: usize, is| if wanted { most.saturating_sub(under_way(is)) } else { 0 };
        let few = self.connected.len() < REMEMBERED_UNTIL;
        let unanswered = self.bootstraps_connected() < LISTED_UNTIL;
        Rooms {
            listed: room(unanswered, LISTED_DIALS_MAX, |target| matches!(target, Target::Listed(_))),
            remembered: room(few, REMEMBERED_DIALS_MAX, |target| matches!(target, Target::Remembered(_))),
            found: room(true, FOUND_DIALS_MAX, |target| matches!(target, Target::Found(_))),
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.attempts.values().map(|attempt| attempt.under_way).sum()
    }
}

/// How many dials may begin, of the kinds that are bounded apart from the rest.
#[derive(Debug)]
struct Rooms {
    listed: usize,
    remembered: usize,
    found: usize,
}

impl Rooms {
    fn of(&self, target: Target) -> Option<usize> {
        match target {
            Target::Listed(_) => Some(self.listed),
            Target::Remembered(_) => Some(self.remembered),
            Target::Found(_) => Some(self.found),
            Target::Peer(_) | Target::Bootstrap(_) => None,
        }
    }

    /// Takes a place for `target`. Returns whether there was one.
    fn take(&mut self, target: Target) -> bool {
        let room = match target {
            Target::Listed(_) => &mut self.listed,
            Target::Remembered(_) => &mut self.remembered,
            Target::Found(_) => &mut self.found,
            Target::Peer(_) | Target::Bootstrap(_) => return true,
        };
        let fits = *room > 0;
        *room = room.saturating_sub(1);
        fits
    }
}
