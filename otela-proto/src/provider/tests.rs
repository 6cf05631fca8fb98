use super::*;
use crate::{
    admission::{Rules, Validity},
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    member::{Input, Member, Output, Settings},
    payload::{ModelCard, PAYLOAD_BYTES_MAX, Payload, Service},
    registry::{Registry, View},
    sign::Domain,
    wire::{ProviderBody, Signed},
};
use libp2p_identity::Keypair;
use proptest::prelude::*;
use prost::Message;
use std::{collections::HashMap, sync::LazyLock, time::Duration};

const NOW: u64 = 1_800_000_000_000;
const DAY: u64 = 86_400_000;
const VALID: Validity = Validity { from_ms: NOW - DAY, until_ms: NOW + DAY };

/// A provider and two of its nodes.
static KEYS: LazyLock<[Keypair; 3]> =
    LazyLock::new(|| [1, 2, 3].map(|n| Keypair::ed25519_from_bytes([n; 32]).unwrap()));

fn provider() -> ProviderId {
    ProviderId::of(&KEYS[0]).unwrap()
}

fn node(number: usize) -> PeerId {
    KEYS[number].public().to_peer_id()
}

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn rules() -> ProviderRules {
    ProviderRules::new(mesh())
}

fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()
}

/// For node 1 at `cscs`.
fn terms() -> Terms {
    let constraints = labels(&[("site", "cscs")]);
    Terms { subject: node(1), mesh: Some(mesh()), constraints, validity: VALID }
}

fn signed(terms: &Terms) -> Vec<u8> {
    ProviderCertificate::sign(&KEYS[0], terms).unwrap().encode_to_vec()
}

/// What becomes of `bytes` on node `number` with these labels.
fn verdict(bytes: &[u8], number: usize, said: &[(&str, &str)], now_ms: u64) -> Result<ProviderId, Unproven> {
    ProviderCertificate::open(bytes)?.verify(&node(number), &labels(said), &rules(), now_ms)
}

/// A body as somebody else may sign it, with the signature of `key` for `mesh`.
fn forged(
    change: impl FnOnce(&mut ProviderBody),
    key: &Keypair,
    mesh: Option<&MeshName>,
    domain: &'static [u8],
) -> Vec<u8> {
    let mut body = ProviderBody::decode(&*Signed::decode(&*signed(&terms())).unwrap().body).unwrap();
    change(&mut body);
    let body = body.encode_to_vec();
    let signature = Domain(domain).sign(key, mesh, &body).unwrap();
    Signed { body, signature }.encode_to_vec()
}

const OURS: &[u8] = b"otela/provider/1";
const CSCS: &[(&str, &str)] = &[("site", "cscs"), ("team", "vision")];

#[test]
fn a_certificate_counts_for_its_node_with_its_labels_in_its_mesh_and_time() {
    let bytes = signed(&terms());
    assert_eq!(verdict(&bytes, 1, CSCS, NOW), Ok(provider()));
    let certificate = ProviderCertificate::open(&bytes).unwrap();
    assert_eq!((certificate.provider(), certificate.terms()), (&provider(), &terms()));
    assert_eq!(verdict(&bytes, 2, CSCS, NOW), Err(Unproven::OtherPeer), "pasted from another node");
    for said in [&[][..], &[("site", "eth")], &[("Site", "cscs")], &[("site", "cscs ")]] {
        assert_eq!(verdict(&bytes, 1, said, NOW), Err(Unproven::OtherLabels), "{said:?}");
    }
    assert_eq!(certificate.unmet(&labels(&[("site", "eth")])), Some(("site", "cscs")));
    assert_eq!(certificate.unmet(&labels(CSCS)), None);
    let ten_minutes = 600_000;
    for (now_ms, expected) in [
        (VALID.from_ms - ten_minutes - 1, Err(Unproven::NotYetValid)),
        (VALID.from_ms - ten_minutes, Ok(provider())),
        (VALID.until_ms - 1, Ok(provider())),
        (VALID.until_ms, Err(Unproven::Expired)),
        (u64::MAX, Err(Unproven::Expired)),
    ] {
        assert_eq!(verdict(&bytes, 1, CSCS, now_ms), expected, "{now_ms}");
    }
}

#[test]
fn a_mesh_is_named_or_it_is_any() {
    let in_mesh = |mesh| signed(&Terms { mesh, ..terms() });
    assert_eq!(verdict(&in_mesh(None), 1, CSCS, NOW), Ok(provider()));
    assert_eq!(verdict(&in_mesh(Some("lab2".parse().unwrap())), 1, CSCS, NOW), Err(Unproven::OtherMesh));
    // Who changes the name has to sign it.
    let renamed = forged(|body| body.mesh = "lab".to_owned(), &KEYS[0], None, OURS);
    assert_eq!(verdict(&renamed, 1, CSCS, NOW), Err(Unproven::BadSignature));
    let nameless = forged(|body| body.mesh = "no name".to_owned(), &KEYS[0], None, OURS);
    assert_eq!(verdict(&nameless, 1, CSCS, NOW), Err(Unproven::Malformed));
}

#[test]
fn what_the_provider_has_not_signed_like_this_is_forged() {
    let (lab, mallory) = (mesh(), &KEYS[2]);
    let by = |key: &Keypair, domain| forged(|body| body.subject = node(2).to_bytes(), key, Some(&lab), domain);
    assert_eq!(verdict(&by(mallory, OURS), 2, CSCS, NOW), Err(Unproven::BadSignature));
    assert_eq!(verdict(&by(&KEYS[0], b"otela/membership/1"), 2, CSCS, NOW), Err(Unproven::BadSignature));
    assert_eq!(verdict(&by(&KEYS[0], OURS), 2, CSCS, NOW), Ok(provider()), "the provider itself may");
    let own = forged(|body| body.provider = node(2).to_bytes(), mallory, Some(&lab), OURS);
    let mallorys = verdict(&own, 1, CSCS, NOW).unwrap();
    assert_ne!(mallorys, provider(), "anybody is a provider, of its own name");
}

#[test]
fn other_versions_sizes_keys_and_noise_are_told_apart() {
    let lab = mesh();
    let with = |change: &dyn Fn(&mut ProviderBody)| forged(change, &KEYS[0], Some(&lab), OURS);
    for schema in [0, 2] {
        assert_eq!(verdict(&with(&|body| body.schema = schema), 1, CSCS, NOW), Err(Unproven::UnknownVersion));
    }
    let long = |body: &mut ProviderBody| _ = body.constraints.insert("x".repeat(CERTIFICATE_BYTES_MAX), String::new());
    assert_eq!(verdict(&with(&long), 1, CSCS, NOW), Err(Unproven::TooLarge));
    let rsa = PeerId::random();
    assert_eq!(verdict(&with(&|body| body.provider = rsa.to_bytes()), 1, CSCS, NOW), Err(Unproven::NotEd25519));
    assert_eq!(verdict(&with(&|body| body.subject = vec![1]), 1, CSCS, NOW), Err(Unproven::Malformed));
    for noise in [&[][..], &[0xff; 40], b"otela"] {
        assert!(verdict(noise, 1, CSCS, NOW).is_err(), "{noise:?}");
    }
    let many = Terms { constraints: labels(&[("x", &"y".repeat(CERTIFICATE_BYTES_MAX))]), ..terms() };
    assert_eq!(ProviderCertificate::sign(&KEYS[0], &many), Err(Unproven::TooLarge), "nor is it written");
    let bare = Terms { constraints: BTreeMap::new(), ..terms() };
    assert!((160..180).contains(&signed(&bare).len()), "{} bytes", signed(&bare).len());
}

#[test]
fn a_revoked_key_does_not_count_whatever_it_has_signed() {
    let certificate = ProviderCertificate::open(&signed(&terms())).unwrap();
    let with = |key: PeerId| ProviderRules { revoked_keys: [key].into(), ..rules() };
    let verdict = |rules: &ProviderRules| certificate.verify(&node(1), &labels(CSCS), rules, NOW);
    assert_eq!(verdict(&with(*provider().key())), Err(Unproven::RevokedKey));
    assert_eq!(verdict(&with(node(1))), Ok(provider()), "that is another key");
}

#[test]
fn ids_are_what_people_copy() {
    let text = provider().to_string();
    assert_eq!(text, node_key_text());
    assert_eq!(text.parse(), Ok(provider()));
    assert_eq!(serde_json::to_value(provider()).unwrap(), text);
    for bad in ["", "eth", &text[1..], &PeerId::random().to_string()] {
        assert_eq!(bad.parse::<ProviderId>(), Err(InvalidProviderId), "{bad}");
    }
}

fn node_key_text() -> String {
    KEYS[0].public().to_peer_id().to_string()
}

/// An entry of node `number` that shows `certificate`.
fn entry(number: usize, version: u64, said: &[(&str, &str)], certificate: &[u8]) -> Entry {
    let models = vec![ModelCard { id: "m".into(), ..ModelCard::default() }];
    let payload = Payload {
        labels: labels(said),
        services: vec![Service { models, ..Service::default() }],
        provider_certificate: certificate.to_vec(),
        ..Payload::default()
    };
    let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version };
    Entry::sign(&KEYS[number], &mesh(), Draft { rank, issued_at_ms: NOW, payload }).unwrap()
}

fn view(entries: &[Entry], rules: &ProviderRules, now: Now) -> View {
    let mut registry = Registry::default();
    for entry in entries {
        registry.learn(entry.clone(), now.mono);
    }
    View::build(&registry, &HashMap::new(), rules, now, Duration::from_hours(24), 1)
}

#[test]
fn whatever_is_wrong_with_a_certificate_the_node_is_there() {
    let good = signed(&terms());
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let claims = |why| Provider::Unverified { claimed: Some(provider()), why };
    let unreadable = |why| Provider::Unverified { claimed: None, why };
    for (number, said, certificate, expected) in [
        (1, CSCS, &good[..], Provider::Verified { id: provider(), until_ms: VALID.until_ms }),
        (2, CSCS, &good, claims(Unproven::OtherPeer)),
        (1, &[("site", "eth"), ("provider", "eth")], &good, claims(Unproven::OtherLabels)),
        (1, CSCS, &flipped, unreadable(Unproven::BadSignature)),
        (1, CSCS, &[1, 2, 3], unreadable(Unproven::Malformed)),
        (1, CSCS, &[0; 2_000], unreadable(Unproven::TooLarge)),
        (1, &[("provider", "eth")], &[], unreadable(Unproven::NoCertificate)),
        (1, CSCS, &[], Provider::None),
    ] {
        let entry = entry(number, 1, said, certificate);
        let entry = Entry::open(entry.signed(), &mesh(), NOW).unwrap();
        let view = view(&[entry], &rules(), Now { mono: Duration::ZERO, wall_ms: NOW });
        let node = view.node(&node(number)).unwrap();
        assert_eq!(node.provider, expected);
        let replica = &view.model("m").unwrap().1.ready[0];
        assert_eq!(replica.provider(), expected.verified(), "and so says what is picked");
    }
}

#[test]
fn a_view_says_when_a_certificate_begins_and_ends() {
    let validity = Validity { from_ms: NOW + 3_600_000, until_ms: NOW + 7_200_000 };
    let entries = [entry(1, 1, CSCS, &signed(&Terms { validity, ..terms() }))];
    let start = Duration::from_secs(5);
    let at = |passed: Duration| {
        let now = Now { mono: start + passed, wall_ms: NOW + u64::try_from(passed.as_millis()).unwrap() };
        let view = view(&entries, &rules(), now);
        (view.node(&node(1)).unwrap().provider.verified().is_some(), view.stale_at())
    };
    let (begins, ends) = (Duration::from_mins(50), Duration::from_hours(2));
    assert_eq!(at(Duration::ZERO), (false, Some(start + begins)));
    assert_eq!(at(begins), (true, Some(start + ends)));
    assert_eq!(at(ends), (false, None));
    // A time that no timer can be set for.
    let validity = Validity { from_ms: 0, until_ms: u64::MAX };
    let endless = [entry(1, 1, CSCS, &signed(&Terms { validity, ..terms() }))];
    let view = view(&endless, &rules(), Now { mono: start, wall_ms: NOW });
    assert_eq!(view.stale_at(), Some(start + Duration::from_hours(24)));
}

#[test]
fn a_signature_is_checked_once_for_all_clones_and_not_at_all_if_it_is_known() {
    let good = entry(1, 1, CSCS, &signed(&terms()));
    let clone = good.clone();
    let hash = good.check_certificate(|_| false).unwrap();
    assert!(std::ptr::eq(good.certificate().unwrap(), clone.certificate().unwrap()));
    assert_eq!(clone.check_certificate(|_| panic!("it is read already")), Some(hash));
    // The next version of the entry, with the same certificate.
    let next = entry(1, 2, CSCS, &signed(&terms()));
    assert_eq!(next.check_certificate(|known| *known == hash), Some(hash));
    assert_eq!(next.certificate(), good.certificate());
    let mut forged = signed(&terms());
    *forged.last_mut().unwrap() ^= 1;
    let forged = entry(1, 3, CSCS, &forged);
    assert_eq!(forged.check_certificate(|known| *known == hash), None);
    assert_eq!(forged.certificate(), Some(&Err(Unproven::BadSignature)));
    assert_eq!(entry(1, 4, CSCS, &[]).check_certificate(|_| true), None);
}

#[test]
fn a_member_shows_its_certificate_renews_it_and_hears_of_revoked_keys() {
    let now = Now { mono: Duration::ZERO, wall_ms: NOW };
    let settings = Settings { site: Some("cscs".into()), certificate: signed(&terms()), ..Settings::new(mesh()) };
    let mut member = Member::new(KEYS[1].clone(), settings, None, 1, now);
    let mut out = Vec::new();
    member.handle(now, Input::Addresses(Vec::new()), &mut out);
    let shown = |member: &Member| member.view(now, 1).node(&node(1)).unwrap().provider;
    assert_eq!(shown(&member), Provider::Verified { id: provider(), until_ms: VALID.until_ms });
    let validity = Validity { until_ms: NOW + 2 * DAY, ..VALID };
    member.handle(now, Input::Certificate(signed(&Terms { validity, ..terms() })), &mut out);
    assert_eq!(shown(&member), Provider::Verified { id: provider(), until_ms: NOW + 2 * DAY });
    out.clear();
    member.handle(now, Input::Certificate(vec![0; PAYLOAD_BYTES_MAX]), &mut out);
    assert!(matches!(out[..], [Output::Refused { from: None, reason: "too_large" }, ..]), "{out:?}");
    assert!(shown(&member).verified().is_some(), "what was shown before stands");
    let revoked = [*provider().key()].into();
    let mut rules = Rules::open(mesh());
    rules.revoked_keys = revoked;
    out.clear();
    member.handle(now, Input::Admission(Box::new(rules.clone()), Vec::new()), &mut out);
    assert!(out.iter().any(|output| matches!(output, Output::Changed(_))), "readers look again: {out:?}");
    out.clear();
    member.handle(now, Input::Admission(Box::new(rules), Vec::new()), &mut out);
    assert!(out.is_empty(), "that is known: {out:?}");
    assert_eq!(shown(&member), Provider::Unverified { claimed: Some(provider()), why: Unproven::RevokedKey });
}

proptest! {
    #[test]
    fn whatever_arrives_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(ProviderCertificate::open(&bytes).is_err());
        // Nor does noise behind a good signature's door get further than to a reason.
        let body = bytes;
        let signature = Domain(OURS).sign(&KEYS[0], None, &body).unwrap();
        let signed = Signed { body, signature }.encode_to_vec();
        let opened = ProviderCertificate::open(&signed);
        prop_assert!(opened.is_err_and(|why| why != Unproven::NoCertificate));
    }

    #[test]
    fn no_bit_of_a_certificate_can_be_changed(at in 0_usize..4096, bit in 0_u8..8) {
        let mut bytes = signed(&terms());
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        prop_assert!(ProviderCertificate::open(&bytes).is_err());
    }

    #[test]
    fn it_counts_exactly_where_all_its_terms_hold(
        constraints in proptest::collection::btree_map("[a-c]", "[x-z]", 0..3),
        said in proptest::collection::btree_map("[a-c]", "[x-z]", 0..4),
        (from_ms, until_ms) in (NOW - DAY..NOW + DAY, NOW - DAY..NOW + DAY),
        number in 1_usize..3,
        named in prop::option::of(prop::bool::ANY),
    ) {
        let mesh = named.map(|ours| if ours { mesh() } else { "lab2".parse().unwrap() });
        let validity = Validity { from_ms, until_ms };
        let bytes = signed(&Terms { subject: node(1), mesh, constraints: constraints.clone(), validity });
        let verdict = ProviderCertificate::open(&bytes).unwrap().verify(&node(number), &said, &rules(), NOW);
        let holds = number == 1
            && named != Some(false)
            && constraints.iter().all(|(label, value)| said.get(label) == Some(value))
            && from_ms <= NOW + 600_000
            && NOW < until_ms;
        prop_assert_eq!(verdict.is_ok(), holds, "{:?}", verdict);
    }
}
