//! The admission handshake: what two peers say to each other before anything else.
//!
//! ```text
//! dialer                                     listener
//! preface, hello             ─────────────▶
//!                            ◀─────────────  verdict, hello, proof
//! verdict, proof             ─────────────▶
//!                            ◀─────────────  verdict
//! ```
//!
//! A verdict is one byte, 0 or [`Refused::code`](super::Refused::code); after another than 0 nothing follows. Hello and
//! proof are framed by a length of two bytes, the high one first. A proof is the prover's signature over both hellos,
//! with their nonces, and both ids, so it is good on this connection only, in this direction only.

use super::Refused;
use crate::{
    id::MeshName,
    sign::Domain,
    wire::{HelloBody, Signed},
};
use libp2p_identity::{Keypair, PeerId};
use prost::Message;
use sha2::{Digest, Sha256};

const ADMISSION: Domain = Domain(b"otela/admission/1");
/// What a dialer says first, so that other software is recognised at once.
pub const PREFACE: &[u8] = b"/otela/admission/1\n";
/// Largest hello in bytes.
pub const HELLO_BYTES_MAX: usize = 4096;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Version of the hello.
const SCHEMA: u32 = 1;

/// What a peer shows of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The mesh it belongs to.
    pub mesh: String,
    /// Chosen by chance for this connection.
    pub nonce: [u8; NONCE_BYTES],
    /// A [`Release`](super::Release), if it has one.
    pub release: Option<Signed>,
    /// A [`Membership`](super::Membership), if it has one.
    pub membership: Option<Signed>,
}

impl Hello {
    /// As sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = HelloBody {
            schema: SCHEMA,
            mesh: self.mesh.clone(),
            nonce: self.nonce.to_vec(),
            release: self.release.clone(),
            membership: self.membership.clone(),
            evidence: Vec::new(),
        };
        body.encode_to_vec()
    }

    /// As received.
    ///
    /// # Errors
    /// [`Refused::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Refused> {
        if bytes.len() > HELLO_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        let body = HelloBody::decode(bytes).map_err(|_| Refused::Malformed)?;
        let nonce = body.nonce.try_into().map_err(|_| Refused::Malformed)?;
        if body.schema != SCHEMA {
            return Err(Refused::Malformed);
        }
        Ok(Self { mesh: body.mesh, nonce, release: body.release, membership: body.membership })
    }
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that speaks first.
    Dialer,
    /// The other one.
    Listener,
}

/// The prover's signature over this handshake. `hellos` are those of dialer and listener, as sent.
///
/// # Errors
/// [`Refused::BadProof`] for a key that cannot sign.
pub fn prove(
    key: &Keypair,
    verifier: &PeerId,
    prover_is: Side,
    mesh: &MeshName,
    hellos: [&[u8]; 2],
) -> Result<Vec<u8>, Refused> {
    let body = transcript(&key.public().to_peer_id(), verifier, prover_is, hellos);
    ADMISSION.sign(key, Some(mesh), &body).map_err(|_| Refused::BadProof)
}

/// Checks a proof that `prover` has sent to `verifier`.
///
/// # Errors
/// [`Refused::BadProof`].
pub fn check_proof(
    proof: &[u8],
    [prover, verifier]: [&PeerId; 2],
    prover_is: Side,
    mesh: &MeshName,
    hellos: [&[u8]; 2],
) -> Result<(), Refused> {
    let body = transcript(prover, verifier, prover_is, hellos);
    ADMISSION.verify(prover, Some(mesh), &body, proof).map_err(|_| Refused::BadProof)
}

fn transcript(prover: &PeerId, verifier: &PeerId, prover_is: Side, hellos: [&[u8]; 2]) -> Vec<u8> {
    let mut body = vec![match prover_is {
        Side::Dialer => 0,
        Side::Listener => 1,
    }];
    // Digests instead of the parts themselves: all of one length, so the boundaries are unambiguous.
    for part in [hellos[0], hellos[1], &prover.to_bytes(), &verifier.to_bytes()] {
        body.extend_from_slice(&Sha256::digest(part));
    }
    body
}
