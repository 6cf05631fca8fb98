//! The lattice itself.

use crate::entry::Entry;
use crdts::{CmRDT, CvRDT};
use libp2p_identity::PeerId;
use std::{collections::BTreeMap, convert::Infallible};

/// An entry is in the map already, or one that is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the map has this entry, or a greater one")]
pub struct Stale;

/// A grow-only map from owner to the owner's greatest entry: a join semilattice, so merge is commutative,
/// associative and idempotent, and never loses a key.
#[derive(Debug, Clone, Default)]
pub struct GMap {
    entries: BTreeMap<PeerId, Entry>,
}

impl GMap {
    /// The greatest entry of `owner`.
    #[must_use]
    pub fn get(&self, owner: &PeerId) -> Option<&Entry> {
        self.entries.get(owner)
    }

    /// Takes out the entry of `owner`, once no peer would accept it from another one any more or a tombstone stands
    /// for it. This is the one way in which the map shrinks.
    pub(super) fn remove(&mut self, owner: &PeerId) -> Option<Entry> {
        self.entries.remove(owner)
    }

    /// All entries, ordered by owner.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Number of owners.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no owner.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl PartialEq for GMap {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().zip(other.iter()).all(|(a, b)| a.id() == b.id())
    }
}

impl Eq for GMap {}

impl CvRDT for GMap {
    type Validation = Infallible;

    // An `Entry` is verified when it is made, so any two maps can be merged.
    fn validate_merge(&self, _other: &Self) -> Result<(), Self::Validation> {
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        for entry in other.entries.into_values() {
            self.apply(entry);
        }
    }
}

impl CmRDT for GMap {
    type Op = Entry;
    type Validation = Stale;

    /// Whether joining `op` changes the map.
    fn validate_op(&self, op: &Self::Op) -> Result<(), Self::Validation> {
        let stale = self.get(&op.owner()).is_some_and(|known| !op.replaces(known));
        if stale { Err(Stale) } else { Ok(()) }
    }

    /// Joins one entry.
    fn apply(&mut self, op: Self::Op) {
        if self.validate_op(&op).is_ok() {
            self.entries.insert(op.owner(), op);
        }
    }
}
