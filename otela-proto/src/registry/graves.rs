//! Tombstones: what is remembered of sessions whose entries are no longer kept.
//!
//! An entry cannot come back after its time to live, since everybody refuses it by its signed age. A grave bridges
//! the time from the day that the entry was let go of until then. It holds 40 bytes, and is never sent: a peer that
//! offers what lies in a grave is told so by a signed accusation.

use crate::{
    clock::millis,
    entry::{Entry, Rank},
    id::{Epoch, Place},
    lifecycle::Lifecycle,
    sign::{CLOCK_SLACK, TTL},
};
use std::collections::BTreeMap;

/// Most graves that are kept; of more, those go that would be forgotten first.
pub const GRAVES_MAX: usize = 16_384;

#[derive(Debug, Clone, Copy)]
struct Grave {
    epoch: u64,
    version: u64,
    forget_at_ms: u64,
    lifecycle: Lifecycle,
}

/// The graves by the owners' places. With its key a grave is 40 bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Graves {
    of: BTreeMap<Place, Grave>,
}

impl Graves {
    /// Buries `entry`.
    pub(super) fn dig(&mut self, entry: &Entry) {
        let Rank { epoch, lifecycle, version } = entry.rank();
        let forget_at_ms = entry.issued_at_ms().saturating_add(millis(TTL + 2 * CLOCK_SLACK));
        let grave = Grave { epoch: epoch.0, version, forget_at_ms, lifecycle };
        self.of.insert(Place::of(&entry.owner()), grave);
        if self.of.len() > GRAVES_MAX
            && let Some(oldest) = self.of.iter().min_by_key(|(_, grave)| grave.forget_at_ms).map(|(place, _)| *place)
        {
            self.of.remove(&oldest);
        }
    }

    /// The rank that lies in the grave at `place`.
    pub(super) fn rank(&self, place: Place) -> Option<Rank> {
        let grave = self.of.get(&place)?;
        Some(Rank { epoch: Epoch(grave.epoch), lifecycle: grave.lifecycle, version: grave.version })
    }

    /// The owner speaks again.
    pub(super) fn open(&mut self, place: Place) {
        self.of.remove(&place);
    }

    /// Forgets whose entries nobody would accept any more.
    pub(super) fn forget(&mut self, now_ms: u64) {
        self.of.retain(|_, grave| grave.forget_at_ms > now_ms);
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grave_is_40_bytes_with_its_key() {
        assert_eq!(size_of::<Grave>() + size_of::<Place>(), 40);
    }
}
