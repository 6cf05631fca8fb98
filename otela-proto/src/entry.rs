//! Signed entries: the only thing that moves the registry.
//!
//! On the wire an entry is a [`wire::Signed`](crate::wire::Signed): the owner's encoded body and the
//! owner's signature over it. [`Entry`] is such bytes after every check has passed; it can be made in two ways
//! only, [`Entry::sign`] and [`Entry::open`], so an `Entry` in hand is always verified.

mod carried;

use crate::{
    admission::{Membership, StatementError},
    id::{Epoch, MeshName, Session},
    lifecycle::Lifecycle,
    payload::{PAYLOAD_BYTES_MAX, Payload},
    provider::{ProviderCertificate, Unproven},
    sign::{Kind, check_age},
    wire::EntryBody,
};
use carried::Carried;
use libp2p_identity::{Keypair, PeerId};
use prost::Message;
use std::{sync::Arc, time::Duration};

pub use crate::sign::{CLOCK_SLACK, Fingerprint, Refusal, StatementId, TTL};

/// The schema that this version writes. Newer ones are read as far as they are known.
const SCHEMA: u32 = 1;
const KIND: Kind = Kind::new(b"otela/entry/1", ENTRY_BYTES_MAX);
/// How often an owner renews its entry though nothing has changed.
pub const RENEW_EVERY: Duration = Duration::from_hours(6);
/// Digests have 62 bits for a version.
pub(crate) const VERSION_MAX: u64 = u64::MAX >> 2;
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

impl Rank {
    /// Which publication of the owner it is: what an accusation names.
    #[must_use]
    pub fn publication(&self) -> (Epoch, u64) {
        (self.epoch, self.version)
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
    id: StatementId,
    certificate: Carried<ProviderCertificate, Unproven>,
    membership: Carried<Membership, StatementError>,
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
        };
        let (signed, id) = KIND.sign(key, Some(mesh), &body)?;
        Ok(Self {
            owner,
            rank: draft.rank,
            issued_at_ms: draft.issued_at_ms,
            certificate: Carried::of(&draft.payload.provider_certificate),
            membership: Carried::of(&draft.payload.membership),
            payload: Arc::new(draft.payload),
            signed: signed.encode_to_vec().into(),
            id,
        })
    }

    /// Checks signed bytes: size, form, owner's signature for `mesh`, and age against our wall clock.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn open(signed: &[u8], mesh: &MeshName, now_ms: u64) -> Result<Self, Refusal> {
        let statement = KIND.read::<EntryBody>(signed)?;
        let owner = PeerId::from_bytes(&statement.body.owner).map_err(|_| Refusal::Malformed)?;
        statement.verify(&owner, Some(mesh))?;
        Self::reopen(signed, now_ms)
    }

    /// As [`Self::open`], for bytes whose signature was checked before: to be told apart by their [`Fingerprint`].
    ///
    /// # Errors
    /// The first check that failed.
    pub fn reopen(signed: &[u8], now_ms: u64) -> Result<Self, Refusal> {
        let statement = KIND.read::<EntryBody>(signed)?;
        let id = statement.id();
        let body = statement.body;
        if body.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        let owner = PeerId::from_bytes(&body.owner).map_err(|_| Refusal::Malformed)?;
        let lifecycle = Lifecycle::from_number(body.lifecycle).ok_or(Refusal::Malformed)?;
        let payload = Payload::decode(body.payload.as_slice()).map_err(|_| Refusal::Malformed)?;
        check_age(body.issued_at_ms, now_ms)?;
        if body.version > VERSION_MAX {
            return Err(Refusal::Malformed);
        }
        Ok(Self {
            owner,
            rank: Rank { epoch: Epoch(body.epoch), lifecycle, version: body.version },
            issued_at_ms: body.issued_at_ms,
            certificate: Carried::of(&payload.provider_certificate),
            membership: Carried::of(&payload.membership),
            payload: Arc::new(payload),
            signed: signed.into(),
            id,
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

    /// The provider certificate that the owner shows, if it shows one: read, and its signature checked, once for all
    /// clones of this entry. Whether it counts is another question.
    #[must_use]
    pub fn certificate(&self) -> Option<&Result<ProviderCertificate, Unproven>> {
        self.certificate.get(|| ProviderCertificate::open(&self.payload.provider_certificate))
    }

    /// The membership of `mesh` that the owner shows, if it shows one: read, and its signature checked, once for all clones
    /// of this entry. Whether it counts is what [`Rules::judge_owner`](crate::admission::Rules::judge_owner) tells.
    #[must_use]
    pub fn membership(&self, mesh: &MeshName) -> Option<&Result<Membership, StatementError>> {
        self.membership.get(|| Membership::read(&self.payload.membership, mesh))
    }

    /// Makes [`Self::membership`] ready, as [`Self::check_certificate`] does for certificates.
    pub fn check_membership(&self, mesh: &MeshName, known: impl FnOnce(&Fingerprint) -> bool) -> Option<Fingerprint> {
        let bytes = &self.payload.membership;
        let hash = Fingerprint::of(bytes);
        let opened = self
            .membership
            .get(|| if known(&hash) { Membership::reread(bytes) } else { Membership::read(bytes, mesh) })?;
        opened.is_ok().then_some(hash)
    }

    /// Makes [`Self::certificate`] ready, which costs as much as the check of the entry itself: for whoever takes
    /// entries from others, where nobody else has to wait for it. `known` tells whether a certificate's bytes, by their
    /// fingerprint, were found good before; then that is not found out again. Returns the fingerprint of a good one.
    pub fn check_certificate(&self, known: impl FnOnce(&Fingerprint) -> bool) -> Option<Fingerprint> {
        let bytes = &self.payload.provider_certificate;
        let hash = Fingerprint::of(bytes);
        let opened = self
            .certificate
            .get(|| if known(&hash) { ProviderCertificate::reopen(bytes) } else { ProviderCertificate::open(bytes) })?;
        opened.is_ok().then_some(hash)
    }

    /// The owner's own bytes, to be passed on as they are.
    #[must_use]
    pub fn signed(&self) -> &Arc<[u8]> {
        &self.signed
    }

    /// The name of this statement.
    #[must_use]
    pub fn id(&self) -> StatementId {
        self.id
    }

    /// Whether this entry replaces `other` of the same owner. Two different entries of one rank can only come
    /// from an owner that broke the rules; the greater name wins, so that all peers agree all the same.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        (self.rank, self.id) > (other.rank, other.id)
    }

    /// Whether this is a later publication of the owner than `other`, which answers what was said against that one.
    #[must_use]
    pub fn refutes(&self, other: &Self) -> bool {
        self.rank.publication() > other.rank.publication()
    }
}

#[cfg(test)]
mod tests;
