use super::*;
use libp2p_identity::Keypair;
use otela_proto::{
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::{ModelCard, Payload, Service},
    provider::ProviderRules,
    registry::{Belief, Registry},
};

/// The entry of a node that serves the model `m`, changed.
pub(crate) fn entry(n: u16, change: impl FnOnce(&mut Payload)) -> Entry {
    let models = vec![ModelCard { id: "m".into(), ..ModelCard::default() }];
    let service = Service { name: "llm".into(), models, ..Service::default() };
    let mut payload = Payload { services: vec![service], ..Payload::default() };
    change(&mut payload);
    let mut seed = [7; 32];
    seed[..2].copy_from_slice(&n.to_be_bytes());
    let key = Keypair::ed25519_from_bytes(seed).unwrap();
    let mesh: MeshName = "lab".parse().unwrap();
    let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Serving, version: 0 };
    Entry::sign(&key, &mesh, Draft { rank, issued_at_ms: 1_000, payload }).unwrap()
}

pub(crate) fn view_of(entries: &[Entry], generation: u64) -> Arc<View> {
    let mut registry = Registry::default();
    for entry in entries {
        registry.learn(entry.clone(), Duration::ZERO);
    }
    let beliefs: HashMap<PeerId, Belief> = HashMap::new();
    let rules = ProviderRules::new("lab".parse().unwrap());
    let clock = Now { mono: Duration::ZERO, wall_ms: 1_000 };
    Arc::new(View::build(&registry, &beliefs, &rules, clock, Duration::from_hours(1), generation))
}

fn of_model(model: &str) -> Wanted {
    Wanted { model: Some(model.into()), ..Wanted::default() }
}

/// A ready replica of the model `m`, whose node's payload was changed.
pub(crate) fn replica(n: u16, _model: &str, change: impl FnOnce(&mut Payload)) -> Replica {
    let view = view_of(&[entry(n, change)], 1);
    let (_, state) = view.model("m").unwrap();
    state.ready[0].as_ref().clone()
}

/// The same as a candidate with a clean standing.
pub(crate) fn candidate(n: u16, change: impl FnOnce(&mut Payload)) -> Candidate {
    Candidate::new(&Arc::new(replica(n, "m", change)), &Standings::default())
}

/// So many plain candidates, ordered by session.
pub(crate) fn candidates(count: u16) -> Vec<Arc<Candidate>> {
    let entries: Vec<_> = (0..count).map(|n| entry(n, |_| ())).collect();
    let all = Candidates::default();
    all.of_view(&view_of(&entries, 1), &of_model("m"), || true).unwrap().all().to_vec()
}

fn find(all: &Candidates, view: &Arc<View>, wanted: &Wanted) -> Result<usize, NoCandidate> {
    all.of_view(view, wanted, || true).map(|pool| pool.all().len())
}

#[test]
fn what_is_wanted_is_found_by_model_service_node_and_label() {
    let team = |name: &'static str| move |payload: &mut Payload| _ = payload.labels.insert("team".into(), name.into());
    let entries = [
        entry(1, team("a")),
        entry(2, team("b")),
        entry(3, |payload| payload.services[0].name = "custom".into()),
        entry(4, |payload| {
            payload.services[0].loading = "weights".into();
            payload.labels.insert("team".into(), "d".into());
        }),
    ];
    let (all, view) = (Candidates::default(), view_of(&entries, 1));
    assert_eq!(find(&all, &view, &of_model("m")), Ok(3));
    assert_eq!(find(&all, &view, &of_model("M")), Err(NoCandidate::Unknown), "case counts");
    let service = |name: &str| Wanted { service: Some(name.into()), ..Wanted::default() };
    assert_eq!(find(&all, &view, &service("llm")), Ok(2));
    assert_eq!(find(&all, &view, &service("none")), Err(NoCandidate::Unknown));
    let neither = Wanted { service: Some("none".into()), ..of_model("m") };
    assert_eq!(find(&all, &view, &neither), Err(NoCandidate::Unknown));
    let both = Wanted { service: Some("custom".into()), ..of_model("m") };
    assert_eq!(find(&all, &view, &both), Ok(1));
    let label = |value: &str| Wanted { label: Some(("team".into(), value.into())), ..service("llm") };
    assert_eq!((find(&all, &view, &label("a")), find(&all, &view, &label("c"))), (Ok(1), Err(NoCandidate::Unknown)));
    assert_eq!(find(&all, &view, &label("d")), Err(NoCandidate::NotReady), "somebody has it");
    let none = Wanted { service: Some("none".into()), ..of_model("m") };
    assert_eq!(find(&all, &view, &none), Err(NoCandidate::Unknown));
    let node = |entry: &Entry| Wanted { node: Some(entry.owner()), ..Wanted::default() };
    assert_eq!(find(&all, &view, &node(&entries[1])), Ok(1));
    assert_eq!(find(&all, &view, &node(&entries[3])), Err(NoCandidate::NotReady));
    let stranger = Wanted { node: Some(PeerId::random()), ..Wanted::default() };
    assert_eq!(find(&all, &view, &stranger), Err(NoCandidate::Unknown));
    assert_eq!(all.of_view(&view, &stranger, || false).err(), Some(NoCandidate::Joining));
}

#[test]
fn a_new_view_counts_at_once_and_what_has_not_changed_is_kept() {
    let all = Candidates::default();
    let entries = [entry(1, |_| ()), entry(2, |_| ())];
    let first = all.of_view(&view_of(&entries, 1), &of_model("m"), || true).unwrap();
    let again = all.of_view(&view_of(&entries, 1), &of_model("m"), || true).unwrap();
    assert!(Arc::ptr_eq(&first, &again), "found once for each view");
    let more = [entries[0].clone(), entries[1].clone(), entry(3, |_| ())];
    let later = all.of_view(&view_of(&more, 2), &of_model("m"), || true).unwrap();
    assert_eq!(later.all().len(), 3);
    for candidate in first.all() {
        assert!(later.all().iter().any(|other| Arc::ptr_eq(candidate, other)));
    }
    let fewer = all.of_view(&view_of(&entries[..1], 3), &of_model("m"), || true).unwrap();
    assert_eq!(fewer.all().len(), 1);
}

#[test]
fn requirements_are_answered_once_for_each_view() {
    let all = Candidates::default();
    let region =
        |name: &'static str| move |payload: &mut Payload| _ = payload.labels.insert("region".into(), name.into());
    let pool = all.of_view(&view_of(&[entry(1, region("ch")), entry(2, region("de"))], 1), &of_model("m"), || true);
    let pool = pool.unwrap();
    let selector = Selector { require: "region=ch".parse().unwrap(), ..Selector::default() };
    let mut asked = 0;
    for _ in 0..3 {
        let fit = pool.fit(&selector, |pool| {
            asked += 1;
            crate::require::filter(pool.all(), &selector.require)
        });
        assert_eq!(fit.unwrap().len(), 1);
    }
    assert_eq!(asked, 1);
    let none = Selector { require: "region=fr".parse().unwrap(), ..Selector::default() };
    let fit = pool.fit(&none, |pool| crate::require::filter(pool.all(), &none.require));
    let Err(NoCandidate::Unmet { of: 2, unmet }) = fit else { panic!("{fit:?}") };
    assert_eq!(unmet[0].to_string(), "`region=fr` fails for 2");
}
