//! The registry: a grow-only map from node to its newest signed entry (OpenTela section 3.2).
//!
//! Invariant: for each owner the registry holds the greatest entry, by (epoch, lifecycle, version), that it was
//! ever given, as long as that entry is worth keeping; so any two replicas that were given the same entries, in
//! whatever order and however often, are equal. `map` holds the lattice and nothing else; `accusations` what others
//! say of owners; `graves` what is left of those that are gone. [`Registry`] adds the indices that gossip and
//! readers need; `view` is what readers see.

mod accusations;
mod graves;
mod map;
mod view;

pub use accusations::ACCUSERS_MAX;
pub use graves::GRAVES_MAX;
pub use map::{GMap, Stale};
pub use view::{Belief, ModelState, Node, Replica, View};

use crate::{
    accusation::Accusation,
    clock::millis,
    entry::{Entry, Rank, StatementId},
    id::Place,
    lifecycle::Lifecycle,
    sign::{CLOCK_SLACK, TTL},
};
use accusations::Accusations;
use crdts::CmRDT;
use graves::Graves;
use libp2p_identity::PeerId;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

/// Number of buckets that the ring is cut into for digests.
pub const BUCKETS: usize = 16;
/// Most present owners that a replica remembers. Beyond it entries of new owners are refused, and counted.
pub const OWNERS_MAX: usize = 16_384;
/// Most departed owners whose entries are kept whole; the oldest beyond it are buried.
pub const DEPARTED_MAX: usize = 1_024;

/// What became of an entry or an accusation that was given to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It is in the registry now and was not before.
    New,
    /// The registry has it, or something newer, already.
    Stale,
    /// The registry is full and does not know the owner. Nothing has changed.
    Full,
    /// The owner has departed and this is not news of it. Nothing has changed.
    Buried,
    /// A later publication of one session that goes back in the lifecycle: its owner breaks the rules. Nothing has
    /// changed.
    Backwards,
    /// An accusation against an owner that is not known.
    UnknownSubject,
    /// An accusation by somebody who is not known: keys cost nothing, and who is no peer has no say.
    UnknownAccuser,
}

/// The replica of one peer.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    map: GMap,
    accusations: Accusations,
    graves: Graves,
    /// When each owner's current entry arrived, on our own monotonic clock.
    learned_at: HashMap<PeerId, Duration>,
    by_place: BTreeMap<Place, PeerId>,
    /// Owners that have left or were evicted, oldest first, in an order that is the same on all replicas.
    departed: BTreeSet<(u64, StatementId, PeerId)>,
    roots: [[u8; 16]; BUCKETS],
}

/// The bucket that a place belongs to.
#[must_use]
pub fn bucket_of(place: Place) -> usize {
    // Four bits: always below BUCKETS.
    (place.0 >> 60) as usize
}

impl Registry {
    /// Takes `entry` if it is new. It refutes all accusations against earlier publications.
    pub fn learn(&mut self, entry: Entry, now: Duration) -> Learned {
        let owner = entry.owner();
        let place = Place::of(&owner);
        let before = self.map.get(&owner).cloned();
        if before.is_none() {
            if self.graves.rank(place).is_some_and(|buried| entry.rank() <= buried) {
                return Learned::Buried;
            }
            if self.map.len() - self.departed.len() >= OWNERS_MAX {
                return Learned::Full;
            }
        }
        if before.as_ref().is_some_and(|before| goes_back(entry.rank(), before.rank())) {
            return Learned::Backwards;
        }
        let (id, left) = (entry.id(), entry.rank().lifecycle == Lifecycle::Left);
        let publication = entry.rank().publication();
        if self.map.validate_op(&entry).is_err() {
            return Learned::Stale;
        }
        self.map.apply(entry);
        if let Some(before) = &before {
            self.toggle(place, before.id());
            self.departed.remove(&(before.issued_at_ms(), before.id(), owner));
        }
        self.toggle(place, id);
        // What was said of the very publication that stands here holds, whoever wrote that twice.
        if left || before.as_ref().is_some_and(|before| publication != before.rank().publication()) {
            for refuted in &*self.accusations.refute(&owner) {
                self.toggle(place, refuted.id());
            }
        }
        self.graves.open(place);
        self.by_place.insert(place, owner);
        self.learned_at.insert(owner, now);
        if left {
            self.depart(&owner);
        }
        Learned::New
    }

    /// Takes `accusation` if it is about what the registry holds of its subject.
    pub fn accuse(&mut self, accusation: Accusation) -> Learned {
        let subject = accusation.charge().subject;
        if self.map.get(&accusation.accuser()).is_none() {
            return Learned::UnknownAccuser;
        }
        let Some(entry) = self.map.get(&subject) else { return Learned::UnknownSubject };
        let Some(before) = self.accusations.insert(entry, accusation) else { return Learned::Stale };
        let place = Place::of(&subject);
        for changed in before.iter().chain(&*self.accusations.against(&subject)) {
            self.toggle(place, changed.id());
        }
        Learned::New
    }

    /// Counts `owner` among those that are gone. Of too many, the oldest are buried, in the same order everywhere.
    /// Returns who was buried.
    pub fn depart(&mut self, owner: &PeerId) -> Vec<PeerId> {
        let Some(entry) = self.map.get(owner) else { return Vec::new() };
        self.departed.insert((entry.issued_at_ms(), entry.id(), *owner));
        let mut buried = Vec::new();
        while self.departed.len() > DEPARTED_MAX
            && let Some((_, _, oldest)) = self.departed.first().copied()
        {
            self.bury(&oldest);
            buried.push(oldest);
        }
        buried
    }

    /// The rank under the tombstone of `owner`, if there is one.
    #[must_use]
    pub fn buried(&self, owner: &PeerId) -> Option<Rank> {
        self.graves.rank(Place::of(owner))
    }

    /// Lets go of all entries that nobody would accept any more, and of graves that are no longer needed. Returns
    /// the owners of those entries.
    pub fn expire(&mut self, now_ms: u64) -> Vec<PeerId> {
        let oldest_ms = now_ms.saturating_sub(millis(TTL + CLOCK_SLACK));
        let expired: Vec<_> =
            self.map.iter().filter(|entry| entry.issued_at_ms() < oldest_ms).map(Entry::owner).collect();
        for owner in &expired {
            self.bury(owner);
        }
        self.graves.forget(now_ms);
        expired
    }

    /// Lets go of the entry of `owner`, of what others say of it and of what it says of others. Returns of whom something
    /// was let go.
    pub fn expel(&mut self, owner: &PeerId) -> BTreeSet<PeerId> {
        self.remove(owner).map(|(_, changed)| changed).unwrap_or_default()
    }

    fn bury(&mut self, owner: &PeerId) {
        if let Some((entry, _)) = self.remove(owner) {
            self.graves.dig(&entry);
        }
    }

    fn remove(&mut self, owner: &PeerId) -> Option<(Entry, BTreeSet<PeerId>)> {
        let entry = self.map.remove(owner)?;
        let mut changed = BTreeSet::from([*owner]);
        let place = Place::of(owner);
        self.toggle(place, entry.id());
        for accusation in &*self.accusations.refute(owner) {
            self.toggle(place, accusation.id());
        }
        for withdrawn in self.accusations.withdraw(owner) {
            let subject = withdrawn.charge().subject;
            self.toggle(Place::of(&subject), withdrawn.id());
            changed.insert(subject);
        }
        self.departed.remove(&(entry.issued_at_ms(), entry.id(), *owner));
        self.by_place.remove(&place);
        self.learned_at.remove(owner);
        Some((entry, changed))
    }

    /// The newest entry of `owner`.
    #[must_use]
    pub fn get(&self, owner: &PeerId) -> Option<&Entry> {
        self.map.get(owner)
    }

    /// When the newest entry of `owner` arrived here.
    #[must_use]
    pub fn learned_at(&self, owner: &PeerId) -> Option<Duration> {
        self.learned_at.get(owner).copied()
    }

    /// The newest entry of the owner at `place`.
    #[must_use]
    pub fn at_place(&self, place: Place) -> Option<&Entry> {
        self.map.get(self.by_place.get(&place)?)
    }

    /// All entries, ordered by owner.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.map.iter()
    }

    /// Owners by place, all the way round.
    #[must_use]
    pub fn ring(&self) -> &BTreeMap<Place, PeerId> {
        &self.by_place
    }

    /// All entries of the buckets in `mask` with their marks, ordered by place.
    pub fn entries_in(&self, mask: u32) -> impl Iterator<Item = (Place, &Entry, StatementId)> {
        self.by_place
            .iter()
            .filter(move |(place, _)| mask & (1 << bucket_of(**place)) != 0)
            .filter_map(|(place, owner)| Some((*place, self.map.get(owner)?, self.mark(owner)?)))
    }

    /// The XOR of the hashes of the owner's entry and of the accusations against it.
    #[must_use]
    pub fn mark(&self, owner: &PeerId) -> Option<StatementId> {
        let mut mark = self.map.get(owner)?.id().0;
        for accusation in &*self.accusations.against(owner) {
            xor(&mut mark, &accusation.id());
        }
        Some(StatementId(mark))
    }

    /// All accusations against `subject`, by different accusers, about its newest entry.
    #[must_use]
    pub fn accusations(&self, subject: &PeerId) -> Arc<[Accusation]> {
        self.accusations.against(subject)
    }

    /// Everybody who is accused, with the accusations.
    pub fn accused(&self) -> impl Iterator<Item = (&PeerId, &Arc<[Accusation]>)> {
        self.accusations.iter()
    }

    /// Number of owners whose entries are held, departed ones among them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// Number of owners that have left or were evicted, and whose entries are held all the same.
    #[must_use]
    pub fn departed(&self) -> usize {
        self.departed.len()
    }

    /// Whether `owner` is among them.
    #[must_use]
    pub fn has_departed(&self, owner: &PeerId) -> bool {
        let entry = self.map.get(owner);
        entry.is_some_and(|entry| self.departed.contains(&(entry.issued_at_ms(), entry.id(), *owner)))
    }

    /// Number of tombstones.
    #[must_use]
    pub fn graves(&self) -> usize {
        self.graves.len()
    }

    /// The XOR of all hashes: equal for equal replicas, and for unequal ones with probability 2^-128.
    #[must_use]
    pub fn root(&self) -> [u8; 16] {
        let mut root = [0; 16];
        for bucket in &self.roots {
            xor(&mut root, &StatementId(*bucket));
        }
        root
    }

    /// The XOR of the hashes in each bucket.
    #[must_use]
    pub fn bucket_roots(&self) -> &[[u8; 16]; BUCKETS] {
        &self.roots
    }

    /// The highest rank of `owner`.
    #[must_use]
    pub fn rank(&self, owner: &PeerId) -> Option<Rank> {
        self.map.get(owner).map(Entry::rank)
    }

    /// Adds a hash to its bucket's root, or takes it out again.
    fn toggle(&mut self, place: Place, hash: StatementId) {
        xor(&mut self.roots[bucket_of(place)], &hash);
    }
}

fn goes_back(rank: Rank, known: Rank) -> bool {
    rank.epoch == known.epoch && rank.lifecycle < known.lifecycle && rank.version > known.version
}

fn xor(root: &mut [u8; 16], hash: &StatementId) {
    for (byte, other) in root.iter_mut().zip(hash.0) {
        *byte ^= other;
    }
}

#[cfg(test)]
mod tests;
