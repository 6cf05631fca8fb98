//! What several targets need: keys, and signatures over whatever the fuzzer has made up.
//!
//! Signatures end every search for what lies behind them, so the targets sign what they are given: a liar in the mesh
//! can do that too.

use otela_proto::{Keypair, PeerId, id::MeshName, wire::Signed};
use prost::Message;

/// What precedes an entry's body in what is signed.
pub const ENTRY: &str = "otela/entry/1";
/// The same for an accusation.
pub const ACCUSATION: &str = "otela/accusation/1";
/// The same for a statement about a binary, which is for all meshes.
pub const RELEASE: &str = "otela/release/1";
/// The same for a membership.
pub const MEMBERSHIP: &str = "otela/membership/1";
/// The same for what a provider says of a node.
pub const PROVIDER: &str = "otela/provider/1";
/// The same for what a scheduler tells a node.
pub const DIRECTIVE: &str = "otela/directive/1";

/// The mesh that everything is signed for.
pub fn mesh() -> MeshName {
    "fuzz".parse().expect("a legal name")
}

/// One of 256 keys, always the same.
pub fn key(n: u8) -> Keypair {
    let mut seed = [n; 32];
    Keypair::ed25519_from_bytes(&mut seed).expect("any 32 bytes are a key")
}

/// The id that belongs to [`key`].
pub fn peer(n: u8) -> PeerId {
    key(n).public().to_peer_id()
}

/// `body` with a good signature.
pub fn signed(domain: &str, key: &Keypair, body: Vec<u8>) -> Vec<u8> {
    message(domain, mesh().as_str(), key, body).encode_to_vec()
}

/// The same as a message, for the mesh of this name; an empty one stands for all meshes.
pub fn message(domain: &str, mesh: &str, key: &Keypair, body: Vec<u8>) -> Signed {
    let mut transcript = format!("{domain}\0{mesh}\0").into_bytes();
    transcript.extend_from_slice(&body);
    let signature = key.sign(&transcript).expect("an Ed25519 key signs anything");
    Signed { body, signature }
}
