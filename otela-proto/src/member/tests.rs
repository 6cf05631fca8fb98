//! A small mesh in virtual time, for what one rule does; whole schedules of faults are in `tests/simulation`.

mod private;
mod traffic;

use super::*;
use crate::{
    accusation::{Accusation, Verdict},
    clock::Now,
    entry::{Draft, Rank},
    gossip::Outbox,
    lifecycle::Lifecycle,
    own::Announcement,
    payload::{Payload, Role},
    wire::{Digest, Frame, Root},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

const WALL_MS: u64 = 1_800_000_000_000;

struct Mesh {
    keys: Vec<Keypair>,
    members: Vec<Member>,
    wire: BinaryHeap<Reverse<(Duration, u64, usize, usize)>>,
    frames: BTreeMap<u64, Frame>,
    log: Vec<(usize, Output)>,
    now: Duration,
    sent: u64,
    sent_bytes: usize,
    silent: Vec<bool>,
    rng: SmallRng,
}

impl Mesh {
    fn new(n: usize, seed: u64) -> Self {
        let keys: Vec<_> = (0..n).map(|i| key(7, i as u64)).collect();
        let member = |(i, key): (usize, &Keypair)| {
            let settings = Settings { roles: vec![Role::Node], ..Settings::new(mesh_name()) };
            Member::new(key.clone(), settings, None, seed * 1_000 + i as u64, at(Duration::ZERO))
        };
        let members = keys.iter().enumerate().map(member).collect();
        let mut mesh = Self {
            keys,
            members,
            wire: BinaryHeap::new(),
            frames: BTreeMap::new(),
            log: Vec::new(),
            now: Duration::ZERO,
            sent: 0,
            sent_bytes: 0,
            silent: vec![false; n],
            rng: SmallRng::seed_from_u64(seed),
        };
        for i in 0..n {
            mesh.input(i, Input::Announce(Box::new(serving())));
        }
        // Everybody meets the first one; then whom they want.
        for i in 1..n {
            mesh.link(0, i);
        }
        mesh.run(Duration::from_millis(900));
        for i in 0..n {
            for other in mesh.members[i].wanted_links() {
                let j = mesh.index(&other);
                mesh.link(i, j);
            }
        }
        mesh.run(Duration::from_secs(3));
        mesh
    }

    fn index(&self, peer: &PeerId) -> usize {
        self.members.iter().position(|m| m.me == *peer).unwrap()
    }

    fn id(&self, i: usize) -> PeerId {
        self.members[i].me
    }

    fn link(&mut self, a: usize, b: usize) {
        for (x, y) in [(a, b), (b, a)] {
            let peer = self.id(y);
            if !self.members[x].links.contains(&peer) {
                self.input(x, Input::LinkUp { peer, rtt: Some(Duration::from_millis(1)) });
            }
        }
    }

    fn input(&mut self, i: usize, input: Input) {
        let mut out = Vec::new();
        self.members[i].handle(at(self.now), input, &mut out);
        let mut boxes: BTreeMap<PeerId, Outbox> = BTreeMap::new();
        for output in out {
            match output {
                Output::Send { to, parcel } => {
                    boxes.entry(to).or_default().push(parcel);
                }
                Output::Reach(peer) => {
                    let Some(j) = self.members.iter().position(|m| m.me == peer) else {
                        self.input(i, Input::Unreachable(peer));
                        continue;
                    };
                    if self.silent[j] || self.silent[i] {
                        self.input(i, Input::Unreachable(peer));
                    } else {
                        self.link(i, j);
                    }
                }
                other => self.log.push((i, other)),
            }
        }
        for (to, mut outbox) in boxes {
            while let Some(frame) = outbox.pop() {
                self.send(i, to, frame);
            }
        }
    }

    fn send(&mut self, from: usize, to: PeerId, frame: Frame) {
        self.sent += 1;
        self.sent_bytes += prost::Message::encoded_len(&frame);
        let delay = Duration::from_micros(self.rng.random_range(200..15_000));
        self.wire.push(Reverse((self.now + delay, self.sent, from, self.index(&to))));
        self.frames.insert(self.sent, frame);
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let awake = self.members.iter().enumerate().filter(|(i, _)| !self.silent[*i]);
            let (timer_at, i) = awake.map(|(i, m)| (m.wake_at(), i)).min().unwrap();
            let arrival = self.wire.peek().map(|Reverse((at, ..))| *at);
            let next = arrival.map_or(timer_at, |at| at.min(timer_at));
            if next > end {
                self.now = end;
                return;
            }
            self.now = next.max(self.now);
            if arrival.is_none_or(|at| at > timer_at) {
                self.input(i, Input::Tick);
                continue;
            }
            let Reverse((_, id, from, to)) = self.wire.pop().unwrap();
            let frame = self.frames.remove(&id).unwrap();
            if !self.silent[from] && !self.silent[to] {
                self.input(to, opened(self.id(from), frame.say.unwrap()));
            }
        }
    }

    fn all_equal(&self) -> bool {
        self.members.iter().all(|m| m.registry.root() == self.members[0].registry.root())
    }
}

fn opened(from: PeerId, say: Say) -> Input {
    let Say::Entries(page) = say else { return Input::Say { from, say } };
    let entry = |bytes: &bytes::Bytes| Entry::open(bytes, &mesh_name(), WALL_MS).unwrap();
    let accusation = |bytes: &bytes::Bytes| Accusation::open(bytes, &mesh_name(), WALL_MS).unwrap();
    Input::Entries {
        from,
        entries: page.signed.iter().map(entry).collect(),
        accusations: page.accusations.iter().map(accusation).collect(),
    }
}

fn at(mono: Duration) -> Now {
    Now { mono, wall_ms: WALL_MS + crate::clock::millis(mono) }
}

fn key(kind: u8, i: u64) -> Keypair {
    let mut secret = [kind; 32];
    secret[..8].copy_from_slice(&i.to_be_bytes());
    Keypair::ed25519_from_bytes(secret).unwrap()
}

fn serving() -> Announcement {
    Announcement { lifecycle: Lifecycle::Serving, ..Announcement::default() }
}

fn mesh_name() -> crate::id::MeshName {
    "lab".parse().unwrap()
}

#[test]
fn a_mesh_settles_and_stays_quiet() {
    let mut mesh = Mesh::new(24, 1);
    assert!(mesh.all_equal());
    let (sent, bytes) = (mesh.sent, mesh.sent_bytes);
    mesh.run(Duration::from_secs(100));
    let per_second = |n: u64| n as f64 / 24.0 / 100.0;
    assert!(per_second(mesh.sent - sent) < 3.3, "{} frames per member and second", per_second(mesh.sent - sent));
    assert!(per_second((mesh.sent_bytes - bytes) as u64) < 60.0);
    let suspected = mesh.members.iter().any(|m| m.registry.accused().next().is_some());
    assert!(!suspected && mesh.all_equal());
}

#[test]
fn a_crash_is_suspected_at_once_and_evicted_after_the_grace() {
    let mut mesh = Mesh::new(24, 2);
    let dead = mesh.id(5);
    mesh.silent[5] = true;
    mesh.run(Duration::from_secs(3));
    for member in mesh.members.iter().filter(|m| m.me != dead) {
        assert!(matches!(member.belief(&dead), Belief::Suspect(_)), "{:?}", member.belief(&dead));
    }
    mesh.run(Duration::from_secs(5));
    for member in mesh.members.iter().filter(|m| m.me != dead) {
        assert!(matches!(member.belief(&dead), Belief::Evicted(_)), "{:?}", member.belief(&dead));
        assert!(member.registry.accusations(&dead).len() <= 12);
    }
    mesh.silent[5] = false;
    mesh.run(Duration::from_secs(60));
    assert!(mesh.log.iter().any(|(i, output)| *i == 5 && matches!(output, Output::NewSession(NewSession::Evicted))));
    assert!(mesh.members.iter().all(|m| m.belief(&dead) == Belief::Alive), "back under a new session");
    assert!(mesh.all_equal());
}

#[test]
fn who_was_evicted_and_buried_meanwhile_is_told_and_comes_back() {
    let mut mesh = Mesh::new(8, 12);
    let away = mesh.id(5);
    mesh.silent[5] = true;
    mesh.run(Duration::from_secs(10));
    // So many others come and go meanwhile that the replicas keep a tombstone only.
    let leave = |i| {
        let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Left, version: 1 };
        let issued_at_ms = WALL_MS + 10_000 + i;
        let draft = Draft { rank, issued_at_ms, payload: Payload::default() };
        Entry::sign(&key(4, i), &mesh_name(), draft).unwrap()
    };
    let left: Vec<_> = (0..1_100).map(leave).collect();
    let from = mesh.id(0);
    for i in [0, 1, 2, 3, 4, 6, 7] {
        mesh.input(i, Input::Entries { from, entries: left.clone(), accusations: vec![] });
    }
    mesh.run(Duration::from_secs(5));
    assert!(mesh.members[0].registry.get(&away).is_none() && mesh.members[0].registry.buried(&away).is_some());
    mesh.silent[5] = false;
    mesh.run(Duration::from_secs(60));
    // Told by the first vote it refutes; told by all at once it begins a new session. Either way it is back.
    for member in &mesh.members {
        assert!(member.registry.rank(&away).is_some_and(|rank| rank.lifecycle == Lifecycle::Serving));
        assert_eq!(member.belief(&away), Belief::Alive);
    }
}

#[test]
fn one_liar_evicts_nobody_and_loses_its_voice() {
    let mut mesh = Mesh::new(24, 3);
    let (mut rounds, mut out) = (0, 0);
    while rounds < 40 {
        let victims: Vec<_> =
            (1..24).map(|i| (mesh.id(i), mesh.members[0].registry.rank(&mesh.id(i)).unwrap())).collect();
        for (subject, rank) in victims {
            let charge = Charge { subject, epoch: rank.epoch, version: rank.version, verdict: Verdict::Evict };
            let lie = Accusation::sign(&mesh.keys[0], &mesh_name(), charge, WALL_MS).unwrap();
            let from = mesh.id(0);
            for i in 1..24 {
                mesh.input(i, Input::Entries { from, entries: vec![], accusations: vec![lie.clone()] });
            }
        }
        mesh.run(Duration::from_millis(500));
        let believed = mesh.members.iter().skip(1).flat_map(|m| m.liveness.beliefs().values()).count();
        out = out.max(if rounds > 10 { believed } else { 0 });
        rounds += 1;
    }
    assert_eq!(out, 0, "after a few lies nobody is out of rotation by them");
    assert!(!mesh.log.iter().any(|(_, output)| matches!(output, Output::NewSession(_))));
}

#[test]
fn who_was_stopped_accuses_nobody_when_it_goes_on() {
    let mut mesh = Mesh::new(12, 4);
    mesh.silent[3] = true;
    mesh.run(Duration::from_secs(60));
    mesh.silent[3] = false;
    mesh.run(Duration::from_secs(60));
    let stopped = mesh.id(3);
    let accused = |m: &Member| m.registry.accused().any(|(_, list)| list.iter().any(|a| a.accuser() == stopped));
    assert!(!mesh.members.iter().any(accused));
    assert!(mesh.all_equal() && mesh.members.iter().all(|m| m.belief(&stopped) == Belief::Alive));
}

#[test]
fn p41_a_clock_that_was_set_is_followed_by_a_new_word() {
    let mut mesh = Mesh::new(2, 8);
    let issued = |mesh: &Mesh| mesh.members[0].registry.get(&mesh.id(0)).unwrap().issued_at_ms();
    let hour_ms = 3_600_000;
    let mut out = Vec::new();
    for (wall_ms, published) in [
        (WALL_MS + hour_ms, false),
        // A week in a drawer, in which the monotonic clock stood still.
        (WALL_MS + 7 * 24 * hour_ms, true),
        (WALL_MS + 7 * 24 * hour_ms - 10_000, false),
        (WALL_MS, true),
    ] {
        let before = issued(&mesh);
        mesh.now = mesh.members[0].expire_at;
        mesh.members[0].handle(Now { mono: mesh.now, wall_ms }, Input::Tick, &mut out);
        assert_eq!(issued(&mesh) != before, published, "{wall_ms}");
        assert!(!published || issued(&mesh) == wall_ms);
    }
}

#[test]
fn a_short_life_of_many_words_ends_with_one_that_is_heard() {
    let mut mesh = Mesh::new(6, 10);
    for n in 0..20 {
        let labels = std::iter::once(("n".to_owned(), n.to_string())).collect();
        mesh.input(3, Input::Announce(Box::new(Announcement { labels, ..serving() })));
        mesh.run(Duration::from_millis(5));
    }
    mesh.input(3, Input::Leave);
    mesh.input(3, Input::Tick);
    // The process ends at once; what it has sent is on its way, and others pass it on.
    let gone = mesh.id(3);
    mesh.run(Duration::from_millis(16));
    mesh.silent[3] = true;
    mesh.run(Duration::from_millis(100));
    for member in mesh.members.iter().filter(|m| m.me != gone) {
        assert_eq!(member.registry.rank(&gone).unwrap().lifecycle, Lifecycle::Left);
    }
}

#[test]
fn to_say_the_same_again_costs_nothing() {
    let mut mesh = Mesh::new(2, 9);
    let version = |mesh: &Mesh| mesh.members[0].registry.rank(&mesh.id(0)).unwrap().version;
    let before = version(&mesh);
    mesh.input(0, Input::Announce(Box::new(serving())));
    assert_eq!(version(&mesh), before);
    mesh.input(0, Input::Announce(Box::new(Announcement { draining: true, ..serving() })));
    assert_eq!(version(&mesh), before + 1);
}

#[test]
fn of_two_processes_with_one_key_the_younger_goes_on() {
    let mut mesh = Mesh::new(6, 5);
    let twin = Member::new(mesh.keys[2].clone(), Settings::new(mesh_name()), None, 99, at(mesh.now));
    // In the mesh of this test one index is one process: the twin takes over, the old one is asked by hand.
    let mut old = std::mem::replace(&mut mesh.members[2], twin);
    mesh.input(2, Input::Announce(Box::new(serving())));
    let (mut out, mut twins) = (Vec::new(), 0);
    for _ in 0..4 {
        let theirs = mesh.members[2].registry.get(&old.me).unwrap().clone();
        old.handle(
            at(mesh.now),
            Input::Entries { from: mesh.id(0), entries: vec![theirs], accusations: vec![] },
            &mut out,
        );
        let ours = old.registry.get(&old.me).unwrap().clone();
        let from = mesh.id(0);
        mesh.input(2, Input::Entries { from, entries: vec![ours], accusations: vec![] });
        twins += out.drain(..).filter(|output| matches!(output, Output::Twin)).count();
        mesh.run(Duration::from_millis(50));
    }
    assert_eq!(twins, 1, "the older one stops, once");
    assert!(!mesh.log.iter().any(|(i, output)| *i == 2 && matches!(output, Output::Twin)));
}

#[test]
fn a_joiner_gets_a_large_registry_in_pages_through_buckets() {
    let mut mesh = Mesh::new(2, 6);
    let (first, second) = (mesh.id(0), mesh.id(1));
    mesh.input(0, Input::LinkDown(second));
    mesh.input(1, Input::LinkDown(first));
    let entries = (0..2_000).map(|i| {
        let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version: 1 };
        let payload = Payload { software: "x".repeat(400), ..Payload::default() };
        Entry::sign(&key(9, i), &mesh_name(), Draft { rank, issued_at_ms: WALL_MS, payload }).unwrap()
    });
    let entries = entries.collect();
    mesh.input(0, Input::Entries { from: second, entries, accusations: vec![] });
    mesh.run(Duration::from_millis(100));
    let before = mesh.sent;
    mesh.link(0, 1);
    mesh.run(Duration::from_secs(1));
    assert_eq!(mesh.members[1].registry.len(), 2_002);
    assert!(mesh.all_equal());
    assert!(mesh.sent - before < 80, "{} frames", mesh.sent - before);
}

#[test]
fn malformed_frames_are_named_and_change_nothing() {
    let mut mesh = Mesh::new(2, 7);
    let from = mesh.id(1);
    let digest = |places: Vec<u64>, buckets| Digest { buckets, places, ..Default::default() };
    for say in [
        Say::Root(Root { hash: vec![0; 3], count: 0 }),
        Say::Buckets(crate::wire::Buckets { hashes: vec![vec![0; 16]; 3] }),
        Say::Buckets(crate::wire::Buckets { hashes: vec![vec![0; 15]; 16] }),
        Say::Digest(digest(vec![1, 2], 0xffff)),
        Say::Ask(crate::wire::Ask { number: 1, subject: vec![1, 2, 3] }),
    ] {
        mesh.log.clear();
        mesh.input(0, Input::Say { from, say });
        assert!(matches!(mesh.log[..], [(0, Output::Malformed(peer))] if peer == from), "{:?}", mesh.log);
    }
}

#[test]
fn one_accusation_in_ever_new_forms_is_passed_on_at_a_bounded_rate() {
    let mut mesh = Mesh::new(8, 5);
    let (accuser, accused) = (3, mesh.id(5));
    let rank = mesh.members[1].registry.rank(&accused).unwrap();
    let charge = Charge { subject: accused, epoch: rank.epoch, version: rank.version, verdict: Verdict::Suspect };
    let form = |n| Accusation::sign(&mesh.keys[accuser], &mesh_name(), charge, WALL_MS + n).unwrap();
    let mut forms: Vec<_> = (0..2_000).map(form).collect();
    forms.sort_by_key(Accusation::id);
    // The accused itself is silent, or it would refute.
    mesh.silent[5] = true;
    let (from, sent) = (mesh.id(accuser), mesh.sent);
    for form in forms {
        mesh.input(1, Input::Entries { from, entries: Vec::new(), accusations: vec![form] });
        mesh.run(Duration::from_millis(3));
    }
    // 64 at once and two a second from then on, over a handful of links; 13,500 frames if nobody counted.
    let passed = mesh.sent - sent;
    assert!(passed < 2_000, "{passed} frames");
    mesh.run(Duration::from_secs(2));
    let hash_at = |i: usize| mesh.members[i].registry.accusations(&accused).first().map(Accusation::id);
    assert!(hash_at(1).is_some() && hash_at(1) == hash_at(7), "the last form arrives all the same");
}

#[test]
fn who_wakes_from_a_long_sleep_and_hears_one_vote_waits_for_the_others_and_then_begins_anew() {
    let mut mesh = Mesh::new(8, 6);
    let (sleeper, before) = (5, mesh.members[5].session());
    let rank = mesh.members[sleeper].registry.rank(&mesh.id(sleeper)).unwrap();
    // Nobody else runs, so that nothing comes but what is said here.
    mesh.silent = vec![true; 8];
    mesh.now += Duration::from_secs(20);
    let charge =
        Charge { subject: mesh.id(sleeper), epoch: rank.epoch, version: rank.version, verdict: Verdict::Evict };
    let vote = Accusation::sign(&mesh.keys[2], &mesh_name(), charge, WALL_MS).unwrap();
    let from = mesh.id(2);
    mesh.input(sleeper, Input::Entries { from, entries: Vec::new(), accusations: vec![vote] });
    // Its addresses have changed meanwhile: that is no answer to what was said.
    mesh.input(sleeper, Input::Addresses(vec!["/ip4/10.9.9.9/tcp/1".parse().unwrap()]));
    mesh.silent[sleeper] = false;
    mesh.run(Duration::from_millis(2_900));
    assert_eq!(mesh.members[sleeper].own.rank(), rank, "neither refuted nor begun anew");
    mesh.run(Duration::from_millis(200));
    assert!(mesh.members[sleeper].session() > before);
    let entry = mesh.members[sleeper].registry.get(&mesh.id(sleeper)).unwrap();
    assert_eq!(entry.payload().multiaddrs().next(), Some("/ip4/10.9.9.9/tcp/1".parse().unwrap()));
}

#[test]
fn an_observer_sees_the_mesh_and_nobody_hears_of_it() {
    let mut mesh = Mesh::new(3, 5);
    let observer = mesh.members.len();
    let key = key(7, 99);
    mesh.keys.push(key.clone());
    mesh.silent.push(false);
    let settings = Settings { observes: true, ..Settings::new(mesh_name()) };
    mesh.members.push(Member::new(key, settings, None, 99, at(mesh.now)));
    mesh.link(0, observer);
    mesh.link(1, observer);
    mesh.run(Duration::from_secs(3));
    mesh.input(observer, Input::Addresses(vec!["/ip4/10.0.0.1/tcp/1".parse().unwrap()]));
    // One dies: the observer believes what the others agree on, and accuses nobody itself.
    mesh.silent[2] = true;
    let (two, me) = (mesh.id(2), mesh.id(observer));
    mesh.run(Duration::from_mins(2));
    let entries =
        |member: &Member| member.registry.entries().map(Entry::owner).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(entries(&mesh.members[observer]), entries(&mesh.members[0]));
    assert!(!entries(&mesh.members[0]).contains(&me) && mesh.members[observer].registry.get(&me).is_none());
    assert!(matches!(mesh.members[observer].belief(&two), Belief::Evicted(_)));
    let accusers: Vec<_> = mesh.members[0].registry.accusations(&two).iter().map(Accusation::accuser).collect();
    assert!(!accusers.is_empty() && !accusers.contains(&me), "{accusers:?}");
    mesh.input(observer, Input::Leave);
    mesh.run(Duration::from_secs(3));
    assert!(mesh.members[0].registry.get(&me).is_none());
    let woken = mesh.members[observer].wake_at();
    assert!(woken > mesh.now, "it does not wake for nothing");
}
