//! What signed statements have in common: who signs, what for, and how old entries and accusations may be.

use crate::{clock::millis, id::MeshName};
use libp2p_identity::{KeyType, Keypair, PeerId, PublicKey};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Signed bytes older than their own time to live are dropped; whoever signed them renews them well before.
pub const TTL: Duration = Duration::from_hours(24);
/// How far a signer's clock may run ahead of ours, or behind it: wide, for a clock that is off must not look like a
/// death, and two may be off in opposite directions.
pub const CLOCK_SLACK: Duration = Duration::from_hours(2);

/// A 16-byte name of signed bytes: the head of SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SignedHash(pub [u8; 16]);

impl SignedHash {
    /// The name of `signed`.
    #[must_use]
    pub fn of(signed: &[u8]) -> Self {
        let digest = Sha256::digest(signed);
        let mut head = [0; 16];
        head.copy_from_slice(&digest[..16]);
        Self(head)
    }
}

/// Why signed bytes are not acceptable. Nothing has changed; the cause is counted by [`Refusal::reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Longer than its kind may be.
    #[error("it is larger than its kind may be")]
    TooLarge,
    /// Not the protobuf message it should be, or a field outside its range.
    #[error("it cannot be decoded")]
    Malformed,
    /// The signer's id does not hold an Ed25519 key.
    #[error("the signer is not an Ed25519 peer")]
    NotEd25519,
    /// Not signed by whom it names, or for another mesh.
    #[error("the signature is not the signer's for this mesh")]
    BadSignature,
    /// Issued later than our clock allows.
    #[error("it comes from the future: the signer's clock or ours is wrong")]
    FromTheFuture,
    /// Older than its own time to live.
    #[error("it is older than its time to live")]
    Expired,
}

impl Refusal {
    /// The refusal as a metric label.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::NotEd25519 => "not_ed25519",
            Self::BadSignature => "bad_signature",
            Self::FromTheFuture => "from_the_future",
            Self::Expired => "expired",
        }
    }
}

/// Which kind of statement a signature is for, so that it can never be taken for another kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Domain(pub(crate) &'static [u8]);

impl Domain {
    /// Signs `body` for `mesh`, or for all meshes.
    pub(crate) fn sign(self, key: &Keypair, mesh: Option<&MeshName>, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        key.sign(&self.transcript(mesh, body)).map_err(|_| Refusal::NotEd25519)
    }

    /// Checks that `signer` has signed `body` for `mesh`, or for all meshes.
    pub(crate) fn verify(
        self,
        signer: &PeerId,
        mesh: Option<&MeshName>,
        body: &[u8],
        signature: &[u8],
    ) -> Result<(), Refusal> {
        let good = public_key(signer)?.verify(&self.transcript(mesh, body), signature);
        if good { Ok(()) } else { Err(Refusal::BadSignature) }
    }

    fn transcript(self, mesh: Option<&MeshName>, body: &[u8]) -> Vec<u8> {
        // No mesh has an empty name.
        let name = mesh.map_or("", MeshName::as_str).as_bytes();
        let mut bytes = Vec::with_capacity(self.0.len() + name.len() + 2 + body.len());
        for part in [self.0, name] {
            bytes.extend_from_slice(part);
            // Neither a domain nor a mesh name holds a NUL, so the boundaries are unambiguous.
            bytes.push(0);
        }
        bytes.extend_from_slice(body);
        bytes
    }
}

/// Checks the age of signed bytes against our wall clock. The mesh grants the same life to all: replicas would never
/// be equal where one keeps what another refuses.
pub(crate) fn check_age(issued_at_ms: u64, now_ms: u64) -> Result<(), Refusal> {
    if issued_at_ms > now_ms.saturating_add(millis(CLOCK_SLACK)) {
        return Err(Refusal::FromTheFuture);
    }
    if issued_at_ms.saturating_add(millis(TTL + CLOCK_SLACK)) < now_ms {
        return Err(Refusal::Expired);
    }
    Ok(())
}

/// An Ed25519 peer id holds the public key itself, behind a two-byte identity-hash head.
pub(crate) fn public_key(signer: &PeerId) -> Result<PublicKey, Refusal> {
    let bytes = signer.to_bytes();
    let key = bytes.get(2..).and_then(|key| PublicKey::try_decode_protobuf(key).ok()).ok_or(Refusal::NotEd25519)?;
    if key.key_type() != KeyType::Ed25519 || key.to_peer_id() != *signer {
        return Err(Refusal::NotEd25519);
    }
    Ok(key)
}
