//! Names of providers.

use crate::{id::peer_id, sign::verifying_key};
use libp2p_identity::{Keypair, PeerId};
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// On whose behalf a node joins: the fingerprint of the provider's own Ed25519 key. It is written as that key's peer
/// id, which is what `otela key FILE` prints, and holds the public key itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId(PeerId);

/// Why something is not a provider's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a provider's id: one looks like 12D3KooW… and is what `otela key FILE` prints")]
pub struct InvalidProviderId;

impl ProviderId {
    /// The id of whoever holds `key`.
    ///
    /// # Errors
    /// [`InvalidProviderId`] if it is not an Ed25519 key.
    pub fn of(key: &Keypair) -> Result<Self, InvalidProviderId> {
        key.public().to_peer_id().try_into()
    }

    /// The key, named as in lists of keys.
    #[must_use]
    pub fn key(&self) -> &PeerId {
        &self.0
    }
}

impl TryFrom<PeerId> for ProviderId {
    type Error = InvalidProviderId;

    fn try_from(key: PeerId) -> Result<Self, InvalidProviderId> {
        verifying_key(&key).map(|_| Self(key)).map_err(|_| InvalidProviderId)
    }
}

impl FromStr for ProviderId {
    type Err = InvalidProviderId;

    fn from_str(text: &str) -> Result<Self, InvalidProviderId> {
        peer_id(text).map_err(|_| InvalidProviderId)?.try_into()
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for ProviderId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
