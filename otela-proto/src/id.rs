//! Names of meshes, sessions and places on the ring.

use libp2p_identity::PeerId;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr, sync::Arc};

/// The name of a mesh. It is part of every protocol id and of every signature, so meshes never mix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MeshName(Arc<str>);

/// Why a text is not a mesh name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mesh name {0:?} must be 1 to 63 characters of a-z, 0-9 and '-', not starting or ending with '-'")]
pub struct InvalidMeshName(String);

impl MeshName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MeshName {
    type Err = InvalidMeshName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let edge = name.starts_with('-') || name.ends_with('-');
        if name.is_empty() || name.len() > 63 || edge || !name.chars().all(legal) {
            return Err(InvalidMeshName(name.to_owned()));
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for MeshName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// No peer's id is longer, in any of its forms.
const PEER_ID_CHARS_MAX: usize = 128;

/// Why a text is not a peer's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a peer's id: one looks like 12D3KooW… and is what `otela key FILE` prints")]
pub struct InvalidPeerId;

/// A peer's id as people write it.
///
/// # Errors
/// [`InvalidPeerId`].
pub fn peer_id(text: &str) -> Result<PeerId, InvalidPeerId> {
    // Reading base58 takes time by the square of its length; anybody may have written this.
    if text.len() > PEER_ID_CHARS_MAX {
        return Err(InvalidPeerId);
    }
    text.parse().map_err(|_| InvalidPeerId)
}

/// Which run of a node agent: greater at every start of the same peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of a peer that starts now: wall time in milliseconds, but always above the highest epoch of
    /// its own that the mesh remembers, so that a clock set back cannot make a restart look old.
    #[must_use]
    pub fn at_start(unix_ms: u64, highest_seen: Option<Epoch>) -> Self {
        Self(highest_seen.map_or(unix_ms, |seen| unix_ms.max(seen.0.saturating_add(1))))
    }
}

/// One run of a node agent; recovery after Down or Left is a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// Whose run.
    pub peer: PeerId,
    /// Which run of that peer.
    pub epoch: Epoch,
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.peer, self.epoch.0)
    }
}

impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A peer's place on the ring, and its eight-byte name in digests: the head of SHA-256 over its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

impl Place {
    /// The place of `peer`.
    #[must_use]
    pub fn of(peer: &PeerId) -> Self {
        let hash = Sha256::digest(peer.to_bytes());
        let mut head = [0; 8];
        head.copy_from_slice(&hash[..8]);
        Self(u64::from_be_bytes(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesh_names() {
        for good in ["lab", "a", "eth-2026"] {
            assert_eq!(good.parse::<MeshName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "Lab", "a/b", &"x".repeat(64)] {
            assert!(bad.parse::<MeshName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_longer_than_any_id_is_not_read_at_all() {
        let id = PeerId::random();
        assert_eq!(peer_id(&id.to_string()), Ok(id));
        // To read it would take minutes.
        assert_eq!(peer_id(&"z".repeat(1_000_000)), Err(InvalidPeerId));
        assert!("z".repeat(1_000_000).parse::<crate::provider::ProviderId>().is_err());
    }

    #[test]
    fn epochs_grow_though_the_clock_went_back() {
        assert_eq!(Epoch::at_start(1_000, None), Epoch(1_000));
        assert_eq!(Epoch::at_start(1_000, Some(Epoch(5_000))), Epoch(5_001));
        assert_eq!(Epoch::at_start(9_000, Some(Epoch(5_000))), Epoch(9_000));
    }
}
