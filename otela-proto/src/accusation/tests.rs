use super::*;

const NOW_MS: u64 = 1_800_000_000_000;

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn charge(verdict: Verdict, version: u64) -> Charge {
    let subject = Keypair::ed25519_from_bytes([9; 32]).unwrap().public().to_peer_id();
    Charge { subject, epoch: Epoch(7), version, verdict }
}

#[test]
fn what_was_signed_opens() {
    let key = Keypair::generate_ed25519();
    let signed = Accusation::sign(&key, &mesh(), charge(Verdict::Evict, 3), NOW_MS).unwrap();
    let opened = Accusation::open(signed.signed(), &mesh(), NOW_MS).unwrap();
    assert_eq!(opened.accuser(), key.public().to_peer_id());
    assert_eq!((opened.charge(), opened.id()), (signed.charge(), signed.id()));
    assert!(signed.signed().len() <= 200, "{} bytes", signed.signed().len());
}

#[test]
fn every_flipped_bit_and_every_other_mesh_are_refused() {
    let signed = Accusation::sign(&Keypair::generate_ed25519(), &mesh(), charge(Verdict::Suspect, 3), NOW_MS).unwrap();
    for at in 0..signed.signed().len() {
        let mut bytes = signed.signed().to_vec();
        bytes[at] ^= 1;
        assert!(Accusation::open(&bytes, &mesh(), NOW_MS).is_err(), "byte {at}");
    }
    let other = "other".parse().unwrap();
    assert_eq!(Accusation::open(signed.signed(), &other, NOW_MS).unwrap_err(), Refusal::BadSignature);
}

#[test]
fn nobody_accuses_in_anothers_name_nor_itself() {
    let (mallory, victim) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let own = Accusation::sign(&mallory, &mesh(), charge(Verdict::Suspect, 3), NOW_MS).unwrap();
    let resigned = |change: &dyn Fn(&mut AccusationBody)| {
        let mut body = KIND.read::<AccusationBody>(own.signed()).unwrap().body;
        change(&mut body);
        let (signed, _) = KIND.sign(&mallory, Some(&mesh()), &body).unwrap();
        Accusation::open(&signed.encode_to_vec(), &mesh(), NOW_MS).map(|_| ())
    };
    let victim = victim.public().to_peer_id().to_bytes();
    assert_eq!(resigned(&|body| body.accuser.clone_from(&victim)), Err(Refusal::BadSignature));
    assert_eq!(resigned(&|body| body.subject = body.accuser.clone()), Err(Refusal::Malformed));
    assert_eq!(resigned(&|body| body.verdict = 3), Err(Refusal::Malformed));
    assert_eq!(resigned(&|body| body.issued_at_ms += 3 * 3_600_000), Err(Refusal::FromTheFuture));
    assert_eq!(resigned(&|body| body.issued_at_ms -= 27 * 3_600_000), Err(Refusal::Expired));
    assert_eq!(resigned(&|_| ()), Ok(()));
}

#[test]
fn an_entry_is_no_accusation() {
    use crate::{
        entry::{Draft, Entry, Rank},
        lifecycle::Lifecycle,
        payload::Payload,
    };
    let key = Keypair::generate_ed25519();
    let rank = Rank { epoch: Epoch(7), lifecycle: Lifecycle::Serving, version: 1 };
    let draft = Draft { rank, issued_at_ms: NOW_MS, payload: Payload::default() };
    let entry = Entry::sign(&key, &mesh(), draft).unwrap();
    assert!(Accusation::open(entry.signed(), &mesh(), NOW_MS).is_err());
    let accusation = Accusation::sign(&key, &mesh(), charge(Verdict::Suspect, 3), NOW_MS).unwrap();
    assert!(Entry::open(accusation.signed(), &mesh(), NOW_MS).is_err());
}

#[test]
fn more_replaces_less() {
    let key = Keypair::generate_ed25519();
    let sign = |verdict, version| Accusation::sign(&key, &mesh(), charge(verdict, version), NOW_MS).unwrap();
    assert!(sign(Verdict::Evict, 3).replaces(&sign(Verdict::Suspect, 3)));
    assert!(sign(Verdict::Suspect, 4).replaces(&sign(Verdict::Evict, 3)));
    assert!(!sign(Verdict::Suspect, 3).replaces(&sign(Verdict::Suspect, 3)));
}
