//! What others sign about a binary or a peer.

use crate::{
    clock::millis,
    id::MeshName,
    sign::{Kind, Refusal, Statement},
    wire::{MembershipBody, ReleaseBody, Signed},
};
use libp2p_identity::{Keypair, PeerId};
use semver::Version;
use sha2::{Digest, Sha256};
use std::{fmt, str::FromStr, time::Duration};

const RELEASE: Kind = Kind::new(b"otela/release/1", STATEMENT_BYTES_MAX);
const MEMBERSHIP: Kind = Kind::new(b"otela/membership/1", STATEMENT_BYTES_MAX);
/// Largest statement of both kinds in bytes. One has about 250.
const STATEMENT_BYTES_MAX: usize = 512;
/// Version of both messages.
const SCHEMA: u32 = 1;
/// How far a clock may be behind a signer's before a fresh statement looks as if it began later.
const BEGIN_SLACK: Duration = Duration::from_mins(10);
/// No version is longer.
const VERSION_BYTES_MAX: usize = 64;

/// SHA-256 of a binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BinaryDigest(pub [u8; 32]);

impl BinaryDigest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for BinaryDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest: 64 hexadecimal digits are needed, with or without `sha256:` before them")]
pub struct InvalidDigest(String);

impl FromStr for BinaryDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        let invalid = || InvalidDigest(text.to_owned());
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(digest))
    }
}

/// From when and until when a statement counts, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub from_ms: u64,
    /// Not at this time, and not after it.
    pub until_ms: u64,
}

impl Validity {
    /// Whether it begins later than `now_ms`, but for what clocks may differ.
    #[must_use]
    pub fn begins_after(&self, now_ms: u64) -> bool {
        self.from_ms > now_ms.saturating_add(millis(BEGIN_SLACK))
    }

    /// Whether it has ended at `now_ms`.
    #[must_use]
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until_ms <= now_ms
    }

    /// When after `now_ms` it begins or ends, whichever is next; `None` if it has ended.
    #[must_use]
    pub fn next_change_ms(&self, now_ms: u64) -> Option<u64> {
        if self.begins_after(now_ms) {
            Some(self.from_ms - millis(BEGIN_SLACK))
        } else {
            (!self.has_ended(now_ms)).then_some(self.until_ms)
        }
    }
}

/// Why bytes are not a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    /// Not the message it should be.
    #[error("it is damaged, or of a version that this otela does not know")]
    Malformed,
    /// The signature is not that of the key it names, or for another mesh.
    #[error("its signature is not good: it is damaged, or a membership of another mesh")]
    BadSignature,
    /// The signer's key is of another kind.
    #[error("only Ed25519 keys sign")]
    NotEd25519,
}

impl From<Refusal> for StatementError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BadSignature => Self::BadSignature,
            Refusal::NotEd25519 => Self::NotEd25519,
            _ => Self::Malformed,
        }
    }
}

/// What a maintainer says of a binary: that it is otela of this version. It holds for every mesh that trusts the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Which binary.
    pub digest: BinaryDigest,
    /// Its version.
    pub version: Version,
    /// For how long this counts.
    pub validity: Validity,
    /// Who says so.
    pub key: PeerId,
}

impl Release {
    /// Signs the statement that `digest` is `version`.
    ///
    /// # Errors
    /// [`StatementError::NotEd25519`].
    pub fn sign(
        key: &Keypair,
        digest: BinaryDigest,
        version: &Version,
        validity: Validity,
    ) -> Result<Signed, StatementError> {
        let body = ReleaseBody {
            schema: SCHEMA,
            digest: digest.0.to_vec(),
            version: version.to_string(),
            from_ms: validity.from_ms,
            until_ms: validity.until_ms,
            key: key.public().to_peer_id().to_bytes(),
        };
        Ok(RELEASE.sign(key, None, &body)?.0)
    }

    /// Reads a statement and checks its signature. Whether the signer is trusted, and whether it still counts, is the
    /// reader's matter.
    ///
    /// # Errors
    /// [`StatementError`].
    pub fn open(signed: &Signed) -> Result<Self, StatementError> {
        let statement = RELEASE.take::<ReleaseBody>(signed.clone())?;
        let body = &statement.body;
        if body.schema != SCHEMA || body.version.len() > VERSION_BYTES_MAX {
            return Err(StatementError::Malformed);
        }
        let key = PeerId::from_bytes(&body.key).map_err(|_| StatementError::Malformed)?;
        statement.verify(&key, None)?;
        Ok(Self {
            digest: BinaryDigest(body.digest.as_slice().try_into().map_err(|_| StatementError::Malformed)?),
            version: body.version.parse().map_err(|_| StatementError::Malformed)?,
            validity: Validity { from_ms: body.from_ms, until_ms: body.until_ms },
            key,
        })
    }
}

/// What the authority of a private mesh says of a peer: that it belongs to the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Which peer.
    pub member: PeerId,
    /// For how long this counts.
    pub validity: Validity,
    /// Who says so.
    pub authority: PeerId,
}

impl Membership {
    /// Signs the statement that `member` belongs to `mesh`.
    ///
    /// # Errors
    /// [`StatementError::NotEd25519`].
    pub fn sign(
        authority: &Keypair,
        mesh: &MeshName,
        member: &PeerId,
        validity: Validity,
    ) -> Result<Signed, StatementError> {
        let body = MembershipBody {
            schema: SCHEMA,
            member: member.to_bytes(),
            from_ms: validity.from_ms,
            until_ms: validity.until_ms,
            authority: authority.public().to_peer_id().to_bytes(),
        };
        Ok(MEMBERSHIP.sign(authority, Some(mesh), &body)?.0)
    }

    /// Reads a statement about a member of `mesh` and checks its signature.
    ///
    /// # Errors
    /// [`StatementError`].
    pub fn open(signed: &Signed, mesh: &MeshName) -> Result<Self, StatementError> {
        Self::verified(&MEMBERSHIP.take(signed.clone())?, mesh)
    }

    /// As [`Self::open`], for the encoding of a [`Signed`].
    pub(crate) fn read(bytes: &[u8], mesh: &MeshName) -> Result<Self, StatementError> {
        Self::verified(&MEMBERSHIP.read(bytes)?, mesh)
    }

    /// As [`Self::read`], for bytes whose signature was found good for this mesh before.
    pub(crate) fn reread(bytes: &[u8]) -> Result<Self, StatementError> {
        Self::of(&MEMBERSHIP.read(bytes)?.body)
    }

    fn verified(statement: &Statement<MembershipBody>, mesh: &MeshName) -> Result<Self, StatementError> {
        let membership = Self::of(&statement.body)?;
        statement.verify(&membership.authority, Some(mesh))?;
        Ok(membership)
    }

    fn of(body: &MembershipBody) -> Result<Self, StatementError> {
        if body.schema != SCHEMA {
            return Err(StatementError::Malformed);
        }
        let peer = |bytes: &[u8]| PeerId::from_bytes(bytes).map_err(|_| StatementError::Malformed);
        let validity = Validity { from_ms: body.from_ms, until_ms: body.until_ms };
        Ok(Self { member: peer(&body.member)?, validity, authority: peer(&body.authority)? })
    }
}
