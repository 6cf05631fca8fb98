use super::*;
use crate::wire::{EntryBody, Signed};

const NOW_MS: u64 = 1_800_000_000_000;

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn draft(version: u64) -> Draft {
    Draft {
        rank: Rank { epoch: Epoch(7), lifecycle: Lifecycle::Serving, version },
        issued_at_ms: NOW_MS,
        payload: Payload { software: "0.1.0".into(), ..Payload::default() },
    }
}

#[test]
fn what_was_signed_opens() {
    let key = Keypair::generate_ed25519();
    let entry = Entry::sign(&key, &mesh(), draft(3)).unwrap();
    let opened = Entry::open(entry.signed(), &mesh(), NOW_MS).unwrap();
    assert_eq!(opened.owner(), key.public().to_peer_id());
    assert_eq!((opened.rank(), opened.id(), opened.payload()), (entry.rank(), entry.id(), entry.payload()));
}

#[test]
fn p28_every_flipped_bit_is_refused() {
    let entry = Entry::sign(&Keypair::generate_ed25519(), &mesh(), draft(3)).unwrap();
    for at in 0..entry.signed().len() {
        let mut bytes = entry.signed().to_vec();
        bytes[at] ^= 1;
        assert!(Entry::open(&bytes, &mesh(), NOW_MS).is_err(), "byte {at}");
    }
}

#[test]
fn p28_nobody_speaks_for_another() {
    let (mallory, victim) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let own = Entry::sign(&mallory, &mesh(), draft(3)).unwrap();
    let message = Signed::decode(&own.signed()[..]).unwrap();
    let mut body = EntryBody::decode(&message.body[..]).unwrap();
    body.owner = victim.public().to_peer_id().to_bytes();
    let forged = KIND.sign(&mallory, Some(&mesh()), &body).unwrap().0.encode_to_vec();
    assert_eq!(Entry::open(&forged, &mesh(), NOW_MS).unwrap_err(), Refusal::BadSignature);
}

#[test]
fn another_mesh_cannot_be_replayed() {
    let entry = Entry::sign(&Keypair::generate_ed25519(), &mesh(), draft(3)).unwrap();
    let other = "other".parse().unwrap();
    assert_eq!(Entry::open(entry.signed(), &other, NOW_MS).unwrap_err(), Refusal::BadSignature);
}

#[test]
fn age_is_bounded_on_both_sides() {
    let entry = Entry::sign(&Keypair::generate_ed25519(), &mesh(), draft(3)).unwrap();
    let hour_ms = 3_600_000;
    let at = |now_ms| Entry::open(entry.signed(), &mesh(), now_ms).map(|_| ());
    assert_eq!(at(NOW_MS - 3 * hour_ms), Err(Refusal::FromTheFuture));
    assert_eq!(at(NOW_MS - hour_ms), Ok(()));
    assert_eq!(at(NOW_MS + 25 * hour_ms), Ok(()));
    assert_eq!(at(NOW_MS + 27 * hour_ms), Err(Refusal::Expired));
}

#[test]
fn p28_size_is_bounded_for_the_writer_and_for_the_reader() {
    let key = Keypair::generate_ed25519();
    let mut big = draft(1);
    big.payload.labels.insert("x".into(), "y".repeat(PAYLOAD_BYTES_MAX));
    assert_eq!(Entry::sign(&key, &mesh(), big).unwrap_err(), Refusal::TooLarge);
    assert_eq!(Entry::open(&vec![0; ENTRY_BYTES_MAX + 1], &mesh(), NOW_MS).unwrap_err(), Refusal::TooLarge);
}

#[test]
fn fields_of_a_newer_version_survive_with_their_signature() {
    let key = Keypair::generate_ed25519();
    let entry = Entry::sign(&key, &mesh(), draft(3)).unwrap();
    let message = Signed::decode(&entry.signed()[..]).unwrap();
    let mut body = EntryBody::decode(&message.body[..]).unwrap();
    // Field 200, a string that this version has never heard of.
    body.payload.extend_from_slice(&[0xc2, 0x0c, 3, b'n', b'e', b'w']);
    body.schema = 9;
    let newer = KIND.sign(&key, Some(&mesh()), &body).unwrap().0.encode_to_vec();
    let opened = Entry::open(&newer, &mesh(), NOW_MS).unwrap();
    assert_eq!(opened.payload().software, "0.1.0");
    assert_eq!(&opened.signed()[..], &newer[..]);
}

#[test]
fn noise_is_refused_and_never_panics() {
    let mut bytes = Vec::new();
    for seed in 0..4096_u32 {
        bytes.push((seed.wrapping_mul(2_654_435_761) >> 24) as u8);
        assert!(Entry::open(&bytes, &mesh(), NOW_MS).is_err());
    }
}
