//! Whom a mesh admits.

use super::{Hello, Membership, Refused, Release, StatementError, statement::BinaryDigest};
use crate::{entry::Entry, id::MeshName, wire::Signed};
use libp2p_identity::PeerId;
use semver::Version;
use std::collections::BTreeSet;

/// Whom a mesh admits. Every peer of it keeps the same rules and applies them to every connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Name of the mesh.
    pub mesh: MeshName,
    /// The keys of those who may sign releases.
    pub release_keys: BTreeSet<PeerId>,
    /// Whether only signed binaries are admitted.
    pub require_signed: bool,
    /// The oldest version admitted, of what is signed.
    pub min_version: Option<Version>,
    /// The keys of those who may sign memberships. If there are any, only members are admitted.
    pub authorities: BTreeSet<PeerId>,
    /// Binaries that are not admitted any more.
    pub revoked_binaries: BTreeSet<BinaryDigest>,
    /// Keys, of releases, memberships and provider certificates, that do not count any more.
    pub revoked_keys: BTreeSet<PeerId>,
    /// Peers that are not admitted any more.
    pub revoked_peers: BTreeSet<PeerId>,
}

/// What a peer has shown, with good signatures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Credentials {
    /// What a maintainer says of its binary.
    pub release: Option<Release>,
    /// What an authority says of it.
    pub membership: Option<Membership>,
}

impl Rules {
    /// Rules that admit everybody who names this mesh.
    #[must_use]
    pub fn open(mesh: MeshName) -> Self {
        Self {
            mesh,
            release_keys: BTreeSet::new(),
            require_signed: false,
            min_version: None,
            authorities: BTreeSet::new(),
            revoked_binaries: BTreeSet::new(),
            revoked_keys: BTreeSet::new(),
            revoked_peers: BTreeSet::new(),
        }
    }

    /// Whether anybody who names this mesh is admitted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.require_signed && self.authorities.is_empty()
    }

    /// Reads what `peer` shows and decides.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn admit(&self, peer: &PeerId, hello: &Hello, now_ms: u64) -> Result<Credentials, Refused> {
        self.admit_with(Release::open, peer, hello, now_ms)
    }

    /// As [`Self::admit`], where `open` does what [`Release::open`] does: it may know some already.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn admit_with(
        &self,
        open: impl FnOnce(&Signed) -> Result<Release, StatementError>,
        peer: &PeerId,
        hello: &Hello,
        now_ms: u64,
    ) -> Result<Credentials, Refused> {
        if hello.mesh != self.mesh.as_str() {
            return Err(Refused::OtherMesh);
        }
        let release = hello.release.as_ref().map(open).transpose();
        // Where nobody asks for signatures one that is not good is as good as none.
        let release = if self.require_signed { release.map_err(of_release)? } else { release.unwrap_or_default() };
        let membership = hello.membership.as_ref().map(|signed| Membership::open(signed, &self.mesh)).transpose();
        let membership = if self.authorities.is_empty() {
            membership.unwrap_or_default()
        } else {
            membership.map_err(|_| Refused::BadMembership)?
        };
        let credentials = Credentials { release, membership };
        self.judge(peer, &credentials, now_ms)?;
        Ok(credentials)
    }

    /// Decides about what `peer` has shown, again when the rules have changed or time has passed.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn judge(&self, peer: &PeerId, credentials: &Credentials, now_ms: u64) -> Result<(), Refused> {
        if self.revoked_peers.contains(peer) {
            return Err(Refused::RevokedPeer);
        }
        self.judge_release(credentials.release.as_ref(), now_ms)?;
        self.judge_membership(peer, credentials.membership.as_ref(), now_ms)
    }

    /// Decides whether what `owner` says of itself and of others counts, wherever it is heard: where only members are
    /// admitted, with the membership that its entry carries, as on its own connections. What a binary shows is bound to a
    /// connection and no part of this.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn judge_owner(&self, owner: &PeerId, entry: &Entry, now_ms: u64) -> Result<(), Refused> {
        if self.revoked_peers.contains(owner) {
            return Err(Refused::RevokedPeer);
        }
        if self.authorities.is_empty() {
            return Ok(());
        }
        let membership = entry.membership(&self.mesh).map(|read| read.as_ref().map_err(|_| Refused::BadMembership));
        self.judge_membership(owner, membership.transpose()?, now_ms)
    }

    fn judge_release(&self, release: Option<&Release>, now_ms: u64) -> Result<(), Refused> {
        let Some(release) = release else {
            return if self.require_signed { Err(Refused::Unsigned) } else { Ok(()) };
        };
        if self.revoked_binaries.contains(&release.digest) {
            return Err(Refused::RevokedBinary);
        }
        if self.revoked_keys.contains(&release.key) {
            return Err(Refused::RevokedKey);
        }
        if !self.require_signed {
            return Ok(());
        }
        if !self.release_keys.contains(&release.key) {
            return Err(Refused::UnknownKey);
        }
        if release.validity.begins_after(now_ms) {
            return Err(Refused::NotYetValid);
        }
        if release.validity.has_ended(now_ms) {
            return Err(Refused::Expired);
        }
        if self.min_version.as_ref().is_some_and(|oldest| release.version < *oldest) {
            return Err(Refused::TooOld);
        }
        Ok(())
    }

    fn judge_membership(&self, peer: &PeerId, membership: Option<&Membership>, now_ms: u64) -> Result<(), Refused> {
        if self.authorities.is_empty() {
            return Ok(());
        }
        let membership = membership.ok_or(Refused::NotAMember)?;
        if self.revoked_keys.contains(&membership.authority) {
            return Err(Refused::RevokedKey);
        }
        if membership.member != *peer || !self.authorities.contains(&membership.authority) {
            return Err(Refused::BadMembership);
        }
        if membership.validity.begins_after(now_ms) {
            return Err(Refused::MembershipNotYetValid);
        }
        if membership.validity.has_ended(now_ms) {
            return Err(Refused::MembershipExpired);
        }
        Ok(())
    }
}

fn of_release(error: StatementError) -> Refused {
    match error {
        StatementError::Malformed => Refused::Malformed,
        StatementError::BadSignature | StatementError::NotEd25519 => Refused::BadSignature,
    }
}
