//! The one form of all signed statements, and how old entries and accusations may be.
//!
//! A statement is a body and its signer's signature. On the wire it has one encoding, and what it is called is a function
//! of its body: whoever passes it on cannot make a second statement of it. [`Kind`] is the only way to sign and to read.

use crate::{clock::millis, id::MeshName, wire::Signed};
use ed25519_dalek::{Signature, VerifyingKey};
use libp2p_identity::{Keypair, PeerId};
use prost::Message;
use sha2::{Digest, Sha256};
use std::time::Duration;

/// Signed bytes older than their own time to live are dropped; whoever signed them renews them well before.
pub const TTL: Duration = Duration::from_hours(24);
/// How far a signer's clock may run ahead of ours, or behind it: wide, for a clock that is off must not look like a
/// death, and two may be off in opposite directions.
pub const CLOCK_SLACK: Duration = Duration::from_hours(2);

/// The name of a statement, 16 bytes: the head of SHA-256 over its kind and its body. The signature is no part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StatementId(pub [u8; 16]);

/// SHA-256 of the bytes of a statement, signature and all: what a reader remembers of signatures that it found good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of `signed`.
    #[must_use]
    pub fn of(signed: &[u8]) -> Self {
        Self(Sha256::digest(signed).into())
    }
}

/// Why signed bytes are not acceptable. Nothing has changed; the cause is counted by [`Refusal::reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Longer than its kind may be.
    #[error("it is larger than its kind may be")]
    TooLarge,
    /// Not the protobuf message it should be, in another encoding than its one, or a field outside its range.
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
        let signature = Signature::from_slice(signature).map_err(|_| Refusal::BadSignature)?;
        // Strict: of one key, one body has no second signature that others could make.
        let good = verifying_key(signer)?.verify_strict(&self.transcript(mesh, body), &signature);
        good.map_err(|_| Refusal::BadSignature)
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

/// The identity multihash and the protobuf fields before the key in an Ed25519 peer id.
const ED25519_HEAD: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// The public key that an Ed25519 peer id holds.
pub(crate) fn verifying_key(signer: &PeerId) -> Result<VerifyingKey, Refusal> {
    let bytes = signer.to_bytes();
    let key = bytes.strip_prefix(&ED25519_HEAD).and_then(|key| key.try_into().ok()).ok_or(Refusal::NotEd25519)?;
    let key = VerifyingKey::from_bytes(key).map_err(|_| Refusal::NotEd25519)?;
    // Such a key has one signature that is good for every body.
    if key.is_weak() { Err(Refusal::NotEd25519) } else { Ok(key) }
}

/// A kind of statement: what its signatures are for, and how large one may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    domain: Domain,
    bytes_max: usize,
}

/// A statement of which the form is right. Its signature is not looked at before [`Self::verify`].
#[derive(Debug)]
pub(crate) struct Statement<B> {
    /// What it says.
    pub(crate) body: B,
    kind: Kind,
    signed: Signed,
}

impl Kind {
    /// The kind whose signatures are for `domain`, of at most `bytes_max` bytes on the wire.
    pub(crate) const fn new(domain: &'static [u8], bytes_max: usize) -> Self {
        Self { domain: Domain(domain), bytes_max }
    }

    /// Signs `body` for `mesh`, or for all meshes.
    pub(crate) fn sign(
        self,
        key: &Keypair,
        mesh: Option<&MeshName>,
        body: &impl Message,
    ) -> Result<(Signed, StatementId), Refusal> {
        let body = body.encode_to_vec();
        let id = self.id(&body);
        let signature = self.domain.sign(key, mesh, &body)?;
        let signed = Signed { body, signature };
        if signed.encoded_len() > self.bytes_max { Err(Refusal::TooLarge) } else { Ok((signed, id)) }
    }

    /// Reads a statement from the wire.
    pub(crate) fn read<B: Message + Default>(self, bytes: &[u8]) -> Result<Statement<B>, Refusal> {
        if bytes.len() > self.bytes_max {
            return Err(Refusal::TooLarge);
        }
        self.take(Signed::read(bytes)?)
    }

    /// Reads a statement that was part of another message.
    pub(crate) fn take<B: Message + Default>(self, signed: Signed) -> Result<Statement<B>, Refusal> {
        if signed.encoded_len() > self.bytes_max {
            return Err(Refusal::TooLarge);
        }
        let body = B::decode(signed.body.as_slice()).map_err(|_| Refusal::Malformed)?;
        Ok(Statement { body, kind: self, signed })
    }

    fn id(self, body: &[u8]) -> StatementId {
        let digest = Sha256::new().chain_update(self.domain.0).chain_update([0]).chain_update(body).finalize();
        let mut head = [0; 16];
        head.copy_from_slice(&digest[..16]);
        StatementId(head)
    }
}

impl<B> Statement<B> {
    /// The name of the statement.
    pub(crate) fn id(&self) -> StatementId {
        self.kind.id(&self.signed.body)
    }

    /// Checks that `signer` has signed it for `mesh`, or for all meshes.
    pub(crate) fn verify(&self, signer: &PeerId, mesh: Option<&MeshName>) -> Result<(), Refusal> {
        self.kind.domain.verify(signer, mesh, &self.signed.body, &self.signed.signature)
    }
}

impl Signed {
    /// Reads a statement in its one encoding. Others of the same content, with fields that this version does not know or
    /// in another order, are refused: they could be told apart from it though its signer made one.
    ///
    /// # Errors
    /// [`Refusal::Malformed`].
    pub fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let signed = Self::decode(bytes).map_err(|_| Refusal::Malformed)?;
        if signed.encode_to_vec() == bytes { Ok(signed) } else { Err(Refusal::Malformed) }
    }
}

#[cfg(test)]
mod tests;
