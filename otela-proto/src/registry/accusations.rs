//! Accusations against the owners in the registry.
//!
//! Invariant: whatever is kept names exactly the publication of its subject that the registry holds. A later one
//! refutes all of them, and a version that nobody has seen cannot be accused; so what is kept is again a function
//! of what was learned, and replicas agree on it.

use crate::{accusation::Accusation, entry::Entry, id::Place, lifecycle::Lifecycle};
use libp2p_identity::PeerId;
use std::{collections::BTreeMap, sync::Arc};

/// Most accusers that are kept for one subject: far more than any decision needs. Of more, those with the lowest
/// places on the ring stay, so that all replicas keep the same ones.
pub const ACCUSERS_MAX: usize = 16;

/// Accusations by subject, ordered by the accusers' places.
#[derive(Debug, Clone, Default)]
pub(super) struct Accusations {
    of: BTreeMap<PeerId, Arc<[Accusation]>>,
}

impl Accusations {
    /// Joins one accusation against the owner of `entry`. Returns what was kept before, or `None` if nothing has
    /// changed.
    pub(super) fn insert(&mut self, entry: &Entry, accusation: Accusation) -> Option<Arc<[Accusation]>> {
        let rank = entry.rank();
        let charge = accusation.charge();
        let meant = charge.subject == entry.owner() && (charge.epoch, charge.version) == (rank.epoch, rank.version);
        if !meant || rank.lifecycle == Lifecycle::Left {
            return None;
        }
        let before = self.against(&entry.owner());
        let known = before.iter().find(|known| known.accuser() == accusation.accuser());
        if known.is_some_and(|known| !accusation.replaces(known)) {
            return None;
        }
        let mut kept: Vec<_> = before.iter().filter(|known| known.accuser() != accusation.accuser()).cloned().collect();
        let hash = accusation.id();
        kept.push(accusation);
        kept.sort_by_cached_key(|accusation| Place::of(&accusation.accuser()));
        kept.truncate(ACCUSERS_MAX);
        if !kept.iter().any(|accusation| accusation.id() == hash) {
            return None;
        }
        self.of.insert(entry.owner(), kept.into());
        Some(before)
    }

    /// Drops all accusations against `subject` and returns them.
    pub(super) fn refute(&mut self, subject: &PeerId) -> Arc<[Accusation]> {
        self.of.remove(subject).unwrap_or_default()
    }

    /// Drops all accusations by `accuser`, who is known no more, and returns them.
    pub(super) fn withdraw(&mut self, accuser: &PeerId) -> Vec<Accusation> {
        let mut withdrawn = Vec::new();
        for accusations in self.of.values_mut() {
            let is_theirs = |accusation: &&Accusation| accusation.accuser() == *accuser;
            let Some(theirs) = accusations.iter().find(is_theirs).cloned() else { continue };
            *accusations = accusations.iter().filter(|accusation| !is_theirs(accusation)).cloned().collect();
            withdrawn.push(theirs);
        }
        self.of.retain(|_, accusations| !accusations.is_empty());
        withdrawn
    }

    /// All accusations against `subject`.
    pub(super) fn against(&self, subject: &PeerId) -> Arc<[Accusation]> {
        self.of.get(subject).cloned().unwrap_or_default()
    }

    /// Everybody who is accused, with the accusations.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&PeerId, &Arc<[Accusation]>)> {
        self.of.iter()
    }
}
