use super::*;
use crate::{id::MeshName, wire::Signed};
use libp2p_identity::{Keypair, PeerId};
use proptest::prelude::*;
use std::sync::LazyLock;

const NOW: u64 = 1_800_000_000_000;
const DAY: u64 = 86_400_000;
const VALID: Validity = Validity { from_ms: NOW - DAY, until_ms: NOW + DAY };

/// A mesh with one maintainer and one authority, and a peer of it.
struct Scene {
    maintainer: Keypair,
    authority: Keypair,
    peer: Keypair,
    rules: Rules,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let [maintainer, authority, peer] = std::array::from_fn(|_| Keypair::generate_ed25519());
    let id = |key: &Keypair| key.public().to_peer_id();
    let rules = Rules {
        release_keys: [id(&maintainer)].into(),
        require_signed: true,
        min_version: Some("0.2.0".parse().unwrap()),
        authorities: [id(&authority)].into(),
        ..Rules::open(mesh())
    };
    Scene { maintainer, authority, peer, rules }
});

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn digest() -> BinaryDigest {
    BinaryDigest::of(b"a binary")
}

impl Scene {
    fn id(&self) -> PeerId {
        self.peer.public().to_peer_id()
    }

    fn release(&self, key: &Keypair, version: &str, validity: Validity) -> Signed {
        Release::sign(key, digest(), &version.parse().unwrap(), validity).unwrap()
    }

    fn membership(&self) -> Signed {
        Membership::sign(&self.authority, &mesh(), &self.id(), VALID).unwrap()
    }

    fn hello(&self) -> Hello {
        Hello {
            mesh: "lab".to_owned(),
            nonce: [7; NONCE_BYTES],
            release: Some(self.release(&self.maintainer, "0.2.0", VALID)),
            membership: Some(self.membership()),
        }
    }

    fn verdict(&self, rules: &Rules, hello: &Hello) -> Result<Credentials, Refused> {
        // As it arrives.
        rules.admit(&self.id(), &Hello::decode(&hello.encode())?, NOW)
    }
}

#[test]
fn a_member_with_a_signed_binary_is_admitted_and_what_it_showed_is_kept() {
    let scene = &*SCENE;
    let credentials = scene.verdict(&scene.rules, &scene.hello()).unwrap();
    let release = credentials.release.unwrap();
    assert_eq!((release.digest, release.version.to_string().as_str()), (digest(), "0.2.0"));
    assert_eq!(credentials.membership.unwrap().member, scene.id());
}

#[test]
fn each_fault_has_its_own_reason() {
    let scene = &*SCENE;
    let stranger = Keypair::generate_ed25519();
    let release = |key: &Keypair, version, validity| Some(scene.release(key, version, validity));
    let membership = |key: &Keypair, mesh: &str, peer: PeerId, validity| {
        Some(Membership::sign(key, &mesh.parse().unwrap(), &peer, validity).unwrap())
    };
    let damaged = |signed: Option<Signed>| {
        let mut signed = signed.unwrap();
        *signed.signature.last_mut().unwrap() ^= 1;
        Some(signed)
    };
    let (early, late) = (Validity { from_ms: NOW + DAY, ..VALID }, Validity { until_ms: NOW, ..VALID });
    let id = scene.id();
    let (m, a) = (&scene.maintainer, &scene.authority);
    type Change = Box<dyn Fn(&mut Hello)>;
    let with_release =
        |release: Option<Signed>| -> Change { Box::new(move |hello| hello.release.clone_from(&release)) };
    let with_membership =
        |membership: Option<Signed>| -> Change { Box::new(move |hello| hello.membership.clone_from(&membership)) };
    let cases = [
        (Refused::OtherMesh, Box::new(|hello: &mut Hello| hello.mesh = "lab2".to_owned()) as Change),
        (Refused::Unsigned, with_release(None)),
        (Refused::UnknownKey, with_release(release(&stranger, "0.2.0", VALID))),
        (Refused::BadSignature, with_release(damaged(release(m, "0.2.0", VALID)))),
        (Refused::NotYetValid, with_release(release(m, "0.2.0", early))),
        (Refused::Expired, with_release(release(m, "0.2.0", late))),
        (Refused::TooOld, with_release(release(m, "0.1.9", VALID))),
        (Refused::TooOld, with_release(release(m, "0.2.0-rc.1", VALID))),
        (Refused::Malformed, with_release(Some(Signed { body: vec![1, 2, 3], signature: vec![] }))),
        (Refused::NotAMember, with_membership(None)),
        (Refused::BadMembership, with_membership(membership(a, "lab2", id, VALID))),
        (Refused::BadMembership, with_membership(membership(a, "lab", stranger.public().to_peer_id(), VALID))),
        (Refused::BadMembership, with_membership(membership(&stranger, "lab", id, VALID))),
        (Refused::BadMembership, with_membership(damaged(membership(a, "lab", id, VALID)))),
        (Refused::MembershipExpired, with_membership(membership(a, "lab", id, late))),
        (Refused::MembershipNotYetValid, with_membership(membership(a, "lab", id, early))),
    ];
    for (reason, change) in cases {
        let mut hello = scene.hello();
        change(&mut hello);
        assert_eq!(scene.verdict(&scene.rules, &hello), Err(reason));
    }
}

#[test]
fn revocation_counts_for_who_is_connected_already() {
    let scene = &*SCENE;
    let credentials = scene.verdict(&scene.rules, &scene.hello()).unwrap();
    let judge = |rules: &Rules, now_ms| rules.judge(&scene.id(), &credentials, now_ms);
    assert_eq!(judge(&scene.rules, NOW), Ok(()));
    let revoked = |revoke: &dyn Fn(&mut Rules)| {
        let mut rules = scene.rules.clone();
        revoke(&mut rules);
        judge(&rules, NOW).unwrap_err()
    };
    assert_eq!(revoked(&|rules| _ = rules.revoked_binaries.insert(digest())), Refused::RevokedBinary);
    assert_eq!(revoked(&|rules| _ = rules.revoked_peers.insert(scene.id())), Refused::RevokedPeer);
    for key in [&scene.maintainer, &scene.authority] {
        let key = key.public().to_peer_id();
        assert_eq!(revoked(&|rules| _ = rules.revoked_keys.insert(key)), Refused::RevokedKey);
    }
    assert_eq!(revoked(&|rules| rules.min_version = Some("0.3.0".parse().unwrap())), Refused::TooOld);
    assert_eq!(judge(&scene.rules, VALID.until_ms), Err(Refused::Expired), "time alone ends it");
}

#[test]
fn an_open_mesh_admits_everybody_of_its_name_but_not_what_it_has_revoked() {
    let scene = &*SCENE;
    let mut rules = Rules::open(mesh());
    let bare = Hello { release: None, membership: None, ..scene.hello() };
    assert!(rules.is_open() && scene.verdict(&rules, &bare).is_ok());
    let odd = Hello { release: Some(Signed { body: vec![9], signature: vec![] }), ..bare.clone() };
    assert_eq!(scene.verdict(&rules, &odd), Ok(Credentials::default()), "nobody asked for it");
    assert_eq!(scene.verdict(&rules, &Hello { mesh: "lab2".to_owned(), ..bare }), Err(Refused::OtherMesh));
    rules.revoked_binaries.insert(digest());
    assert_eq!(scene.verdict(&rules, &scene.hello()), Err(Refused::RevokedBinary));
}

#[test]
fn a_proof_is_good_once_and_in_one_direction_only() {
    let scene = &*SCENE;
    let other = Keypair::generate_ed25519();
    let (me, you) = (scene.id(), other.public().to_peer_id());
    let hello = |nonce| Hello { nonce: [nonce; NONCE_BYTES], ..scene.hello() }.encode();
    let (mine, yours) = (hello(1), hello(2));
    let proof = prove(&scene.peer, &you, Side::Dialer, &mesh(), [&mine, &yours]).unwrap();
    let check = |proof: &[u8], ids: [&PeerId; 2], side, mesh: &MeshName, hellos: [&[u8]; 2]| {
        check_proof(proof, ids, side, mesh, hellos)
    };
    assert_eq!(check(&proof, [&me, &you], Side::Dialer, &mesh(), [&mine, &yours]), Ok(()));
    let again = hello(3);
    for (what, got) in [
        ("replayed", check(&proof, [&me, &you], Side::Dialer, &mesh(), [&mine, &again])),
        ("with another hello", check(&proof, [&me, &you], Side::Dialer, &mesh(), [&again, &yours])),
        ("reflected", check(&proof, [&me, &you], Side::Listener, &mesh(), [&mine, &yours])),
        ("passed on", check(&proof, [&me, &PeerId::random()], Side::Dialer, &mesh(), [&mine, &yours])),
        ("for another", check(&proof, [&you, &me], Side::Dialer, &mesh(), [&mine, &yours])),
        ("in another mesh", check(&proof, [&me, &you], Side::Dialer, &"x".parse().unwrap(), [&mine, &yours])),
        ("empty", check(&[], [&me, &you], Side::Dialer, &mesh(), [&mine, &yours])),
    ] {
        assert_eq!(got, Err(Refused::BadProof), "{what}");
    }
}

#[test]
fn reasons_have_bytes_and_labels_of_their_own() {
    let mut labels: Vec<_> = Refused::ALL.iter().map(|refused| refused.reason()).collect();
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), Refused::ALL.len());
    for refused in Refused::ALL {
        assert_eq!(Refused::from_code(refused.code()), Some(refused));
    }
    assert_eq!((Refused::from_code(0), Refused::from_code(200)), (None, None));
}

#[test]
fn digests_are_written_and_read() {
    let digest = digest();
    assert_eq!(digest.to_string().parse(), Ok(digest));
    assert_eq!(digest.to_string().trim_start_matches("sha256:").to_uppercase().parse(), Ok(digest));
    for bad in ["", "sha256:", "sha256:12", &"g".repeat(64), &"ä".repeat(32), &"0".repeat(65)] {
        assert!(bad.parse::<BinaryDigest>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn whatever_arrives_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(hello) = Hello::decode(&bytes) {
            prop_assert!(SCENE.rules.admit(&SCENE.id(), &hello, NOW).is_err());
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }

    #[test]
    fn no_bit_of_a_hello_can_be_changed(at in 0_usize..4096, bit in 0_u8..8) {
        let good = SCENE.hello().encode();
        let mut bytes = good.clone();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let verdict = Hello::decode(&bytes).and_then(|hello| SCENE.rules.admit(&SCENE.id(), &hello, NOW));
        // The nonce is anybody's choice, and what nobody reads may say anything: the proof is over all of it.
        let credentials = Hello::decode(&good).and_then(|hello| SCENE.rules.admit(&SCENE.id(), &hello, NOW));
        prop_assert!(verdict.is_err() || verdict == credentials);
    }
}
