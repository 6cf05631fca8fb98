//! Who may connect: signed statements about binaries and members, the rules of a mesh, and the handshake in which peers
//! show each other their statements (OpenTela section 3.3).
//!
//! Pure: bytes come in, bytes and verdicts go out. The transport carries them before anything else is said on a
//! connection. Maintainers sign [`Release`]s, the authority of a private mesh signs [`Membership`]s; both name keys as
//! peer ids, which of Ed25519 keys hold the public key itself.

mod handshake;
mod refused;
mod rules;
mod statement;

pub use handshake::{HELLO_BYTES_MAX, Hello, NONCE_BYTES, PREFACE, Side, check_proof, prove};
pub use refused::Refused;
pub use rules::{Credentials, Rules};
pub use statement::{BinaryDigest, InvalidDigest, Membership, Release, StatementError, Validity};

#[cfg(test)]
mod tests;
