//! State files: any bytes, and any content behind a good checksum.
#![no_main]

// Each part of the file is used by the peer, if not here.
#[allow(dead_code)]
#[path = "../../otela-node/src/peer/state/form.rs"]
mod form;

use form::{ADDRESSES_MAX, BYTES_MAX, LISTED_MAX, LISTS_MAX, OWN_MAX, PEERS_MAX, decode, encode, with_head};
use libfuzzer_sys::fuzz_target;
use otela_fuzz::mesh;

fuzz_target!(|data: &[u8]| {
    let _ = decode(data, &mesh());
    let Ok(saved) = decode(&with_head(data), &mesh()) else { return };
    assert!(saved.own.len() <= OWN_MAX && saved.peers.len() <= PEERS_MAX);
    assert!(saved.peers.iter().all(|known| known.addresses.len() <= ADDRESSES_MAX));
    assert!(saved.lists.len() <= LISTS_MAX && saved.lists.values().all(|list| list.len() <= LISTED_MAX));
    let written = encode(&saved, &mesh());
    if written.len() <= BYTES_MAX {
        assert_eq!(decode(&written, &mesh()).expect("what was read can be written and read again"), saved);
    }
});
