//! Signed accusations: bytes of anybody, and bodies that their accuser has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_fuzz::{ACCUSATION, key, mesh, peer, signed};
use otela_proto::{
    accusation::{ACCUSATION_BYTES_MAX, Accusation},
    entry::Refusal,
    wire::AccusationBody,
};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    if let Ok(accusation) = Accusation::open(data, &mesh(), 0) {
        check(&accusation, data);
    }
    let Ok(mut body) = AccusationBody::decode(data) else { return };
    body.accuser = peer(0).to_bytes();
    let bytes = signed(ACCUSATION, &key(0), body.encode_to_vec());
    match Accusation::open(&bytes, &mesh(), body.issued_at_ms) {
        Ok(accusation) => {
            assert_eq!((accusation.accuser(), accusation.charge().version), (peer(0), body.version));
            assert_ne!(accusation.charge().subject, peer(0), "nobody accuses itself");
            check(&accusation, &bytes);
        }
        Err(refusal) => assert_ne!(refusal, Refusal::BadSignature, "it was signed"),
    }
});

fn check(accusation: &Accusation, bytes: &[u8]) {
    assert!(bytes.len() <= ACCUSATION_BYTES_MAX);
    assert_eq!(&accusation.signed()[..], bytes);
}
