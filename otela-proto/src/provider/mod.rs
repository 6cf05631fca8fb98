//! On whose behalf a node joins, and how it proves that (OpenTela section 3.3).
//!
//! A provider has a key of its own. With it it signs a [`ProviderCertificate`] for each of its nodes, and the node shows
//! that in its entry. A certificate that does not count never spoils the entry: the node is there, and its provider is
//! unverified. The signature is checked once for each entry (see [`Entry`](crate::entry::Entry::certificate)); whether
//! the certificate counts is judged with each view, since time and revocations change that.

mod certificate;
mod id;

pub use certificate::{CERTIFICATE_BYTES_MAX, ProviderCertificate, ProviderRules, Terms};
pub use id::{InvalidProviderId, ProviderId};

use crate::sign::Refusal;
use libp2p_identity::PeerId;
use std::collections::BTreeMap;

/// The label in which a node names its provider. Anybody can write anything there.
pub const PROVIDER_LABEL: &str = "provider";

/// Why it is not proven for whom a node is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Unproven {
    /// The node only names a provider.
    #[error("it shows no certificate")]
    NoCertificate,
    /// Longer than [`CERTIFICATE_BYTES_MAX`].
    #[error("the certificate is larger than one may be: ask for fewer or shorter labels")]
    TooLarge,
    /// Not the message it should be.
    #[error("the certificate is damaged")]
    Malformed,
    /// Of a later version.
    #[error("the certificate is of a version that this otela does not know")]
    UnknownVersion,
    /// The provider's key is of another kind.
    #[error("only Ed25519 keys sign")]
    NotEd25519,
    /// Not signed by the provider that it names.
    #[error("the certificate's signature is not its provider's")]
    BadSignature,
    /// Signed for another node.
    #[error("the certificate is for another peer")]
    OtherPeer,
    /// Signed for another mesh.
    #[error("the certificate is for another mesh")]
    OtherMesh,
    /// The node has not the labels that are asked for.
    #[error("the certificate asks for labels that the node does not have")]
    OtherLabels,
    /// It counts later.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// It has ended.
    #[error("the certificate has expired")]
    Expired,
    /// The mesh has revoked the provider's key.
    #[error("the provider's key is revoked")]
    RevokedKey,
}

impl Unproven {
    /// The reason as a word of the API.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::UnknownVersion => "unknown_version",
            Self::NotEd25519 => "not_ed25519",
            Self::BadSignature => "bad_signature",
            Self::OtherPeer => "other_peer",
            Self::OtherMesh => "other_mesh",
            Self::OtherLabels => "other_labels",
            Self::NotYetValid => "not_yet_valid",
            Self::Expired => "expired",
            Self::RevokedKey => "revoked_key",
        }
    }
}

impl From<Refusal> for Unproven {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotEd25519 => Self::NotEd25519,
            Refusal::BadSignature => Self::BadSignature,
            Refusal::TooLarge => Self::TooLarge,
            Refusal::Malformed | Refusal::FromTheFuture | Refusal::Expired => Self::Malformed,
        }
    }
}

/// For whom a node is run, as far as that is proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Provider {
    /// It says nothing of that.
    #[default]
    None,
    /// It says so and does not prove it.
    Unverified {
        /// Whose certificate it shows, if that can be read at all.
        claimed: Option<ProviderId>,
        /// Why that proves nothing.
        why: Unproven,
    },
    /// Its certificate counts.
    Verified {
        /// Whose it is.
        id: ProviderId,
        /// When the certificate ends, in milliseconds since the Unix epoch.
        until_ms: u64,
    },
}

impl Provider {
    /// The provider, if it is proven.
    #[must_use]
    pub const fn verified(&self) -> Option<&ProviderId> {
        match self {
            Self::Verified { id, .. } => Some(id),
            Self::None | Self::Unverified { .. } => None,
        }
    }

    /// That of `peer`, whose entry has `labels` and shows `certificate`, at `now_ms` by our wall clock.
    #[must_use]
    pub fn judge(
        certificate: Option<&Result<ProviderCertificate, Unproven>>,
        peer: &PeerId,
        labels: &BTreeMap<String, String>,
        rules: &ProviderRules,
        now_ms: u64,
    ) -> Self {
        match certificate {
            None if labels.contains_key(PROVIDER_LABEL) => {
                Self::Unverified { claimed: None, why: Unproven::NoCertificate }
            }
            None => Self::None,
            Some(Err(why)) => Self::Unverified { claimed: None, why: *why },
            Some(Ok(certificate)) => match certificate.verify(peer, labels, rules, now_ms) {
                Ok(id) => Self::Verified { id, until_ms: certificate.terms().validity.until_ms },
                Err(why) => Self::Unverified { claimed: Some(*certificate.provider()), why },
            },
        }
    }
}

#[cfg(test)]
mod tests;
