//! Digests: what two replicas need to tell each other to find where they differ.

use crate::{
    entry::{Rank, StatementId},
    id::{Epoch, Place},
    lifecycle::Lifecycle,
    registry::{BUCKETS, Registry, bucket_of},
    wire::{Buckets, Digest, Say},
};
use std::collections::BTreeMap;

/// Lifecycles fit into two bits below the version.
const LIFECYCLE_BITS: u32 = 2;

/// Owners in one digest; with more it is cut by buckets.
const OWNERS_PER_DIGEST: usize = 4_096;

/// Where two replicas differ, by owners' places.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Ours is newer, or theirs is missing.
    pub(super) theirs_to_learn: Vec<Place>,
    /// Theirs is newer, or ours is missing.
    pub(super) ours_to_learn: Vec<Place>,
}

/// An owner's rank, and the head of its mark, as a digest tells them.
type Position = (Rank, u32);

pub(super) fn buckets(registry: &Registry) -> Say {
    Say::Buckets(Buckets { hashes: registry.bucket_roots().iter().map(|root| root.to_vec()).collect() })
}

/// The mask of buckets whose roots differ; `None` if the message is malformed.
pub(super) fn unlike_buckets(registry: &Registry, theirs: &Buckets) -> Option<u32> {
    if theirs.hashes.len() != BUCKETS || theirs.hashes.iter().any(|hash| hash.len() != 16) {
        return None;
    }
    let pairs = registry.bucket_roots().iter().zip(&theirs.hashes).enumerate();
    Some(pairs.filter(|(_, (ours, theirs))| ours[..] != theirs[..]).fold(0, |mask, (b, _)| mask | 1 << b))
}

/// What we have in the buckets of `mask`: in one message, or, in a large registry, in one for each bucket, so that none
/// outgrows a frame.
pub(super) fn digests(registry: &Registry, mask: u32) -> Vec<Say> {
    let buckets = mask & ((1 << BUCKETS) - 1);
    if registry.len() <= OWNERS_PER_DIGEST {
        return vec![digest(registry, buckets)];
    }
    (0..BUCKETS).map(|bucket| 1 << bucket).filter(|bit| buckets & bit != 0).map(|bit| digest(registry, bit)).collect()
}

fn digest(registry: &Registry, mask: u32) -> Say {
    let mut digest = Digest { buckets: mask, ..Digest::default() };
    for (place, entry, mark) in registry.entries_in(mask) {
        let rank = entry.rank();
        digest.places.push(place.0);
        digest.epochs.push(rank.epoch.0);
        digest.versions.push(rank.version << LIFECYCLE_BITS | u64::from(rank.lifecycle.number()));
        digest.hashes.push(short(mark));
    }
    Say::Digest(digest)
}

/// Compares a digest with our replica; `None` if the digest is malformed. Where the ranks are equal and the marks are
/// not, both sides have something to tell: accusations, or two entries of one rank.
pub(super) fn compare(registry: &Registry, theirs: &Digest) -> Option<Difference> {
    let mut known = positions(theirs)?;
    let mut difference = Difference::default();
    for (place, entry, mark) in registry.entries_in(theirs.buckets) {
        let ours = (entry.rank(), short(mark));
        match known.remove(&place) {
            Some(position) if position == ours => {}
            Some((rank, _)) => {
                if rank <= ours.0 {
                    difference.theirs_to_learn.push(place);
                }
                if rank >= ours.0 {
                    difference.ours_to_learn.push(place);
                }
            }
            None => difference.theirs_to_learn.push(place),
        }
    }
    difference.ours_to_learn.extend(known.into_keys());
    Some(difference)
}

fn positions(digest: &Digest) -> Option<BTreeMap<Place, Position>> {
    let owners = digest.places.len();
    if [digest.epochs.len(), digest.versions.len(), digest.hashes.len()] != [owners; 3] {
        return None;
    }
    let mut positions = BTreeMap::new();
    for i in 0..owners {
        let place = Place(digest.places[i]);
        if digest.buckets & (1 << bucket_of(place)) == 0 {
            return None;
        }
        let lifecycle = Lifecycle::from_number(digest.versions[i] as u32 & ((1 << LIFECYCLE_BITS) - 1))?;
        let rank = Rank { epoch: Epoch(digest.epochs[i]), lifecycle, version: digest.versions[i] >> LIFECYCLE_BITS };
        positions.insert(place, (rank, digest.hashes[i]));
    }
    Some(positions)
}

/// The head of a mark.
fn short(mark: StatementId) -> u32 {
    u32::from_be_bytes([mark.0[0], mark.0[1], mark.0[2], mark.0[3]])
}
