//! Why a peer is not admitted: one byte on the wire, words everywhere else.

/// Why a peer is not admitted. It reads the same on both sides: `refused peer …: the binary is not signed`, `refused by
/// peer …: the binary is not signed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refused {
    /// What was said is not the handshake.
    #[error("it does not speak the admission handshake: no otela, or one too old or too new")]
    Malformed,
    /// The two are of different meshes.
    #[error("it is of another mesh: compare the mesh names on both sides")]
    OtherMesh,
    /// No statement about the binary where the mesh asks for one.
    #[error("its binary is not signed: have a maintainer sign it with `otela sign`")]
    Unsigned,
    /// Signed by a key that is not one of the mesh's.
    #[error("its binary is signed by a key that is not a release key of the mesh: compare the mesh files")]
    UnknownKey,
    /// A statement that its signer has not signed.
    #[error("the signature of its binary is not good: sign it again, or install the release again")]
    BadSignature,
    /// The statement about the binary begins later.
    #[error("the signature of its binary is not valid yet: one of the clocks is wrong, or it was meant for later")]
    NotYetValid,
    /// The statement about the binary has ended.
    #[error("the signature of its binary has expired: install a newer release, or have this one signed again")]
    Expired,
    /// Older than the mesh allows.
    #[error("its version is older than the mesh allows: install a newer release")]
    TooOld,
    /// The binary was revoked.
    #[error("its binary was revoked: install a newer release")]
    RevokedBinary,
    /// The key that signed the binary, or the membership, was revoked.
    #[error(
        "the key that signed for it was revoked: install a release, or ask for a membership, signed by another key"
    )]
    RevokedKey,
    /// The peer itself was revoked.
    #[error("it was revoked by its id: ask the operators of the mesh")]
    RevokedPeer,
    /// No membership where the mesh asks for one.
    #[error("it has no membership: ask the operators of the mesh for one, and give it with --membership")]
    NotAMember,
    /// The membership is not one of this peer in this mesh, or its signature is not good.
    #[error("its membership is not good: it is for another peer or mesh, or not signed by an authority of this one")]
    BadMembership,
    /// The membership has ended.
    #[error("its membership has expired: ask the operators of the mesh for another")]
    MembershipExpired,
    /// It could not prove that it holds its key now, for this connection.
    #[error("it could not prove on this connection that it holds its key")]
    BadProof,
    /// It said nothing, or not all, in time.
    #[error("it did not finish the admission handshake in time")]
    TooSlow,
    /// The membership begins later.
    #[error("its membership is not valid yet: one of the clocks is wrong, or it was meant for later")]
    MembershipNotYetValid,
}

impl Refused {
    /// All reasons.
    pub const ALL: [Self; 17] = [
        Self::Malformed,
        Self::OtherMesh,
        Self::Unsigned,
        Self::UnknownKey,
        Self::BadSignature,
        Self::NotYetValid,
        Self::Expired,
        Self::TooOld,
        Self::RevokedBinary,
        Self::RevokedKey,
        Self::RevokedPeer,
        Self::NotAMember,
        Self::BadMembership,
        Self::MembershipExpired,
        Self::BadProof,
        Self::TooSlow,
        Self::MembershipNotYetValid,
    ];

    /// The byte on the wire; 0 is an admission.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Malformed => 1,
            Self::OtherMesh => 2,
            Self::Unsigned => 3,
            Self::UnknownKey => 4,
            Self::BadSignature => 5,
            Self::NotYetValid => 6,
            Self::Expired => 7,
            Self::TooOld => 8,
            Self::RevokedBinary => 9,
            Self::RevokedKey => 10,
            Self::RevokedPeer => 11,
            Self::NotAMember => 12,
            Self::BadMembership => 13,
            Self::MembershipExpired => 14,
            Self::BadProof => 15,
            Self::TooSlow => 16,
            Self::MembershipNotYetValid => 17,
        }
    }

    /// The reason behind a byte from the wire. A newer peer may have reasons that this one does not know.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refused| refused.code() == code)
    }

    /// The reason as a metric label.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OtherMesh => "other_mesh",
            Self::Unsigned => "unsigned",
            Self::UnknownKey => "unknown_key",
            Self::BadSignature => "bad_signature",
            Self::NotYetValid => "not_yet_valid",
            Self::Expired => "expired",
            Self::TooOld => "too_old",
            Self::RevokedBinary => "revoked_binary",
            Self::RevokedKey => "revoked_key",
            Self::RevokedPeer => "revoked_peer",
            Self::NotAMember => "not_a_member",
            Self::BadMembership => "bad_membership",
            Self::MembershipExpired => "membership_expired",
            Self::BadProof => "bad_proof",
            Self::TooSlow => "too_slow",
            Self::MembershipNotYetValid => "membership_not_yet_valid",
        }
    }
}
