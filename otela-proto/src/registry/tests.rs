use super::*;
use crate::{
    accusation::{Accusation, Charge, Verdict},
    clock::Now,
    entry::Draft,
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::{ModelCard, Payload, Service},
    provider::ProviderRules,
};
use crdts::{CmRDT, CvRDT};
use libp2p_identity::Keypair;
use proptest::{collection::vec, prelude::*};
use std::sync::LazyLock;

const NOW: Duration = Duration::from_secs(100);

static KEYS: LazyLock<Vec<Keypair>> =
    LazyLock::new(|| (1..6).map(|i| Keypair::ed25519_from_bytes([i; 32]).unwrap()).collect());

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn entry(key: usize, epoch: u64, lifecycle: Lifecycle, version: u64, models: &[&str]) -> Entry {
    let models = models.iter().map(|id| ModelCard { id: (*id).into(), ..ModelCard::default() }).collect();
    let payload =
        Payload { services: vec![Service { name: "llm".into(), models, ..Service::default() }], ..Payload::default() };
    let rank = Rank { epoch: Epoch(epoch), lifecycle, version };
    Entry::sign(&KEYS[key], &mesh(), Draft { rank, issued_at_ms: 1_000, payload }).unwrap()
}

fn any_entry() -> impl Strategy<Value = Entry> {
    (0..5_usize, 0..3_u64, 0..4_u32, 0..3_u64, prop::bool::ANY).prop_map(|(key, epoch, state, version, twin)| {
        // `twin` makes unlike entries of one rank: an owner that breaks the rules.
        let models: &[&str] = if twin { &["a"] } else { &["b"] };
        entry(key, epoch, Lifecycle::from_number(state).unwrap(), version, models)
    })
}

fn map_of(entries: &[Entry]) -> GMap {
    let mut map = GMap::default();
    entries.iter().for_each(|e| map.apply(e.clone()));
    map
}

fn join(a: &GMap, b: &GMap) -> GMap {
    let mut joined = a.clone();
    joined.merge(b.clone());
    joined
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merge_is_a_join(a in vec(any_entry(), 0..8), b in vec(any_entry(), 0..8), c in vec(any_entry(), 0..8)) {
        let (a, b, c) = (map_of(&a), map_of(&b), map_of(&c));
        prop_assert_eq!(join(&a, &b), join(&b, &a));
        prop_assert_eq!(join(&join(&a, &b), &c), join(&a, &join(&b, &c)));
        prop_assert_eq!(join(&a, &a), a.clone());
        // Monotone: joining never takes anything back.
        let joined = join(&a, &b);
        for old in a.iter() {
            prop_assert!(!old.replaces(joined.get(&old.owner()).unwrap()));
        }
    }

    #[test]
    fn order_and_repetition_do_not_matter(
        entries in vec(any_entry(), 1..12),
        order in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut straight = Registry::default();
        let mut shuffled = Registry::default();
        for e in &entries {
            straight.learn(e.clone(), NOW);
        }
        for index in &order {
            shuffled.learn(index.get(&entries).clone(), NOW);
        }
        for e in entries.iter().rev() {
            shuffled.learn(e.clone(), NOW);
        }
        prop_assert_eq!(straight.root(), shuffled.root());
        prop_assert_eq!(&straight.map, &shuffled.map);
    }
}

/// Something that a replica can be told.
#[derive(Debug, Clone)]
enum Told {
    Entry(Entry),
    Accusation(Accusation),
}

fn any_told() -> impl Strategy<Value = Told> {
    let accusation = (0..5_usize, 1..5_usize, 0..3_u64, 0..3_u64, prop::bool::ANY).prop_map(
        |(accuser, offset, epoch, version, evict)| {
            let subject = KEYS[(accuser + offset) % 5].public().to_peer_id();
            let verdict = if evict { Verdict::Evict } else { Verdict::Suspect };
            let charge = Charge { subject, epoch: Epoch(epoch), version, verdict };
            Told::Accusation(Accusation::sign(&KEYS[accuser], &mesh(), charge, 1_000).unwrap())
        },
    );
    prop_oneof![any_entry().prop_map(Told::Entry), accusation]
}

fn tell(registry: &mut Registry, told: &Told) {
    match told {
        Told::Entry(entry) => registry.learn(entry.clone(), NOW),
        Told::Accusation(accusation) => registry.accuse(accusation.clone()),
    };
}

/// What anti-entropy does: all entries, then all accusations.
fn give(from: &Registry, to: &mut Registry) {
    for entry in from.entries() {
        to.learn(entry.clone(), NOW);
    }
    for (_, accusations) in from.accused() {
        accusations.iter().for_each(|accusation| _ = to.accuse(accusation.clone()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // Three replicas are told parts of a history, in any order, with losses and repetitions; then each gives each what
    // it has.
    #[test]
    fn replicas_agree_whatever_reached_them_and_in_what_order(
        history in vec(any_told(), 1..16),
        orders in vec(vec(any::<prop::sample::Index>(), 0..24), 3),
    ) {
        let mut replicas = vec![Registry::default(); 3];
        for (replica, order) in replicas.iter_mut().zip(&orders) {
            order.iter().for_each(|index| tell(replica, index.get(&history)));
        }
        let before = replicas.clone();
        for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 1), (1, 2)] {
            let source = replicas[from].clone();
            give(&source, &mut replicas[to]);
        }
        for replica in &replicas {
            prop_assert_eq!(replica.root(), replicas[0].root());
            for (old, owner) in before.iter().flat_map(|old| old.entries().map(move |e| (old, e.owner()))) {
                prop_assert!(old.rank(&owner) <= replica.rank(&owner), "nothing is taken back");
            }
            // The roots are what a replica made afresh of the same content would have.
            let mut fresh = Registry::default();
            give(replica, &mut fresh);
            prop_assert_eq!(fresh.root(), replica.root());
        }
    }
}

#[test]
fn of_many_accusers_all_replicas_keep_the_same() {
    let accusers: Vec<_> = (10..40).map(|i| Keypair::ed25519_from_bytes([i; 32]).unwrap()).collect();
    let subject = entry(0, 1, Lifecycle::Serving, 3, &[]);
    let charge = Charge { subject: subject.owner(), epoch: Epoch(1), version: 3, verdict: Verdict::Suspect };
    let sign = |key: &Keypair| Accusation::sign(key, &mesh(), charge, 1_000).unwrap();
    let (mut forwards, mut backwards) = (Registry::default(), Registry::default());
    let by = |key: &Keypair, lifecycle, version| {
        let rank = Rank { epoch: Epoch(1), lifecycle, version };
        Entry::sign(key, &mesh(), Draft { rank, issued_at_ms: 1_000, payload: Payload::default() }).unwrap()
    };
    assert_eq!(forwards.accuse(sign(&accusers[0])), Learned::UnknownAccuser, "keys cost nothing");
    for registry in [&mut forwards, &mut backwards] {
        registry.learn(subject.clone(), NOW);
        accusers.iter().for_each(|key| _ = registry.learn(by(key, Lifecycle::Serving, 1), NOW));
    }
    accusers.iter().for_each(|key| _ = forwards.accuse(sign(key)));
    accusers.iter().rev().for_each(|key| _ = backwards.accuse(sign(key)));
    assert_eq!(forwards.root(), backwards.root());
    assert_eq!(forwards.accusations(&subject.owner()).len(), ACCUSERS_MAX);
    // Its next word refutes them all.
    forwards.learn(entry(0, 1, Lifecycle::Serving, 4, &[]), NOW);
    assert!(forwards.accusations(&subject.owner()).is_empty());
    assert_eq!(forwards.mark(&subject.owner()), Some(forwards.get(&subject.owner()).unwrap().id()));
}

#[test]
fn f7_only_a_later_publication_refutes() {
    let mut twins = ["a", "b"].map(|model| entry(0, 1, Lifecycle::Serving, 3, &[model]));
    twins.sort_by_key(Entry::id);
    let [lesser, greater] = twins;
    let owner = lesser.owner();
    let charge = Charge { subject: owner, epoch: Epoch(1), version: 3, verdict: Verdict::Evict };
    let accusation = Accusation::sign(&KEYS[1], &mesh(), charge, 1_000).unwrap();
    let accuser = entry(1, 1, Lifecycle::Serving, 1, &[]);
    let (mut forwards, mut backwards) = (Registry::default(), Registry::default());
    for registry in [&mut forwards, &mut backwards] {
        registry.learn(accuser.clone(), NOW);
    }
    assert_eq!(forwards.learn(lesser.clone(), NOW), Learned::New);
    assert_eq!(forwards.accuse(accusation.clone()), Learned::New);
    assert_eq!(forwards.learn(greater.clone(), NOW), Learned::New, "its owner has written one publication twice");
    assert_eq!(forwards.accusations(&owner).len(), 1);
    // The same in another order.
    for twin in [greater, lesser] {
        backwards.learn(twin, NOW);
    }
    backwards.accuse(accusation);
    assert_eq!(forwards.root(), backwards.root());
    forwards.learn(entry(0, 1, Lifecycle::Serving, 4, &[]), NOW);
    assert!(forwards.accusations(&owner).is_empty());
}

#[test]
fn p43_departed_owners_are_bounded_and_what_was_buried_does_not_come_back() {
    let key = |i: u64| {
        let mut secret = [3; 32];
        secret[..8].copy_from_slice(&i.to_be_bytes());
        Keypair::ed25519_from_bytes(secret).unwrap()
    };
    let say = |i: u64, lifecycle, version| {
        let rank = Rank { epoch: Epoch(1), lifecycle, version };
        let draft = Draft { rank, issued_at_ms: 1_000_000 + i, payload: Payload::default() };
        Entry::sign(&key(i), &mesh(), draft).unwrap()
    };
    let many = DEPARTED_MAX as u64 + 100;
    let mut registry = Registry::default();
    for i in 0..many {
        assert_eq!(registry.learn(say(i, Lifecycle::Serving, 1), NOW), Learned::New);
        assert_eq!(registry.learn(say(i, Lifecycle::Left, 2), NOW), Learned::New);
    }
    assert_eq!((registry.len(), registry.departed(), registry.graves()), (DEPARTED_MAX, DEPARTED_MAX, 100));
    assert_eq!(registry.learn(say(5, Lifecycle::Serving, 1), NOW), Learned::Buried);
    assert_eq!(registry.learn(say(5, Lifecycle::Left, 2), NOW), Learned::Buried);
    assert_eq!(registry.learn(say(5, Lifecycle::Left, 3), NOW), Learned::New, "its own later word counts");
    // After their time nobody needs to remember them: by their age everybody refuses them.
    let day_ms = 24 * 3_600_000;
    registry.expire(1_000_000 + 2 * day_ms);
    assert_eq!((registry.len(), registry.root()), (0, [0; 16]));
    registry.expire(1_000_000 + 2 * day_ms + 10_000);
    assert_eq!(registry.graves(), 0);
}

#[test]
fn later_states_win_over_versions_and_later_sessions_over_states() {
    let mut registry = Registry::default();
    let mut learn = |e: &Entry| registry.learn(e.clone(), NOW);
    assert_eq!(learn(&entry(0, 1, Lifecycle::Serving, 9, &[])), Learned::New);
    assert_eq!(learn(&entry(0, 1, Lifecycle::Down, 0, &[])), Learned::New);
    assert_eq!(learn(&entry(0, 1, Lifecycle::Serving, 99, &[])), Learned::Backwards);
    assert_eq!(learn(&entry(0, 1, Lifecycle::Serving, 0, &[])), Learned::Stale);
    assert_eq!(learn(&entry(0, 2, Lifecycle::Join, 0, &[])), Learned::New);
    assert_eq!(learn(&entry(0, 1, Lifecycle::Left, 0, &[])), Learned::Stale);
}

#[test]
fn an_empty_and_a_refilled_root_agree() {
    let mut registry = Registry::default();
    assert_eq!(registry.root(), [0; 16]);
    registry.learn(entry(0, 1, Lifecycle::Join, 0, &[]), NOW);
    registry.learn(entry(0, 2, Lifecycle::Join, 0, &[]), NOW);
    assert_eq!(registry.root(), entry(0, 2, Lifecycle::Join, 0, &[]).id().0);
}

fn view(entries: &[Entry], beliefs: &HashMap<PeerId, Belief>, now: Duration) -> View {
    let mut registry = Registry::default();
    for e in entries {
        registry.learn(e.clone(), NOW);
    }
    let (rules, now) = (ProviderRules::new(mesh()), Now { mono: now, wall_ms: 1_000_000 });
    View::build(&registry, beliefs, &rules, now, Duration::from_hours(24), 1)
}

#[test]
fn only_serving_reachable_nodes_are_ready() {
    let entries = [
        entry(0, 1, Lifecycle::Serving, 0, &["m", "org/n:tag"]),
        entry(1, 1, Lifecycle::Serving, 0, &["m"]),
        entry(2, 1, Lifecycle::Join, 0, &["m"]),
        entry(3, 1, Lifecycle::Down, 0, &["m"]),
    ];
    let beliefs = HashMap::from([(entries[1].owner(), Belief::Unreachable(NOW))]);
    let view = view(&entries, &beliefs, NOW);
    let (_, state) = view.model("m").unwrap();
    assert_eq!(state.ready.iter().map(|r| r.session()).collect::<Vec<_>>(), [entries[0].session()]);
    assert_eq!(state.unready, 3);
    assert_eq!(view.model("org/n:tag").unwrap().1.ready.len(), 1);
    assert!(view.model("M").is_none(), "case counts");
}

#[test]
fn p04_a_model_stays_known_for_a_while_after_its_last_node_left() {
    let entries = [entry(0, 1, Lifecycle::Left, 0, &["m"])];
    let soon = view(&entries, &HashMap::new(), NOW + Duration::from_secs(60));
    assert_eq!(soon.model("m").unwrap().1.ready.len(), 0);
    assert_eq!(soon.stale_at(), Some(NOW + LEFT_KNOWN));
    assert!(view(&entries, &HashMap::new(), NOW + LEFT_KNOWN).model("m").is_none());
}

const LEFT_KNOWN: Duration = Duration::from_mins(5);
