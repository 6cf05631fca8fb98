//! The content of a key file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_proto::Keypair;

fuzz_target!(|data: &[u8]| {
    let Ok(keypair) = Keypair::from_protobuf_encoding(data) else { return };
    let written = keypair.to_protobuf_encoding().expect("what was read can be written");
    let again = Keypair::from_protobuf_encoding(&written).expect("and read again");
    assert_eq!(again.public(), keypair.public());
    let signature = keypair.sign(b"x").expect("a key signs");
    assert!(keypair.public().verify(b"x", &signature));
});
