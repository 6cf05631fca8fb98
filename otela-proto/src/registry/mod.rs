//! The registry: a grow-only map from node to its newest signed entry (OpenTela section 3.2).
//!
//! Invariant: for each owner the registry holds the greatest entry, by (epoch, lifecycle, version), that it was
//! ever given; so any two replicas that were given the same entries, in whatever order and however often, are
//! equal. `map` holds the lattice and nothing else; [`Registry`] adds the indices that gossip and readers
//! need; `view` is what readers see.

mod map;
mod view;

pub use map::GMap;
pub use view::{Belief, ModelState, Node, Replica, View};

use crate::{
    entry::{Entry, EntryHash, Rank},
    id::Place,
};
use libp2p_identity::PeerId;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// Number of buckets that the ring is cut into for digests.
pub const BUCKETS: usize = 16;
/// Most owners that a replica remembers. Beyond it entries of new owners are refused, and counted.
pub const OWNERS_MAX: usize = 16_384;

/// What became of an entry that was given to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It is in the registry now and was not before.
    New,
    /// The registry has it, or a newer one of the same owner, already.
    Stale,
    /// The registry is full and does not know the owner. Nothing has changed.
    Full,
}

/// The replica of one peer.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    map: GMap,
    /// When each owner's current entry arrived, on our own monotonic clock.
    learned_at: HashMap<PeerId, Duration>,
    by_place: BTreeMap<Place, PeerId>,
    roots: [[u8; 16]; BUCKETS],
}

/// The bucket that a place belongs to.
#[must_use]
pub fn bucket_of(place: Place) -> usize {
    // Four bits: always below BUCKETS.
    (place.0 >> 60) as usize
}

impl Registry {
    /// Takes `entry` if it is new.
    pub fn learn(&mut self, entry: Entry, now: Duration) -> Learned {
        let owner = entry.owner();
        let place = Place::of(&owner);
        let before = self.map.get(&owner).map(Entry::hash);
        if before.is_none() && self.map.len() >= OWNERS_MAX {
            return Learned::Full;
        }
        let hash = entry.hash();
        if !self.map.insert(entry) {
            return Learned::Stale;
        }
        let root = &mut self.roots[bucket_of(place)];
        for old in [before, Some(hash)].into_iter().flatten() {
            xor(root, &old);
        }
        self.by_place.insert(place, owner);
        self.learned_at.insert(owner, now);
        Learned::New
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

    /// Whether exactly these signed bytes are in the registry, so that they need not be verified again.
    #[must_use]
    pub fn holds(&self, owner: &PeerId, hash: EntryHash) -> bool {
        self.map.get(owner).is_some_and(|entry| entry.hash() == hash)
    }

    /// All entries, ordered by owner.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.map.iter()
    }

    /// All entries of the buckets in `mask`, ordered by place.
    pub fn entries_in(&self, mask: u32) -> impl Iterator<Item = (Place, &Entry)> {
        self.by_place
            .iter()
            .filter(move |(place, _)| mask & (1 << bucket_of(**place)) != 0)
            .filter_map(|(place, owner)| Some((*place, self.map.get(owner)?)))
    }

    /// Number of owners.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// The XOR of all entries' hashes: equal for equal replicas, and for unequal ones with probability 2^-128.
    #[must_use]
    pub fn root(&self) -> [u8; 16] {
        let mut root = [0; 16];
        for bucket in &self.roots {
            xor(&mut root, &EntryHash(*bucket));
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
}

fn xor(root: &mut [u8; 16], hash: &EntryHash) {
    for (byte, other) in root.iter_mut().zip(hash.0) {
        *byte ^= other;
    }
}

#[cfg(test)]
mod tests;
