//! Reservations on relays: with whom, and when to ask again after one was refused or lost.
//!
//! libp2p renews a reservation and says when it ends; that it is made again is our business. Pure bookkeeping; the
//! driver listens and dials.

use super::dialer::Contact;
use crate::peer::defaults::{RESERVATIONS, RESERVE_AGAIN_MAX, RESERVE_AGAIN_MIN, RESERVE_WITHIN};
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use libp2p::{Multiaddr, PeerId, core::transport::ListenerId};
use std::collections::BTreeMap;
use tokio::time::Instant;

/// How we stand with a relay.
#[derive(Debug)]
enum Standing {
    /// Not asked, or not again before `next`.
    Idle { next: Instant },
    /// Asked since. One that takes too long does not count, and is not hurried: libp2p panics when a relay accepts what
    /// was given up meanwhile.
    Asked { listener: ListenerId, since: Instant, is_late: bool },
    /// It relays for us.
    Held { listener: ListenerId },
}

#[derive(Debug)]
struct Candidate {
    relay: Contact,
    /// The place in the order of preference; `None` once the mesh does not know it any more.
    rank: Option<usize>,
    standing: Standing,
    pauses: ExponentialBackoff,
    failures: u32,
}

/// How a reservation came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The relay had relayed for us.
    Held,
    /// It has refused.
    Refused,
    /// And not for the first time.
    RefusedAgain,
}

/// All relays that we may ask.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    candidates: BTreeMap<PeerId, Candidate>,
    /// When another one may next be chosen in the place of one that cannot be reached.
    instead: Option<(Instant, ExponentialBackoff)>,
}

impl Reservations {
    /// Replaces what is known of relays; the first ones are preferred. One that relays for us stays until it is lost.
    pub(super) fn offer(&mut self, relays: Vec<Contact>, now: Instant) {
        for candidate in self.candidates.values_mut() {
            candidate.rank = None;
        }
        for (rank, relay) in relays.into_iter().enumerate() {
            let candidate = self.candidates.entry(relay.peer).or_insert_with(|| Candidate {
                relay: relay.clone(),
                rank: None,
                standing: Standing::Idle { next: now },
                pauses: pauses(),
                failures: 0,
            });
            candidate.rank = Some(rank);
            candidate.relay = relay;
        }
        self.candidates.retain(|_, candidate| candidate.rank.is_some() || !candidate.is_idle());
    }

    /// The relays to be connected to: those that relay for us, and of the others the best, as many as are missing.
    /// Those that have refused or failed lately come after all others.
    pub(super) fn chosen(&self) -> Vec<&Contact> {
        let mut all: Vec<_> = self.candidates.values().collect();
        all.sort_by_key(|candidate| (!candidate.counts(), candidate.failures, candidate.rank));
        all.into_iter().take(RESERVATIONS).map(|candidate| &candidate.relay).collect()
    }

    /// The chosen relays to ask now. `connected` gives the address of a direct connection to a relay.
    pub(super) fn due(
        &self,
        connected: impl Fn(&PeerId) -> Option<Multiaddr>,
        now: Instant,
    ) -> Vec<(PeerId, Multiaddr)> {
        let chosen = self.chosen().into_iter().map(|relay| relay.peer);
        let due = chosen.filter(|peer| self.candidates[peer].is_due(now));
        due.filter_map(|peer| Some((peer, connected(&peer)?))).collect()
    }

    /// When to look at [`Self::due`] and [`Self::overdue`] again.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        let at = |candidate: &Candidate| match candidate.standing {
            Standing::Idle { next } => (next > now).then_some(next),
            Standing::Asked { since, is_late, .. } => (!is_late).then_some(since + RESERVE_WITHIN),
            Standing::Held { .. } => None,
        };
        self.candidates.values().filter_map(at).min()
    }

    /// The relay was asked; what comes of it is told of `listener`.
    pub(super) fn asked(&mut self, peer: &PeerId, listener: ListenerId, now: Instant) {
        if let Some(candidate) = self.candidates.get_mut(peer) {
            candidate.standing = Standing::Asked { listener, since: now, is_late: false };
        }
    }

    /// The relay relays for us. Returns it, if that is news.
    pub(super) fn held(&mut self, listener: ListenerId) -> Option<PeerId> {
        let candidate = self.of(listener)?;
        let is_news = !matches!(candidate.standing, Standing::Held { .. });
        candidate.standing = Standing::Held { listener };
        (candidate.pauses, candidate.failures) = (pauses(), 0);
        let peer = candidate.relay.peer;
        self.instead = None;
        is_news.then_some(peer)
    }

    /// The relay has refused, or relays for us no more.
    pub(super) fn lost(&mut self, listener: ListenerId, now: Instant) -> Option<(PeerId, Lost)> {
        let candidate = self.of(listener)?;
        let peer = candidate.relay.peer;
        let was_held = matches!(candidate.standing, Standing::Held { .. });
        if !was_held {
            candidate.failures = candidate.failures.saturating_add(1);
        }
        let lost = match (was_held, candidate.failures) {
            (true, _) => Lost::Held,
            (false, 1) => Lost::Refused,
            (false, _) => Lost::RefusedAgain,
        };
        let pause = candidate.pauses.next().unwrap_or(RESERVE_AGAIN_MAX);
        candidate.standing = Standing::Idle { next: now + pause };
        if candidate.rank.is_none() {
            self.candidates.remove(&peer);
        }
        Some((peer, lost))
    }

    /// A relay cannot be reached. Returns whether others come before it from now on: where none can be reached they take
    /// turns, but more and more slowly.
    pub(super) fn unreachable(&mut self, relay: &PeerId, now: Instant) -> bool {
        if self.instead.as_ref().is_some_and(|(next, _)| now < *next) {
            return false;
        }
        let Some(candidate) = self.candidates.get_mut(relay).filter(|candidate| candidate.is_idle()) else {
            return false;
        };
        candidate.failures = candidate.failures.saturating_add(1);
        let mut pauses = self.instead.take().map_or_else(pauses, |(_, pauses)| pauses);
        self.instead = Some((now + pauses.next().unwrap_or(RESERVE_AGAIN_MAX), pauses));
        true
    }

    /// Those that were asked and have said nothing for too long: others are asked in their place.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<PeerId> {
        let mut overdue = Vec::new();
        for candidate in self.candidates.values_mut() {
            if let Standing::Asked { since, is_late, .. } = &mut candidate.standing
                && !*is_late
                && *since + RESERVE_WITHIN <= now
            {
                *is_late = true;
                candidate.failures = candidate.failures.saturating_add(1);
                overdue.push(candidate.relay.peer);
            }
        }
        overdue
    }

    /// The relays that relay for us.
    pub(super) fn holding(&self) -> Vec<PeerId> {
        let held = self.candidates.values().filter(|candidate| matches!(candidate.standing, Standing::Held { .. }));
        held.map(|candidate| candidate.relay.peer).collect()
    }

    /// The relays that are known.
    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.candidates.keys().copied()
    }

    /// What is known of a relay.
    pub(super) fn contact(&self, relay: &PeerId) -> Option<&Contact> {
        self.candidates.get(relay).map(|candidate| &candidate.relay)
    }

    /// How many relays are known.
    pub(super) fn len(&self) -> usize {
        self.candidates.len()
    }

    fn of(&mut self, listener: ListenerId) -> Option<&mut Candidate> {
        self.candidates.values_mut().find(|candidate| match candidate.standing {
            Standing::Asked { listener: of, .. } | Standing::Held { listener: of } => of == listener,
            Standing::Idle { .. } => false,
        })
    }
}

impl Candidate {
    fn is_idle(&self) -> bool {
        matches!(self.standing, Standing::Idle { .. })
    }

    /// Whether it relays for us, or will soon.
    fn counts(&self) -> bool {
        match self.standing {
            Standing::Idle { .. } => false,
            Standing::Asked { is_late, .. } => !is_late,
            Standing::Held { .. } => true,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        matches!(self.standing, Standing::Idle { next } if next <= now)
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(RESERVE_AGAIN_MIN)
        .with_max_delay(RESERVE_AGAIN_MAX)
        .without_max_times()
        .with_jitter()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_proto::id::Epoch;

    fn relays(n: usize) -> Vec<Contact> {
        let addresses: Vec<Multiaddr> = vec!["/ip4/10.0.0.1/tcp/7411".parse().unwrap()];
        let relay =
            || Contact { peer: PeerId::random(), epoch: Epoch(1), addresses: addresses.clone(), is_relay: true };
        std::iter::repeat_with(relay).take(n).collect()
    }

    fn connected(_: &PeerId) -> Option<Multiaddr> {
        Some("/ip4/10.0.0.1/tcp/7411".parse().unwrap())
    }

    /// Asks all that are due; their listeners.
    fn ask(reservations: &mut Reservations, now: Instant) -> Vec<(PeerId, ListenerId)> {
        let due = reservations.due(connected, now);
        due.into_iter()
            .map(|(peer, _)| {
                let listener = ListenerId::next();
                reservations.asked(&peer, listener, now);
                (peer, listener)
            })
            .collect()
    }

    #[test]
    fn the_best_are_asked_once_and_as_many_as_are_wanted() {
        let now = Instant::now();
        let (mut reservations, relays) = (Reservations::default(), relays(5));
        reservations.offer(relays.clone(), now);
        assert!(reservations.due(|_| None, now).is_empty(), "nobody is asked without a connection");
        let asked = ask(&mut reservations, now);
        let best: Vec<_> = relays[..RESERVATIONS].iter().map(|relay| relay.peer).collect();
        assert_eq!(asked.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), best);
        assert!(ask(&mut reservations, now).is_empty());
        for (peer, listener) in &asked {
            assert_eq!(reservations.held(*listener), Some(*peer));
            assert_eq!(reservations.held(*listener), None, "that is known");
        }
        assert!(ask(&mut reservations, now).is_empty());
        // Others are preferred now; whoever relays for us goes on.
        reservations.offer(relays.into_iter().rev().collect(), now);
        assert!(ask(&mut reservations, now).is_empty());
        assert_eq!(reservations.holding().len(), RESERVATIONS);
    }

    #[test]
    fn p46_one_that_refuses_is_asked_again_later_and_another_one_at_once() {
        let mut now = Instant::now();
        let (mut reservations, relays) = (Reservations::default(), relays(RESERVATIONS + 1));
        reservations.offer(relays.clone(), now);
        let asked = ask(&mut reservations, now);
        assert_eq!(reservations.lost(asked[0].1, now), Some((asked[0].0, Lost::Refused)));
        let instead = ask(&mut reservations, now);
        assert_eq!(instead.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), [relays[RESERVATIONS].peer]);
        assert_eq!(reservations.lost(instead[0].1, now), Some((instead[0].0, Lost::Refused)));
        for _ in 0..20 {
            let next = reservations.next(now).unwrap();
            assert!(next <= now + 2 * RESERVE_AGAIN_MAX);
            now = next.max(now + RESERVE_WITHIN / 2);
            for (_, listener) in ask(&mut reservations, now) {
                reservations.lost(listener, now);
            }
        }
    }

    #[test]
    fn one_that_cannot_be_reached_makes_room_for_others() {
        let now = Instant::now();
        let (mut reservations, relays) = (Reservations::default(), relays(RESERVATIONS + 1));
        reservations.offer(relays.clone(), now);
        assert!(reservations.unreachable(&relays[0].peer, now));
        let chosen: Vec<_> = reservations.chosen().into_iter().map(|relay| relay.peer).collect();
        assert_eq!(chosen, relays[1..].iter().map(|relay| relay.peer).collect::<Vec<_>>());
        let asked = ask(&mut reservations, now);
        assert!(!reservations.unreachable(&asked[0].0, now + RESERVE_AGAIN_MAX), "it is connected");
        for (_, listener) in asked {
            reservations.lost(listener, now);
        }
        // Where none is reached they take turns, and slowly.
        let turns = |seconds: u64| (0..10 * seconds).map(|n| now + std::time::Duration::from_millis(100 * n));
        let first = |reservations: &Reservations| reservations.chosen()[0].peer;
        let all = turns(600).filter(|at| reservations.unreachable(&first(&reservations), *at)).count();
        assert!((15..60).contains(&all), "{all}");
    }

    #[test]
    fn p46_one_that_is_lost_is_asked_again_soon() {
        let now = Instant::now();
        let mut reservations = Reservations::default();
        reservations.offer(relays(1), now);
        let (peer, listener) = ask(&mut reservations, now)[0];
        reservations.held(listener);
        assert_eq!(reservations.lost(listener, now), Some((peer, Lost::Held)));
        assert!(reservations.holding().is_empty() && ask(&mut reservations, now).is_empty());
        let next = reservations.next(now).unwrap();
        assert!(next <= now + 2 * RESERVE_AGAIN_MIN);
        assert_eq!(ask(&mut reservations, next).len(), 1);
    }

    #[test]
    fn one_that_says_nothing_loses_its_place_and_has_it_again_if_it_answers_after_all() {
        let now = Instant::now();
        let mut reservations = Reservations::default();
        let relays = relays(RESERVATIONS + 1);
        reservations.offer(relays.clone(), now);
        let asked = ask(&mut reservations, now);
        let (silent, listener) = asked[0];
        for (_, listener) in &asked[1..] {
            reservations.held(*listener);
        }
        assert!(reservations.overdue(now).is_empty());
        let later = reservations.next(now).unwrap();
        assert_eq!(reservations.overdue(later), [silent]);
        assert!(reservations.overdue(later).is_empty() && reservations.next(later).is_none(), "it is told once");
        assert_eq!(ask(&mut reservations, later)[0].0, relays[RESERVATIONS].peer, "in its place");
        assert_eq!(reservations.held(listener), Some(silent));
        assert_eq!(reservations.holding().len(), RESERVATIONS);
    }

    #[test]
    fn one_that_says_nothing_and_that_the_mesh_forgets_is_forgotten_when_it_ends() {
        let now = Instant::now();
        let mut reservations = Reservations::default();
        reservations.offer(relays(1), now);
        let (peer, listener) = ask(&mut reservations, now)[0];
        reservations.offer(Vec::new(), now);
        assert_eq!(reservations.len(), 1, "it may still answer");
        assert_eq!(reservations.lost(listener, now), Some((peer, Lost::Refused)));
        assert_eq!(reservations.len(), 0);
    }
}
