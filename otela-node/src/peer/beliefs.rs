//! What this peer itself believes of others. It never travels, and never changes what an owner says of itself.

use super::defaults::{FAILED_FOR, GONE_AFTER};
use libp2p::PeerId;
use otela_proto::registry::Belief;
use std::{collections::HashMap, time::Duration};

/// Beliefs by peer; a peer without one is alive. Times are on the gossip task's clock.
#[derive(Debug, Default)]
pub(super) struct Beliefs {
    of: HashMap<PeerId, Belief>,
}

impl Beliefs {
    /// All that is not taken for granted.
    pub(super) fn all(&self) -> &HashMap<PeerId, Belief> {
        &self.of
    }

    /// A connection to `peer` stands. Returns whether that is news.
    pub(super) fn alive(&mut self, peer: &PeerId) -> bool {
        self.of.remove(peer).is_some()
    }

    /// Nobody answers for `peer`, or a request to it failed. Returns whether that is news: who is gone already does
    /// not come back by it.
    pub(super) fn unreachable(&mut self, peer: PeerId, now: Duration) -> bool {
        let news = !self.of.contains_key(&peer);
        self.of.entry(peer).or_insert(Belief::Unreachable(now));
        news
    }

    /// The owner has said something new. Gone was a guess: from now on it counts as alive again, until we find out
    /// otherwise ourselves.
    pub(super) fn heard_of(&mut self, owner: &PeerId) {
        if let Some(Belief::Evicted(_)) = self.of.get(owner) {
            self.of.remove(owner);
        }
    }

    /// Lets time do its work: a failed request is forgiven if the connection stands, and who cannot be reached is at
    /// last taken for gone. Returns whose belief has changed.
    pub(super) fn age(&mut self, now: Duration, is_connected: impl Fn(&PeerId) -> bool) -> Vec<PeerId> {
        let due = |(peer, belief): (&PeerId, &Belief)| match next(belief, is_connected(peer)) {
            Some(at) if at <= now => Some(*peer),
            _ => None,
        };
        let aged: Vec<_> = self.of.iter().filter_map(due).collect();
        for peer in &aged {
            if is_connected(peer) {
                self.of.remove(peer);
            } else {
                self.of.insert(*peer, Belief::Evicted(now));
            }
        }
        aged
    }

    /// When [`Self::age`] has something to do.
    pub(super) fn next_change(&self, is_connected: impl Fn(&PeerId) -> bool) -> Option<Duration> {
        self.of.iter().filter_map(|(peer, belief)| next(belief, is_connected(peer))).min()
    }
}

fn next(belief: &Belief, is_connected: bool) -> Option<Duration> {
    match belief {
        Belief::Unreachable(since) => Some(*since + if is_connected { FAILED_FOR } else { GONE_AFTER }),
        Belief::Alive | Belief::Suspect(_) | Belief::Evicted(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn a_failed_request_is_forgiven_if_the_connection_stands() {
        let (mut beliefs, peer) = (Beliefs::default(), PeerId::random());
        assert!(beliefs.unreachable(peer, NOW));
        assert!(!beliefs.unreachable(peer, NOW), "not news twice");
        assert_eq!(beliefs.next_change(|_| true), Some(NOW + FAILED_FOR));
        assert!(beliefs.age(NOW, |_| true).is_empty());
        assert_eq!(beliefs.age(NOW + FAILED_FOR, |_| true), [peer]);
        assert!(beliefs.all().is_empty());
    }

    #[test]
    fn who_cannot_be_reached_is_gone_at_last_and_back_with_a_connection_or_news() {
        let (mut beliefs, peer) = (Beliefs::default(), PeerId::random());
        beliefs.unreachable(peer, NOW);
        assert_eq!(beliefs.next_change(|_| false), Some(NOW + GONE_AFTER));
        assert_eq!(beliefs.age(NOW + GONE_AFTER, |_| false), [peer]);
        assert_eq!(beliefs.all()[&peer], Belief::Evicted(NOW + GONE_AFTER));
        assert!(!beliefs.unreachable(peer, NOW + GONE_AFTER), "a failed dial does not bring it back");
        assert_eq!(beliefs.next_change(|_| false), None);
        beliefs.heard_of(&peer);
        assert!(beliefs.all().is_empty());
        beliefs.unreachable(peer, NOW);
        beliefs.heard_of(&peer);
        assert_eq!(beliefs.all().len(), 1, "news do not prove that it can be reached");
        assert!(beliefs.alive(&peer) && !beliefs.alive(&peer));
    }
}
