//! Whom to be connected to: neighbours on the ring, some at random, and now and then one that seems gone.

use super::{Member, Output};
use crate::{
    accusation::Charge,
    clock::{Now, millis},
    gossip::{self, predecessor, say, successor},
    id::Place,
    lifecycle::Lifecycle,
    payload::Role,
    registry::Belief,
    sign::TTL,
    wire::{Bye, Say},
};
use libp2p_identity::PeerId;
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IteratorRandom};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

/// Random neighbours beside the two on the ring.
const RANDOM_LINKS: usize = 4;
/// Links between plain nodes beyond this many are closed.
const LINKS_MAX: usize = 10;
/// A link ends within this time of its `Bye`.
const FAREWELL_WITHIN: Duration = Duration::from_secs(10);
/// Who comes back within this time of our closing the link needs it, and keeps it.
const INSISTS_WITHIN: Duration = Duration::from_secs(60);
/// How often one that seems gone is tried, give or take a fifth: this is what heals a partition.
const HEAL_EVERY: Duration = Duration::from_secs(30);
/// The same for a peer that is linked to nobody.
const HEAL_ALONE_EVERY: Duration = Duration::from_secs(5);

/// When to look after connections.
#[derive(Debug)]
pub(super) struct Meetings {
    heal_at: Duration,
    /// Random neighbours that were chosen and are not linked yet.
    chosen: Vec<PeerId>,
    /// Whose links were closed as surplus, and when.
    closed: HashMap<PeerId, Duration>,
    /// Who came back at once.
    insisting: HashSet<PeerId>,
}

impl Meetings {
    pub(super) fn new(now: Duration) -> Self {
        Self { heal_at: now + HEAL_ALONE_EVERY, chosen: Vec::new(), closed: HashMap::new(), insisting: HashSet::new() }
    }

    pub(super) fn wake_at(&self) -> Duration {
        self.heal_at
    }
}

impl Member {
    /// The peers to be connected to for the ring to be whole: successor and predecessor among those that seem to
    /// live, and as many random ones as are missing.
    pub fn wanted_links(&mut self) -> Vec<PeerId> {
        let mut rng = SmallRng::from_rng(&mut self.rng);
        let lives = |peer: &PeerId| self.seems_alive(peer);
        let place = Place::of(&self.me);
        let ring = self.registry.ring();
        let mut wanted: Vec<_> =
            [successor(ring, place, lives), predecessor(ring, place, lives)].into_iter().flatten().collect();
        wanted.dedup();
        let linked = self.links.peers().filter(|peer| !wanted.contains(peer) && lives(peer)).count();
        let missing = RANDOM_LINKS.saturating_sub(linked);
        // A choice stands until it is linked or turns out badly, or else every look would be a new set of dials.
        let mut chosen = std::mem::take(&mut self.meetings.chosen);
        let fits = |peer: &PeerId| {
            let free = !wanted.contains(peer) && !self.links.contains(peer);
            free && self.seems_alive(peer) && self.liveness.belief(peer) == Belief::Alive
        };
        chosen.retain(fits);
        chosen.truncate(missing);
        // A sample of nobody would still look at everybody.
        if missing > chosen.len() {
            let others = ring.values().filter(|peer| fits(peer) && !chosen.contains(peer));
            chosen.extend(others.copied().sample(&mut rng, missing - chosen.len()));
        }
        wanted.extend(&chosen);
        self.meetings.chosen = chosen;
        wanted
    }

    /// Whether `peer` is another one that is here as far as we know.
    fn seems_alive(&self, peer: &PeerId) -> bool {
        *peer != self.me
            && self.registry.rank(peer).is_some_and(|rank| rank.lifecycle != Lifecycle::Left)
            && !matches!(self.liveness.belief(peer), Belief::Suspect(_) | Belief::Evicted(_))
    }

    pub(super) fn link_up(
        &mut self,
        peer: PeerId,
        rtt: Option<Duration>,
        now: Now,
        out: &mut Vec<Output>,
        charges: &mut Vec<Charge>,
    ) {
        self.farewells.remove(&peer);
        if self.meetings.closed.remove(&peer).is_some_and(|at| at + INSISTS_WITHIN > now.mono) {
            self.meetings.insisting.insert(peer);
        }
        let new = self.links.up(peer, rtt, now.mono);
        self.detect(now, out, charges, |liveness, ctx| liveness.link_up(peer, ctx));
        if new {
            // At once on every new link: this is how a joiner gets the mesh, and how partitions heal.
            gossip::compare_with(peer, &self.registry, out);
        }
    }

    pub(super) fn link_down(
        &mut self,
        peer: PeerId,
        relayed: bool,
        now: Now,
        out: &mut Vec<Output>,
        charges: &mut Vec<Charge>,
    ) {
        // A farewell without an end of the link was none.
        let farewell = self.farewells.remove(&peer).is_some_and(|at| at + FAREWELL_WITHIN > now.mono);
        self.meetings.insisting.remove(&peer);
        if self.links.down(&peer) && !farewell {
            self.detect(now, out, charges, |liveness, ctx| liveness.link_down(peer, relayed, ctx));
        }
    }

    /// Tries one that seems gone, and closes links that nobody needs.
    pub(super) fn meet(&mut self, now: Now, out: &mut Vec<Output>) {
        if self.meetings.heal_at > now.mono {
            return;
        }
        if self.settings.observes {
            self.meetings.heal_at = now.mono + HEAL_EVERY;
            return;
        }
        let every = if self.links.is_empty() { HEAL_ALONE_EVERY } else { HEAL_EVERY };
        self.meetings.heal_at = now.mono + every.mul_f64(self.rng.random_range(0.8..1.2));
        let oldest_ms = now.wall_ms.saturating_sub(millis(TTL));
        let alone = self.links.is_empty();
        let gone = self.registry.entries().filter(|entry| {
            let peer = entry.owner();
            let lost = entry.rank().lifecycle == Lifecycle::Left || self.liveness.belief(&peer) != Belief::Alive;
            peer != self.me && (lost || alone) && !self.links.contains(&peer) && entry.issued_at_ms() >= oldest_ms
        });
        if let Some(entry) = gone.choose(&mut self.rng) {
            out.push(Output::Reach(entry.owner()));
        }
        self.meetings.closed.retain(|_, at| *at + INSISTS_WITHIN > now.mono);
        self.close_surplus(now, out);
    }

    /// Relays and ingresses are there to be linked to; between plain nodes every link costs both sides.
    fn close_surplus(&mut self, now: Now, out: &mut Vec<Output>) {
        if self.settings.roles != [Role::Node] || self.links.len() <= LINKS_MAX {
            return;
        }
        let mut rng = SmallRng::from_rng(&mut self.rng);
        let place = Place::of(&self.me);
        let lives = |peer: &PeerId| self.seems_alive(peer);
        let ring = self.registry.ring();
        let kept: BTreeSet<_> =
            [successor(ring, place, lives), predecessor(ring, place, lives)].into_iter().flatten().collect();
        let is_plain = |peer: &&PeerId| {
            let roles = self.registry.get(peer).map(|entry| entry.payload().roles.clone());
            !kept.contains(*peer)
                && !self.meetings.insisting.contains(*peer)
                && roles.as_deref() == Some(&[Role::Node as i32])
        };
        let surplus = self.links.len() - LINKS_MAX;
        let closing = self.links.peers().filter(is_plain).copied().sample(&mut rng, surplus);
        for peer in closing {
            self.farewells.insert(peer, now.mono);
            self.meetings.closed.insert(peer, now.mono);
            out.extend([say(peer, Say::Bye(Bye {})), Output::Close(peer)]);
        }
    }
}
