//! What a peer says of itself, without the signature around it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_proto::payload::{Payload, Role};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let Ok(payload) = Payload::decode(data) else { return };
    let written = payload.encode_to_vec();
    assert_eq!(written.len(), payload.size_bytes());
    assert_eq!(Payload::decode(written.as_slice()).expect("it was a payload"), payload);
    assert!(payload.multiaddrs().count() <= payload.addresses.len());
    for address in payload.multiaddrs() {
        // Addresses are shown, and read again from a state file.
        let _ = address.to_string().parse::<multiaddr::Multiaddr>();
    }
    let of_services: usize = payload.services.iter().map(|service| service.models.len()).sum();
    assert_eq!(payload.models().count(), of_services);
    let _ = payload.has_role(Role::Ingress);
});
