//! Signed accusations: what a peer says of another one that does not answer.
//!
//! An accusation never touches its subject's entry. It names one publication of the subject, by epoch and version,
//! and whatever the subject publishes after that refutes it. Like entries, accusations travel as the accuser's
//! signed bytes, and one in hand is always verified.

use crate::{
    id::{Epoch, MeshName},
    sign::{Kind, Refusal, StatementId, TTL, check_age},
    wire::AccusationBody,
};
use libp2p_identity::{Keypair, PeerId};
use prost::Message;
use std::sync::Arc;

const SCHEMA: u32 = 1;
const KIND: Kind = Kind::new(b"otela/accusation/1", ACCUSATION_BYTES_MAX);
/// Largest signed accusation in bytes.
pub const ACCUSATION_BYTES_MAX: usize = 512;

/// What the accuser says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// The subject did not answer on any path: it should get no work.
    Suspect = 1,
    /// And it has stayed silent for the grace period: it counts as Left once enough peers say so.
    Evict = 2,
}

impl Verdict {
    /// The verdict behind a wire number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Suspect, Self::Evict].into_iter().find(|verdict| *verdict as u32 == number)
    }

    /// The verdict's name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Suspect => "suspect",
            Self::Evict => "evict",
        }
    }
}

/// What an accuser is about to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// The subject.
    pub subject: PeerId,
    /// The subject's epoch, as the accuser knows it.
    pub epoch: Epoch,
    /// The subject's version, as the accuser knows it: any later one refutes the charge.
    pub version: u64,
    /// What is said.
    pub verdict: Verdict,
}

/// An accuser's verified statement about another peer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Accusation {
    accuser: PeerId,
    charge: Charge,
    issued_at_ms: u64,
    signed: Arc<[u8]>,
    id: StatementId,
}

impl Accusation {
    /// Signs `charge` as the owner of `key`; `now_ms` is wall time in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// [`Refusal::NotEd25519`] if the key is of another kind.
    pub fn sign(key: &Keypair, mesh: &MeshName, charge: Charge, now_ms: u64) -> Result<Self, Refusal> {
        let accuser = key.public().to_peer_id();
        let body = AccusationBody {
            schema: SCHEMA,
            accuser: accuser.to_bytes(),
            subject: charge.subject.to_bytes(),
            epoch: charge.epoch.0,
            version: charge.version,
            verdict: charge.verdict as u32,
            issued_at_ms: now_ms,
            ttl_s: TTL.as_secs(),
        };
        let (signed, id) = KIND.sign(key, Some(mesh), &body)?;
        Ok(Self { accuser, charge, issued_at_ms: now_ms, signed: signed.encode_to_vec().into(), id })
    }

    /// Checks signed bytes: size, form, the accuser's signature for `mesh`, and age against our wall clock.
    ///
    /// # Errors
    /// The first check that failed.
    pub fn open(signed: &[u8], mesh: &MeshName, now_ms: u64) -> Result<Self, Refusal> {
        let statement = KIND.read::<AccusationBody>(signed)?;
        let accuser = PeerId::from_bytes(&statement.body.accuser).map_err(|_| Refusal::Malformed)?;
        statement.verify(&accuser, Some(mesh))?;
        Self::reopen(signed, now_ms)
    }

    /// As [`Self::open`], for bytes whose signature was checked before: to be told apart by their
    /// [`Fingerprint`](crate::sign::Fingerprint).
    ///
    /// # Errors
    /// The first check that failed.
    pub fn reopen(signed: &[u8], now_ms: u64) -> Result<Self, Refusal> {
        let statement = KIND.read::<AccusationBody>(signed)?;
        let (id, body) = (statement.id(), statement.body);
        let peer = |bytes: &[u8]| PeerId::from_bytes(bytes).map_err(|_| Refusal::Malformed);
        let (accuser, subject) = (peer(&body.accuser)?, peer(&body.subject)?);
        let verdict = Verdict::from_number(body.verdict).ok_or(Refusal::Malformed)?;
        // Nobody can accuse itself: a peer that wants to go says Left.
        if accuser == subject {
            return Err(Refusal::Malformed);
        }
        check_age(body.issued_at_ms, now_ms)?;
        Ok(Self {
            accuser,
            charge: Charge { subject, epoch: Epoch(body.epoch), version: body.version, verdict },
            issued_at_ms: body.issued_at_ms,
            signed: signed.into(),
            id,
        })
    }

    /// Who says it.
    #[must_use]
    pub fn accuser(&self) -> PeerId {
        self.accuser
    }

    /// What is said, and of whom.
    #[must_use]
    pub fn charge(&self) -> &Charge {
        &self.charge
    }

    /// The accuser's wall clock when it was signed, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn issued_at_ms(&self) -> u64 {
        self.issued_at_ms
    }

    /// The accuser's own bytes, to be passed on as they are.
    #[must_use]
    pub fn signed(&self) -> &Arc<[u8]> {
        &self.signed
    }

    /// The name of this statement.
    #[must_use]
    pub fn id(&self) -> StatementId {
        self.id
    }

    /// Whether this one replaces `other` of the same accuser about the same subject: a later publication is meant,
    /// or more is said of the same one. The name decides between twins, so that all replicas agree.
    #[must_use]
    pub fn replaces(&self, other: &Self) -> bool {
        let order = |a: &Self| (a.charge.epoch, a.charge.version, a.charge.verdict, a.id);
        order(self) > order(other)
    }
}

#[cfg(test)]
mod tests;
