//! Signed entries: bytes of anybody, and bodies that their owner has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_fuzz::{ENTRY, key, mesh, peer, signed};
use otela_proto::{
    entry::{CLOCK_SLACK, ENTRY_BYTES_MAX, Entry, Refusal},
    payload::PAYLOAD_BYTES_MAX,
    wire::EntryBody,
};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    if let Ok(entry) = Entry::open(data, &mesh(), 0) {
        check(&entry, data);
    }
    let Ok(mut body) = EntryBody::decode(data) else { return };
    body.owner = peer(0).to_bytes();
    let bytes = signed(ENTRY, &key(0), body.encode_to_vec());
    match Entry::open(&bytes, &mesh(), body.issued_at_ms) {
        Ok(entry) => {
            assert_eq!((entry.owner(), entry.rank().epoch.0), (peer(0), body.epoch));
            check(&entry, &bytes);
            let early = body.issued_at_ms.saturating_sub(CLOCK_SLACK.as_millis() as u64 + 1);
            if early > 0 {
                assert_eq!(Entry::open(&bytes, &mesh(), early).err(), Some(Refusal::FromTheFuture));
            }
            let mut forged = bytes.clone();
            forged[bytes.len() - 1] ^= 1;
            assert!(Entry::open(&forged, &mesh(), body.issued_at_ms).is_err());
        }
        Err(refusal) => assert_ne!(refusal, Refusal::BadSignature, "it was signed"),
    }
});

fn check(entry: &Entry, bytes: &[u8]) {
    assert!(bytes.len() <= ENTRY_BYTES_MAX);
    assert_eq!(&entry.signed()[..], bytes);
    assert!(!entry.replaces(entry));
    let payload = entry.payload();
    assert!(payload.size_bytes() <= 2 * PAYLOAD_BYTES_MAX, "what is known of it is hardly longer than what was sent");
    assert!(payload.multiaddrs().count() <= payload.addresses.len());
    let _ = payload.models().count();
}
