//! State directories that were damaged, taken, or written by a process that died.

use super::{
    disk::{ASIDE_MAX, Disk},
    form::{ADDRESSES_MAX, BYTES_MAX, PEERS_MAX, encode},
    keeper::next,
    *,
};
use libp2p::identity::Keypair;
use otela_proto::{
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::Session,
    lifecycle::Lifecycle,
    payload::{Payload, Role},
    provider::ProviderRules,
    registry::{Belief, Registry, View},
};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Set for a copy of this test's program that writes until it is killed.
const WRITES_INTO: &str = "OTELA_TEST_STATE_WRITES_INTO";

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn saved(peers: u16, epoch: u64) -> Saved {
    let known = |n| Known {
        peer: PeerId::random(),
        addresses: vec![format!("/ip4/10.0.0.1/tcp/{}", 1 + n).parse().unwrap(); ADDRESSES_MAX],
    };
    Saved { own: vec![(PeerId::random(), Epoch(epoch))], peers: (0..peers).map(known).collect(), ..Saved::default() }
}

fn names(dir: &TempDir) -> Vec<String> {
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made/on/the/way");
    let written = saved(3, 7);
    let mut state = State::open(&path, &mesh()).unwrap();
    assert_eq!(state.saved, Saved::default());
    state.disk.write(&encode(&written, &mesh())).unwrap();
    drop(state);
    let state = State::open(&path, &mesh()).unwrap();
    assert_eq!(state.saved, written);
    assert_eq!((state.epoch(&written.own[0].0), state.epoch(&PeerId::random())), (Some(Epoch(7)), None));
    let me = written.peers[1].peer;
    assert_eq!(state.peers(&me), [written.peers[0].clone(), written.peers[2].clone()]);
    assert_eq!(fs::metadata(state.disk.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn meshes_have_files_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = State::open(dir.path(), &mesh()).unwrap();
    state.disk.write(&encode(&saved(1, 1), &mesh())).unwrap();
    drop(state);
    assert_eq!(State::open(dir.path(), &"other".parse().unwrap()).unwrap().saved, Saved::default());
    assert_eq!(names(&dir), ["state-lab"]);
}

#[test]
fn a_directory_in_use_and_what_is_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let held = State::open(dir.path(), &mesh()).unwrap();
    let shared = held.clone();
    drop(held);
    let error = State::open(dir.path(), &"other".parse().unwrap()).unwrap_err();
    assert!(matches!(error, StateError::InUse { .. }));
    assert!(error.to_string().contains("stop that one, or name another with --state"), "{error}");
    drop(shared);
    State::open(dir.path(), &mesh()).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(State::open(&file, &mesh()), Err(StateError::NotADirectory { .. })));
    assert!(matches!(State::open(&file.join("below"), &mesh()), Err(StateError::NotADirectory { .. })));
}

#[test]
fn damaged_files_are_set_aside_whatever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state-lab");
    let whole = encode(&saved(2, 1), &mesh());
    let cut = &whole[..whole.len() - 1];
    let newer = [b"otela-state/2", &whole["otela-state/1".len()..]].concat();
    for (n, bytes) in [&b""[..], b"{}", cut, &newer, &vec![b'x'; 2 * BYTES_MAX]].into_iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        let state = State::open(dir.path(), &mesh()).unwrap();
        assert_eq!((state.set_aside, state.writable, &state.saved), (1, true, &Saved::default()));
        assert_eq!(fs::read(dir.path().join(format!("state-lab.damaged-{}", n + 1))).unwrap(), bytes);
        assert!(!path.exists());
    }
    fs::create_dir(&path).unwrap();
    assert_eq!(State::open(dir.path(), &mesh()).unwrap().set_aside, 1);
    let _socket = UnixListener::bind(&path).unwrap();
    assert_eq!(State::open(dir.path(), &mesh()).unwrap().set_aside, 1);
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert_eq!(State::open(dir.path(), &mesh()).unwrap().set_aside, 1);
    assert_eq!(names(&dir).len(), 8);
}

#[test]
fn files_set_aside_are_bounded_and_the_oldest_goes() {
    let dir = tempfile::tempdir().unwrap();
    let aside = |n| dir.path().join(format!("state-lab.damaged-{n}"));
    for n in 1..=ASIDE_MAX {
        fs::write(aside(n), "old").unwrap();
        let age = Duration::from_secs(if n == 3 { 1_000 } else { u64::from(n) });
        let file = fs::File::options().write(true).open(aside(n)).unwrap();
        file.set_modified(std::time::SystemTime::now() - age).unwrap();
    }
    fs::write(dir.path().join("state-lab"), "new").unwrap();
    State::open(dir.path(), &mesh()).unwrap();
    assert_eq!(names(&dir).len(), ASIDE_MAX as usize);
    assert_eq!(fs::read(aside(3)).unwrap(), b"new");
}

#[test]
fn a_write_that_fails_leaves_the_old_file_and_can_be_made_good() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (encode(&saved(1, 1), &mesh()), encode(&saved(64, 2), &mesh()));
    let mut disk = Disk::new(dir.path(), "state-lab".to_owned());
    disk.write(&old).unwrap();
    // Permissions would not stop a test that runs as root; a directory in the way does.
    let obstacle = dir.path().join("state-lab.new");
    fs::create_dir(&obstacle).unwrap();
    disk.write(&new).unwrap_err();
    assert_eq!(disk.read().unwrap().unwrap(), old);
    fs::remove_dir(&obstacle).unwrap();
    fs::write(&obstacle, "half of a").unwrap();
    disk.write(&new).unwrap();
    assert_eq!(disk.read().unwrap().unwrap(), new);
    assert_eq!(names(&dir), ["state-lab"]);
}

/// Writes and reads back: a few times, or until it is killed where another test wants that.
#[test]
fn each_write_is_read_back() {
    #[expect(clippy::disallowed_methods, reason = "the only way to tell a copy of the test's own program what to do")]
    let victim = std::env::var(WRITES_INTO).ok();
    let own = tempfile::tempdir().unwrap();
    let dir = victim.as_ref().map_or(own.path(), Path::new);
    let mut state = State::open(dir, &mesh()).unwrap();
    let mut round = state.saved.own.first().map_or(0, |own| own.1.0);
    while victim.is_some() || round < 20 {
        round += 1;
        let written = saved((round % 64) as u16, round);
        state.disk.write(&encode(&written, &mesh())).unwrap();
        state.read();
        assert_eq!((state.set_aside, &state.saved), (0, &written));
        if victim.is_some() {
            println!("round {round}");
        }
    }
}

#[test]
fn whoever_is_killed_while_writing_leaves_a_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for lines in 1..=12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer::state::tests::each_write_is_read_back", "--nocapture"])
            .env(WRITES_INTO, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let written = said.filter(|line| line.starts_with("round ")).take(lines).last();
        // SIGKILL, in the middle of whatever it does.
        child.kill().unwrap();
        child.wait().unwrap();
        let told = written.expect("it wrote").trim_start_matches("round ").parse().unwrap();
        let state = State::open(dir.path(), &mesh()).unwrap();
        assert_eq!(state.set_aside, 0);
        let found = state.saved.own[0].1.0;
        assert!(found >= told && told > last, "{found} was found, {told} was written, {last} before");
        last = found;
    }
    assert!(names(&dir).iter().all(|name| ["state-lab", "state-lab.new"].contains(&name.as_str())));
}

struct Scene {
    registry: Registry,
    beliefs: HashMap<PeerId, Belief>,
}

impl Scene {
    fn add(&mut self, role: Role, lifecycle: Lifecycle, belief: Belief) -> PeerId {
        let key = Keypair::generate_ed25519();
        let address: otela_proto::Multiaddr = "/ip4/10.0.0.1/tcp/7".parse().unwrap();
        let payload = Payload { addresses: vec![address.to_vec()], roles: vec![role as i32], ..Payload::default() };
        let rank = Rank { epoch: Epoch(1), lifecycle, version: 1 };
        let entry = Entry::sign(&key, &mesh(), Draft { rank, issued_at_ms: 1, payload }).unwrap();
        let owner = entry.owner();
        self.registry.learn(entry, Duration::ZERO);
        self.beliefs.insert(owner, belief);
        owner
    }

    fn next(&self, before: &Saved, me: PeerId) -> Saved {
        let rules = ProviderRules::new(mesh());
        let retention = Duration::from_hours(24);
        let view = View::build(&self.registry, &self.beliefs, &rules, Now::default(), retention, 1);
        next(before, &view, Session { peer: me, epoch: Epoch(9) }, true)
    }
}

#[test]
fn the_most_useful_peers_are_remembered() {
    let mut scene = Scene { registry: Registry::default(), beliefs: HashMap::new() };
    let down = Belief::Unreachable(Duration::ZERO);
    let me = scene.add(Role::Node, Lifecycle::Serving, Belief::Alive);
    let departed = scene.add(Role::Node, Lifecycle::Left, Belief::Alive);
    let relay_departed = scene.add(Role::Relay, Lifecycle::Left, Belief::Alive);
    let silent = scene.add(Role::Node, Lifecycle::Serving, down);
    let node = scene.add(Role::Node, Lifecycle::Serving, Belief::Alive);
    let relay = scene.add(Role::Relay, Lifecycle::Join, Belief::Alive);
    let mut before = saved(2, 5);
    before.peers[0].peer = departed;
    let kept = scene.next(&before, me);
    let order: Vec<_> = kept.peers.iter().map(|known| known.peer).collect();
    assert_eq!(order, [relay, node, relay_departed, silent, before.peers[1].peer]);
    assert_eq!(kept.own, [(me, Epoch(9)), before.own[0]]);
    for _ in 0..2 * PEERS_MAX {
        scene.add(Role::Node, Lifecycle::Serving, Belief::Alive);
    }
    let full = scene.next(&kept, me);
    assert_eq!(full.peers.len(), PEERS_MAX);
    assert!(full.peers.iter().any(|known| known.peer == node), "who is remembered stays before its equals");
    assert_eq!(scene.next(&full, me), full, "nothing is written when nothing has changed");
}
