//! Signed entries: the only thing that moves the registry.
//!
//! On the wire an entry is [`wire::SignedEntry`](crate::wire::SignedEntry): the owner's encoded body and the
//! owner's signature over it. [`Entry`] is such bytes after every check has passed; it can be made in two ways
//! only, [`Entry::sign`] and [`Entry::open`], so an `Entry` in hand is always verified.

use crate::{
    id::{Epoch, MeshName, Session},
    lifecycle::Lifecycle,
    payload::{PAYLOAD_BYTES_MAX, Payload},
    wire::{EntryBody, SignedEntry},
};
use libp2p_identity::{KeyType, Keypair, PeerId, PublicKey};
use prost::Message;
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// The schema that this version writes. Newer ones are read as far as they are known.
const SCHEMA: u32 = 1;
/// Signs entries and nothing else, so that a signature can never be taken for another kind of statement.
const DOMAIN: &[u8] = b"otela/entry/1\0";
/// An entry older than its own time to live is dropped; the owner renews well before.
pub const TTL: Duration = Duration::from_hours(24);
/// How often an owner renews its entry though nothing has changed.
pub const RENEW_EVERY: Duration = Duration::from_hours(6);
/// How far an owner's clock may run ahead of ours.
pub const CLOCK_SLACK: Duration = Duration::from_mins(15);
/// Largest signed entry: payload and all the rest.
pub const ENTRY_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + 256;

/// Where an entry stands in the order of its owner's entries: greater replaces lesser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    /// Which run of the owner.
    pub epoch: Epoch,
    /// How far that run has come.
    pub lifecycle: Lifecycle,
    /// Which publication within that state.
    pub version: u64,
}

/// A 16-byte name of signed bytes: the head of SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryHash(pub [u8; 16]);

/// Why bytes are not an acceptable entry. Nothing has changed; the cause is counted by [`Refusal::reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Longer than [`ENTRY_BYTES_MAX`], or its payload than [`PAYLOAD_BYTES_MAX`].
    #[error("entry is larger than {ENTRY_BYTES_MAX} bytes")]
    TooLarge,
    /// Not the protobuf message it should be, or a field outside its range.
    #[error("entry cannot be decoded")]
    Malformed,
    /// The owner's id does not hold an Ed25519 key.
    #[error("owner is not an Ed25519 peer")]
    NotEd25519,
    /// Not signed by its owner for this mesh.
    #[error("signature is not the owner's for this mesh")]
    BadSignature,
    /// Issued later than our clock allows.
    #[error("entry comes from the future: the owner's clock or ours is wrong")]
    FromTheFuture,
    /// Older than its own time to live.
    #[error("entry is older than its time to live")]
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

/// What an owner is about to say.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Its place in the order.
    pub rank: Rank,
    /// The owner's wall clock, in milliseconds since the Unix epoch.
    pub issued_at_ms: u64,
    /// What the owner says of itself.
    pub payload: Payload,
}

/// An owner's verified statement about itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Entry {
    owner: PeerId,
    rank: Rank,
    issued_at_ms: u64,
    payload: Arc<Payload>,
    signed: Arc<[u8]>,
    hash: EntryHash,
}

impl Entry {
    /// Signs `draft` as the owner of `key`.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if the payload would be refused by others; [`Refusal::NotEd25519`] if the key is
    /// of another kind.
    pub fn sign(key: &Keypair, mesh: &MeshName, draft: Draft) -> Result<Self, Refusal> {
        let payload = draft.payload.encode_to_vec();
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        let owner = key.public().to_peer_id();
        let body = EntryBody {
            schema: SCHEMA,
            owner: owner.to_bytes(),
            epoch: draft.rank.epoch.0,
            lifecycle: draft.rank.lifecycle.number().into(),
            version: draft.rank.version,
            issued_at_ms: draft.issued_at_ms,
            ttl_s: TTL.as_secs(),
            payload,
        }
        .encode_to_vec();
        let signature = key.sign(&transcript(mesh, &body)).map_err(|_| Refusal::NotEd25519)?;
        let signed: Arc<[u8]> = SignedEntry { body, signature }.encode_to_vec().into();
        let hash = hash(&signed);
        Ok(Self {
            owner,
            rank: draft.rank,
            issued_at_ms: draft.issued_at_ms,
            payload: Arc::new(draft.payload),
            signed,
            hash,
        })
    }

    /// Checks signed bytes: size, form, owner's signature for `mesh`, and age against our wall clock.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn open(signed: &[u8], mesh: &MeshName, now_ms: u64) -> Result<Self, Refusal> {
        if signed.len() > ENTRY_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        let message = SignedEntry::decode(signed).map_err(|_| Refusal::Malformed)?;
        let body = EntryBody::decode(message.body.as_slice()).map_err(|_| Refusal::Malformed)?;
        if body.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        let owner = PeerId::from_bytes(&body.owner).map_err(|_| Refusal::Malformed)?;
        let lifecycle = Lifecycle::from_number(body.lifecycle).ok_or(Refusal::Malformed)?;
        let payload = Payload::decode(body.payload.as_slice()).map_err(|_| Refusal::Malformed)?;
        check_age(&body, now_ms)?;
        if !public_key(&owner)?.verify(&transcript(mesh, &message.body), &message.signature) {
            return Err(Refusal::BadSignature);
        }
        Ok(Self {
            owner,
            rank: Rank { epoch: Epoch(body.epoch), lifecycle, version: body.version },
            issued_at_ms: body.issued_at_ms,
            payload: Arc::new(payload),
            signed: signed.into(),
            hash: hash(signed),
        })
    }

    /// Who says it, of itself.
    #[must_use]
    pub fn owner(&self) -> PeerId {
        self.owner
    }

    /// The run of the owner that it belongs to.
    #[must_use]
    pub fn session(&self) -> Session {
        Session { peer: self.owner, epoch: self.rank.epoch }
    }

    /// Its place among the owner's entries.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The owner's wall clock when it was signed, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn issued_at_ms(&self) -> u64 {
        self.issued_at_ms
    }

    /// What the owner says of itself.
    #[must_use]
    pub fn payload(&self) -> &Arc<Payload> {
        &self.payload
    }

    /// The owner's own bytes, to be passed on as they are.
    #[must_use]
    pub fn signed(&self) -> &Arc<[u8]> {
        &self.signed
    }

    /// The name of these signed bytes.
    #[must_use]
    pub fn hash(&self) -> EntryHash {
        self.hash
    }

    /// Whether this entry replaces `other` of the same owner. Two different entries of one rank can only come
    /// from an owner that broke the rules; the greater hash wins, so that all peers agree all the same.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        (self.rank, self.hash) > (other.rank, other.hash)
    }
}

/// The hash that [`Entry::hash`] would have for these bytes, without checking them.
#[must_use]
pub fn hash(signed: &[u8]) -> EntryHash {
    let digest = Sha256::digest(signed);
    let mut head = [0; 16];
    head.copy_from_slice(&digest[..16]);
    EntryHash(head)
}

fn check_age(body: &EntryBody, now_ms: u64) -> Result<(), Refusal> {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    if body.issued_at_ms > now_ms.saturating_add(millis(CLOCK_SLACK)) {
        return Err(Refusal::FromTheFuture);
    }
    // Nobody may ask for a longer life than the mesh grants.
    let ttl_ms = body.ttl_s.saturating_mul(1000).min(millis(TTL)).saturating_add(millis(CLOCK_SLACK));
    if body.issued_at_ms.saturating_add(ttl_ms) < now_ms {
        return Err(Refusal::Expired);
    }
    Ok(())
}

/// An Ed25519 peer id holds the public key itself, behind a two-byte identity-hash head.
fn public_key(owner: &PeerId) -> Result<PublicKey, Refusal> {
    let bytes = owner.to_bytes();
    let key = bytes.get(2..).and_then(|key| PublicKey::try_decode_protobuf(key).ok()).ok_or(Refusal::NotEd25519)?;
    if key.key_type() != KeyType::Ed25519 || key.to_peer_id() != *owner {
        return Err(Refusal::NotEd25519);
    }
    Ok(key)
}

fn transcript(mesh: &MeshName, body: &[u8]) -> Vec<u8> {
    let name = mesh.as_str().as_bytes();
    let mut bytes = Vec::with_capacity(DOMAIN.len() + name.len() + 1 + body.len());
    bytes.extend_from_slice(DOMAIN);
    bytes.extend_from_slice(name);
    // A mesh name holds no NUL, so the boundary is unambiguous.
    bytes.push(0);
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests;
