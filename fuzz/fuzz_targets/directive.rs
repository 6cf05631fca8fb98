//! Orders of schedulers: bytes of anybody, and bodies that the scheduler has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_fuzz::{DIRECTIVE, key, mesh, peer, signed};
use otela_proto::{
    assignment::{DIRECTIVE_BYTES_MAX, Directive, Invalid},
    wire::DirectiveBody,
};
use prost::Message;

fuzz_target!(|data: &[u8]| {
    if let Ok(directive) = Directive::open(data, &mesh()) {
        check(&directive, data);
    }
    let Ok(mut body) = DirectiveBody::decode(data) else { return };
    body.scheduler = peer(1).to_bytes();
    let bytes = signed(DIRECTIVE, &key(1), body.encode_to_vec());
    match Directive::open(&bytes, &mesh()) {
        Ok(directive) => {
            assert_eq!(directive.ticket.scheduler, peer(1));
            check(&directive, &bytes);
            assert_eq!(Directive::open(&bytes, &"other".parse().expect("a name")), Err(Invalid::BadSignature));
            // What was read can be said again.
            let again = directive.sign(&key(1), &mesh()).expect("it was legal");
            assert_eq!(Directive::open(&again.encode_to_vec(), &mesh()), Ok(directive));
        }
        Err(why) => assert_ne!(why, Invalid::BadSignature, "it was signed"),
    }
});

/// Nothing in it can be an option, a path out, or more than a word.
fn check(directive: &Directive, bytes: &[u8]) {
    assert!(bytes.len() <= DIRECTIVE_BYTES_MAX);
    let Some(work) = &directive.work else { return };
    for name in [&work.template, &work.model] {
        assert!(!name.is_empty() && !name.starts_with('-') && !name.contains(char::is_whitespace));
        assert!(name.split('/').all(|part| part != ".."));
    }
    assert!(work.tensor_parallel >= 1 && work.data_parallel >= 1);
}
