//! What a stranger says at the door: bytes of anybody, and statements that a maintainer or an authority has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_fuzz::{MEMBERSHIP, RELEASE, key, mesh, message, peer};
use otela_proto::{
    admission::{HELLO_BYTES_MAX, Hello, Refused, Rules},
    wire::{HelloBody, MembershipBody, ReleaseBody},
};
use prost::Message;

const NOW_MS: u64 = 1_800_000_000_000;

/// Whatever is said is judged and never trusted blindly.
fn judge(rules: &Rules, hello: &Hello) {
    match rules.admit(&peer(0), hello, NOW_MS) {
        Ok(credentials) => {
            let release = credentials.release.as_ref().expect("the mesh asks for one");
            assert_eq!(release.key, peer(1));
            assert!(!release.validity.has_ended(NOW_MS) && !release.validity.begins_after(NOW_MS));
            let membership = credentials.membership.as_ref().expect("and for this");
            assert_eq!((membership.member, membership.authority), (peer(0), peer(2)));
            assert_eq!(rules.judge(&peer(0), &credentials, NOW_MS), Ok(()));
        }
        Err(refused) => assert!(refused != Refused::BadProof, "that is another step"),
    }
}

fuzz_target!(|data: &[u8]| {
    let rules = Rules {
        release_keys: [peer(1)].into(),
        require_signed: true,
        authorities: [peer(2)].into(),
        ..Rules::open(mesh())
    };
    if let Ok(hello) = Hello::decode(data) {
        assert!(data.len() <= HELLO_BYTES_MAX);
        assert_eq!(Hello::decode(&hello.encode()).as_ref(), Ok(&hello));
        // The corpus has good signatures; what is made of them has not.
        judge(&rules, &hello);
    }
    // The same with good signatures below it.
    let Ok(mut body) = HelloBody::decode(data) else { return };
    if let Some(release) = &mut body.release
        && let Ok(mut statement) = ReleaseBody::decode(&*release.body)
    {
        statement.key = peer(1).to_bytes();
        *release = message(RELEASE, "", &key(1), statement.encode_to_vec());
    }
    if let Some(membership) = &mut body.membership
        && let Ok(mut statement) = MembershipBody::decode(&*membership.body)
    {
        statement.authority = peer(2).to_bytes();
        *membership = message(MEMBERSHIP, mesh().as_str(), &key(2), statement.encode_to_vec());
    }
    if let Ok(hello) = Hello::decode(&body.encode_to_vec()) {
        judge(&rules, &hello);
    }
});
