use super::*;
use crate::{
    accusation::{Accusation, Charge, Verdict},
    admission::{BinaryDigest, Membership, Release, Validity},
    assignment::{Directive, Ticket, Work},
    entry::{Draft, Entry, Rank},
    id::{Epoch, Session},
    lifecycle::Lifecycle,
    payload::Payload,
    provider::{ProviderCertificate, Terms},
};
use proptest::prelude::*;
use std::{collections::BTreeMap, sync::LazyLock};

const NOW_MS: u64 = 1_800_000_000_000;
/// The order of the group, little-endian: a signature with this added to its second half is good for careless readers.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// A statement of one kind, and whether bytes are one as well.
struct Sample {
    kind: &'static str,
    bytes: Vec<u8>,
    opens: fn(&[u8]) -> bool,
}

/// One of each kind that there is.
static SAMPLES: LazyLock<Vec<Sample>> = LazyLock::new(|| {
    let validity = Validity { from_ms: NOW_MS - 1_000, until_ms: NOW_MS + 1_000 };
    let draft = Draft {
        rank: Rank { epoch: Epoch(7), lifecycle: Lifecycle::Serving, version: 3 },
        issued_at_ms: NOW_MS,
        payload: Payload { software: "0.1.0".into(), ..Payload::default() },
    };
    let charge = Charge { subject: key(2).public().to_peer_id(), epoch: Epoch(1), version: 2, verdict: Verdict::Evict };
    let terms =
        Terms { subject: key(2).public().to_peer_id(), mesh: Some(mesh()), constraints: BTreeMap::new(), validity };
    let work = Work { template: "t".into(), model: "m".into(), tensor_parallel: 1, data_parallel: 1 };
    let directive = Directive {
        to: Session { peer: key(2).public().to_peer_id(), epoch: Epoch(1) },
        ticket: Ticket { generation: 1, scheduler: key(1).public().to_peer_id(), plan: 1 },
        work: Some(work),
    };
    let version = "1.2.3".parse().unwrap();
    let release = Release::sign(&key(1), BinaryDigest([7; 32]), &version, validity).unwrap();
    let membership = Membership::sign(&key(1), &mesh(), &key(2).public().to_peer_id(), validity).unwrap();
    vec![
        Sample {
            kind: "entry",
            bytes: Entry::sign(&key(1), &mesh(), draft).unwrap().signed().to_vec(),
            opens: |bytes| Entry::open(bytes, &mesh(), NOW_MS).is_ok(),
        },
        Sample {
            kind: "accusation",
            bytes: Accusation::sign(&key(1), &mesh(), charge, NOW_MS).unwrap().signed().to_vec(),
            opens: |bytes| Accusation::open(bytes, &mesh(), NOW_MS).is_ok(),
        },
        Sample {
            kind: "certificate",
            bytes: ProviderCertificate::sign(&key(1), &terms).unwrap().encode_to_vec(),
            opens: |bytes| ProviderCertificate::open(bytes).is_ok(),
        },
        Sample {
            kind: "directive",
            bytes: directive.sign(&key(1), &mesh()).unwrap().encode_to_vec(),
            opens: |bytes| Directive::open(bytes, &mesh()).is_ok(),
        },
        Sample {
            kind: "release",
            bytes: release.encode_to_vec(),
            opens: |bytes| Signed::read(bytes).is_ok_and(|signed| Release::open(&signed).is_ok()),
        },
        Sample {
            kind: "membership",
            bytes: membership.encode_to_vec(),
            opens: |bytes| Signed::read(bytes).is_ok_and(|signed| Membership::open(&signed, &mesh()).is_ok()),
        },
    ]
});

fn key(number: u8) -> Keypair {
    Keypair::ed25519_from_bytes([number; 32]).unwrap()
}

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

/// What another peer might do to a statement on its way.
#[derive(Debug, Clone)]
enum Change {
    Flip { at: usize, bit: u8 },
    Insert { at: usize, byte: u8 },
    Delete { at: usize },
    Cut { at: usize },
    Append(Vec<u8>),
    Prepend(Vec<u8>),
}

impl Change {
    fn of(&self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        match self {
            Self::Flip { at, bit } => changed[at % bytes.len()] ^= 1 << bit,
            Self::Insert { at, byte } => changed.insert(at % (bytes.len() + 1), *byte),
            Self::Delete { at } => _ = changed.remove(at % bytes.len()),
            Self::Cut { at } => changed.truncate(at % bytes.len()),
            Self::Append(more) => changed.extend(more),
            Self::Prepend(more) => _ = changed.splice(0..0, more.iter().copied()),
        }
        changed
    }
}

fn any_change() -> impl Strategy<Value = Change> {
    let at = 0..4_096_usize;
    // Fields, well-formed ones among them, that a careless decoder skips.
    let field = prop_oneof![
        (15..2_000_u32, any::<u8>()).prop_map(|(tag, value)| {
            let mut field = Vec::new();
            prost::encoding::uint32::encode(tag, &u32::from(value), &mut field);
            field
        }),
        proptest::collection::vec(any::<u8>(), 1..8),
    ];
    prop_oneof![
        (at.clone(), 0..8_u8).prop_map(|(at, bit)| Change::Flip { at, bit }),
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Change::Insert { at, byte }),
        at.clone().prop_map(|at| Change::Delete { at }),
        at.prop_map(|at| Change::Cut { at }),
        field.clone().prop_map(Change::Append),
        field.prop_map(Change::Prepend),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(otela_testing::repetitions(200, 20_000)))]

    #[test]
    fn f1_whatever_is_changed_of_a_statement_is_refused(changes in proptest::collection::vec(any_change(), 1..4)) {
        for Sample { kind, bytes, opens } in &*SAMPLES {
            let changed = changes.iter().fold(bytes.clone(), |bytes, change| {
                if bytes.is_empty() { bytes } else { change.of(&bytes) }
            });
            prop_assert!(changed == *bytes || !opens(&changed), "{}", kind);
        }
    }
}

#[test]
fn f1_a_statement_has_one_encoding() {
    for Sample { kind, bytes, opens } in &*SAMPLES {
        assert!(opens(bytes), "{kind}");
        let signed = Signed::decode(&bytes[..]).unwrap();
        let only = |signed: Signed| signed.encode_to_vec();
        let body = only(Signed { signature: Vec::new(), ..signed.clone() });
        let signature = only(Signed { body: Vec::new(), ..signed.clone() });
        assert_eq!([&body[..], &signature].concat(), *bytes, "{kind}: the parts of it");
        for (what, other) in [
            ("a field that is not known", [&bytes[..], &[0x78, 1]].concat()),
            ("its fields in the other order", [&signature[..], &body].concat()),
            ("a field twice", [&body[..], &body, &signature].concat()),
            ("all of it twice", [&bytes[..], &bytes[..]].concat()),
        ] {
            assert_eq!(Signed::decode(&other[..]).unwrap(), signed, "{kind}, {what}: prost reads the same");
            assert!(!opens(&other), "{kind}, {what}");
        }
    }
}

#[test]
fn f1_nobody_makes_a_second_signature_from_a_first() {
    for Sample { kind, bytes, opens } in &*SAMPLES {
        let mut signed = Signed::decode(&bytes[..]).unwrap();
        let mut carry = 0;
        for (byte, add) in signed.signature[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(add) + carry;
            (*byte, carry) = ((sum & 0xff) as u8, sum >> 8);
        }
        assert!(!opens(&signed.encode_to_vec()), "{kind}");
    }
}

#[test]
fn a_statement_is_called_by_its_kind_and_its_body() {
    let [one, other] = [Kind::new(b"one", 512), Kind::new(b"other", 512)];
    let body = crate::wire::Probe { number: 1 };
    let [(first, id), (second, same)] = [1, 2].map(|number| one.sign(&key(number), None, &body).unwrap());
    assert!(first != second && id == same, "whose signature it is, is no part of it");
    assert_eq!(one.take::<crate::wire::Probe>(first).unwrap().id(), id);
    assert_ne!(other.sign(&key(1), None, &body).unwrap().1, id);
}

#[test]
fn keys_that_sign_everything_are_no_signers() {
    // The neutral element: with it, one signature is good for every body.
    let mut weak = ED25519_HEAD.to_vec();
    weak.extend([1]);
    weak.extend([0; 31]);
    let weak = PeerId::from_bytes(&weak).unwrap();
    assert_eq!(verifying_key(&weak).unwrap_err(), Refusal::NotEd25519);
    assert!(verifying_key(&key(1).public().to_peer_id()).is_ok());
    assert_eq!(verifying_key(&PeerId::random()).unwrap_err(), Refusal::NotEd25519);
}
