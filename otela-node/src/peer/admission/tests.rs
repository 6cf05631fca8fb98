use super::*;
use otela_proto::{
    admission::{BinaryDigest, Membership, Release, Validity},
    wire::Signed,
};
use std::{fs, path::Path};

fn signed(binary: &[u8]) -> Signed {
    let version = "0.2.0".parse().unwrap();
    let validity = Validity { from_ms: 0, until_ms: u64::MAX };
    Release::sign(&Keypair::generate_ed25519(), BinaryDigest::of(binary), &version, validity).unwrap()
}

#[test]
fn statements_survive_their_files_and_damage_is_named() {
    let signed = signed(b"x");
    let text = armor(Kind::Release, &[("version", "0.2.0".to_owned()), ("key", "k".to_owned())], &signed);
    assert_eq!(unarmor(Kind::Release, &text), Ok(signed.clone()));
    assert_eq!(unarmor(Kind::Release, &text.replace('\n', "\r\n")), Ok(signed));
    assert!(matches!(unarmor(Kind::Membership, &text), Err(ArmorError::NotThere(_))));
    let cut = &text[..text.len() - 20];
    assert!(matches!(unarmor(Kind::Release, cut), Err(ArmorError::Damaged(_))));
    assert!(matches!(unarmor(Kind::Release, &"x".repeat(1 << 20)), Err(ArmorError::NotThere(_))));
}

/// A binary and its statement in a directory of their own.
fn installed(dir: &Path, binary: &[u8], statement: &Signed) -> OwnBinary {
    let image = dir.join("otela");
    fs::write(&image, binary).unwrap();
    let statement_file = OwnBinary::beside(&image);
    fs::write(&statement_file, armor(Kind::Release, &[], statement)).unwrap();
    OwnBinary { image, statement: statement_file }
}

#[test]
fn a_binary_changed_by_one_byte_is_not_the_one_that_was_signed() {
    let dir = tempfile::tempdir().unwrap();
    let statement = signed(b"otela");
    let good = installed(dir.path(), b"otela", &statement);
    assert_eq!(good.release().unwrap(), Some(statement.clone()));
    let tampered = installed(dir.path(), b"otelA", &statement);
    let error = tampered.release().unwrap_err();
    assert!(matches!(error, AdmissionError::AnotherBinary { .. }), "{error}");
    let open = AdmissionSettings::open("lab".parse().unwrap());
    assert_eq!(open.clone().with_binary(&tampered, false).unwrap().release, None, "nobody asks for it there");
    assert!(open.with_binary(&tampered, true).is_err(), "but it was named");
    fs::remove_file(&tampered.statement).unwrap();
    assert_eq!(tampered.release().unwrap(), None);
}

#[test]
fn a_peer_that_its_own_rules_refuse_is_told_before_it_starts() {
    let (authority, me) = (Keypair::generate_ed25519(), PeerId::random());
    let mesh: otela_proto::id::MeshName = "lab".parse().unwrap();
    let mut settings = AdmissionSettings::open(mesh.clone());
    assert!(settings.check(&me).is_ok());
    settings.rules.authorities.insert(authority.public().to_peer_id());
    let error = settings.check(&me).unwrap_err();
    assert!(matches!(error, AdmissionError::NotAdmitted { refused: Refused::NotAMember, .. }), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("membership");
    let validity = Validity { from_ms: 0, until_ms: u64::MAX };
    let membership = Membership::sign(&authority, &mesh, &me, validity).unwrap();
    fs::write(&path, armor(Kind::Membership, &[], &membership)).unwrap();
    let error = settings.clone().with_membership(&path, PeerId::random()).unwrap_err();
    assert!(matches!(error, AdmissionError::AnotherPeer { .. }), "{error}");
    assert!(settings.with_membership(&path, me).unwrap().check(&me).is_ok());
}

#[test]
fn mesh_files_are_read_and_what_is_wrong_is_said_with_its_line() {
    let key = PeerId::random();
    let digest = BinaryDigest::of(b"x");
    let whole = format!(
        "name = \"lab\"\nbootstrap = [\"relay.example:7411\"]\n[release]\nkeys = [\"{key}\"]\nmin_version = \"0.2.0\"\n\
         [membership]\nkeys = [\"{key}\"]\n[revoked]\nbinaries = [\"{digest}\"]\nkeys = [\"{key}\"]\npeers = [\"{key}\"]\n"
    );
    let file = MeshFile::parse(&whole).unwrap();
    assert!(file.rules.require_signed, "wherever there are release keys");
    assert_eq!(file.bootstrap, ["relay.example:7411"]);
    assert_eq!((file.rules.revoked_binaries.len(), file.rules.authorities.contains(&key)), (1, true));
    let open = MeshFile::parse("name = \"lab\"").unwrap();
    assert!(open.rules.is_open() && open.bootstrap.is_empty());
    for (text, said) in [
        ("", "name"),
        ("name = \"Lab\"", "line 1: mesh name"),
        ("name = \"lab\"\n[release]\nkey = []", "line 3: unknown field"),
        ("name = \"lab\"\n[release]\nkeys = [\"x\"]", "\"x\""),
        ("name = \"lab\"\n[release]\nrequire_signed = true", "needs keys"),
        ("name = \"lab\"\n[release]\nmin_version = \"1.0.0\"", "needs require_signed"),
        ("name = \"lab\"\n[revoked]\nbinaries = [\"abc\"]", "64 hexadecimal"),
        ("name = \"lab\"\nname = \"lab\"", "line 2"),
    ] {
        let error = MeshFile::parse(text).unwrap_err();
        assert!(error.contains(said) && !error.contains('\n'), "{text:?}: {error}");
    }
    let min = whole.replace("0.2.0", "new");
    assert!(MeshFile::parse(&min).unwrap_err().contains("min_version"));
}

#[test]
fn the_mesh_file_is_followed_and_a_broken_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh.toml");
    let write = |text: &str| {
        fs::write(&path, text).unwrap();
        // What copies files may keep their times.
        let at = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
    };
    write("name = \"lab\"");
    let file = MeshFile::load(&path).unwrap();
    let door = Admission::new(Keypair::generate_ed25519(), &AdmissionSettings::of(&file, &path), Tally::default());
    let (changes, peer) = (door.changes(), PeerId::random());
    let mut follower = reload::Follower::default();
    let mut look = || {
        follower.look(&path, &door);
        (door.rules().revoked_peers.contains(&peer), door.tally().reloads_failed())
    };
    assert_eq!(look(), (false, 0));
    assert!(!changes.has_changed().unwrap());
    write(&format!("name = \"lab\"\n[revoked]\npeers = [\"{peer}\"]"));
    assert_eq!(look(), (true, 0));
    assert!(changes.has_changed().unwrap());
    for broken in ["name = ", "name = \"another-mesh\""] {
        write(broken);
        let failed = look();
        assert!(failed.0, "it goes on with what it had");
        assert_eq!(look(), failed, "and complains once");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(look(), (true, 3));
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert_eq!(look(), (true, 4), "a pipe is not waited for");
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(1 << 32).unwrap();
    assert_eq!(look(), (true, 5), "four gigabytes are not read");
    write("name = \"lab\"");
    assert_eq!(look(), (false, 5));
    let other = PeerId::random();
    let revokes = |peer: &PeerId| format!("name = \"lab\"\n[revoked]\npeers = [\"{peer}\"]");
    write(&revokes(&other));
    assert_eq!(look(), (false, 5));
    write(&revokes(&peer));
    assert_eq!(look(), (true, 5), "as long and as old as before, and not the same");
}

#[test]
fn a_running_peer_does_not_open_its_mesh_and_says_for_how_long_its_file_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh.toml");
    let (signer, other) = (PeerId::random(), PeerId::random());
    let closed = format!("name = \"lab\"\n[membership]\nkeys = [\"{other}\"]\n[release]\nkeys = [\"{signer}\"]\n");
    fs::write(&path, &closed).unwrap();
    let file = MeshFile::load(&path).unwrap();
    let door = Admission::new(Keypair::generate_ed25519(), &AdmissionSettings::of(&file, &path), Tally::default());
    let mut follower = reload::Follower::default();
    let mut look = |text: &str| {
        fs::write(&path, text).unwrap();
        follower.look(&path, &door);
        (door.rules().is_open() || door.rules().authorities.is_empty(), door.unusable_file())
    };
    // As an editor, a copy or a full disk may leave it behind.
    for cut in
        ["name = \"lab\"\n", &closed[..closed.find("[release]").unwrap()], "name = \"lab\"\n[membership]\nkeys = []"]
    {
        let (opened, unusable) = look(cut);
        assert!(!opened && unusable.is_some(), "{cut}: {unusable:?}");
    }
    assert_eq!(look(&closed), (false, None));
    assert_eq!(door.tally().reloads_failed(), 3);
}

#[test]
fn what_is_renewed_is_shown_from_then_on_and_what_is_wrong_is_not() {
    let (authority, key) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let mesh: otela_proto::id::MeshName = "lab".parse().unwrap();
    let me = key.public().to_peer_id();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("membership");
    let sign = |member: &PeerId, until_ms| {
        let signed = Membership::sign(&authority, &mesh, member, Validity { from_ms: 0, until_ms }).unwrap();
        fs::write(&path, armor(Kind::Membership, &[], &signed)).unwrap();
    };
    sign(&me, 1_000);
    let mut settings = AdmissionSettings::open(mesh.clone()).with_membership(&path, me).unwrap();
    let statement = signed(b"otela");
    let binary = installed(dir.path(), b"otela", &statement);
    settings = settings.with_binary(&binary, true).unwrap();
    let door = Admission::new(key, &settings, Tally::default());
    let mut renewal = shown::Renewal::new(settings.files.clone());
    let mut look = || {
        renewal.look(&door);
        let shown = door.shown();
        (shown.membership.unwrap().validity.until_ms, shown.release.unwrap().validity.until_ms)
    };
    let changes = door.changes();
    assert_eq!(look(), (1_000, u64::MAX));
    assert!(!changes.has_changed().unwrap(), "nothing is new");
    sign(&me, 2_000);
    assert_eq!(look().0, 2_000);
    assert!(changes.has_changed().unwrap(), "others may let us in now");
    sign(&PeerId::random(), 3_000);
    assert_eq!(look().0, 2_000, "somebody else's");
    fs::write(&path, "rubbish").unwrap();
    assert_eq!(look().0, 2_000);
    fs::remove_file(&path).unwrap();
    assert_eq!(look().0, 2_000);
    let signer = Keypair::generate_ed25519();
    let release = |binary: &[u8]| {
        let validity = Validity { from_ms: 0, until_ms: 5_000 };
        Release::sign(&signer, BinaryDigest::of(binary), &"0.2.0".parse().unwrap(), validity).unwrap()
    };
    installed(dir.path(), b"newer", &release(b"newer"));
    assert_eq!(look().1, u64::MAX, "another binary was installed, and this one runs");
    installed(dir.path(), b"otela", &release(b"otela"));
    assert_eq!(look().1, 5_000);
}
