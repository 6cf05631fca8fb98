//! Provider certificates: bytes of anybody, and bodies that the provider has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_fuzz::{PROVIDER, key, mesh, message, peer};
use otela_proto::{
    PeerId,
    provider::{CERTIFICATE_BYTES_MAX, Provider, ProviderCertificate, ProviderRules, Unproven},
    wire::ProviderBody,
};
use prost::Message;
use std::collections::BTreeMap;

const NOW_MS: u64 = 1_800_000_000_000;

fuzz_target!(|data: &[u8]| {
    if let Ok(certificate) = ProviderCertificate::open(data) {
        check(&certificate, data);
    }
    let Ok(mut body) = ProviderBody::decode(data) else { return };
    body.provider = peer(1).to_bytes();
    let signed = message(PROVIDER, &body.mesh, &key(1), body.encode_to_vec());
    match ProviderCertificate::open_signed(&signed) {
        Ok(certificate) => {
            assert_eq!(*certificate.provider().key(), peer(1));
            check(&certificate, &signed.encode_to_vec());
            let mut forged = signed.clone();
            forged.signature[0] ^= 1;
            assert_eq!(ProviderCertificate::open_signed(&forged), Err(Unproven::BadSignature));
        }
        Err(why) => assert_ne!(why, Unproven::BadSignature, "it was signed"),
    }
});

/// It counts for one peer at most, and exactly under its terms.
fn check(certificate: &ProviderCertificate, bytes: &[u8]) {
    assert!(bytes.len() <= CERTIFICATE_BYTES_MAX);
    let (terms, opened, none) = (certificate.terms(), Ok(certificate.clone()), BTreeMap::new());
    let mut rules = ProviderRules::new(terms.mesh.clone().unwrap_or_else(mesh));
    let valid = !terms.validity.begins_after(NOW_MS) && !terms.validity.has_ended(NOW_MS);
    let of = |peer: &PeerId, labels: &BTreeMap<String, String>, rules: &ProviderRules| {
        Provider::judge(Some(&opened), peer, labels, rules, NOW_MS).verified().is_some()
    };
    assert_eq!(of(&terms.subject, &terms.constraints, &rules), valid);
    assert!(!of(&peer(7), &terms.constraints, &rules) || terms.subject == peer(7), "somebody else's");
    assert!(!of(&terms.subject, &none, &rules) || terms.constraints.is_empty(), "without its labels");
    if let Some(change_ms) = terms.validity.next_change_ms(NOW_MS) {
        assert!(change_ms > NOW_MS, "a timer that never ends");
    }
    rules.revoked_keys.insert(*certificate.provider().key());
    assert!(!of(&terms.subject, &terms.constraints, &rules));
}
