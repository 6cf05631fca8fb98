use super::{
    super::tests::{entry, id, view},
    *,
};
use otela_proto::{lifecycle::Lifecycle, payload::Payload, registry::Belief};
use std::time::Duration;

const RUN: u64 = 0xabc;

fn seen(generation: u64) -> Option<Seen> {
    Some(Seen { run: RUN, generation })
}

fn changed(peers: &[u32], upto: u64) -> News {
    News::Changed(peers.iter().map(|number| id(*number)).collect(), seen(upto).unwrap())
}

/// A view of `peers`, each with its version.
fn peers(generation: u64, peers: &[(u32, u64)]) -> Arc<View> {
    let entries: Vec<_> =
        peers.iter().map(|(number, version)| entry(*number, Lifecycle::Join, *version, Payload::default())).collect();
    Arc::new(view(generation, &entries, &[]))
}

#[test]
fn only_what_changed_is_told_and_what_is_gone_too() {
    let history = History::new(RUN, peers(1, &[]));
    assert_eq!(history.news(None, peers(1, &[])), News::Everything(seen(1).unwrap()));
    let (entry_one, entry_two) =
        (entry(1, Lifecycle::Join, 1, Payload::default()), entry(2, Lifecycle::Join, 1, Payload::default()));
    let both = |generation, beliefs: &[_]| Arc::new(view(generation, &[entry_one.clone(), entry_two.clone()], beliefs));
    assert_eq!(history.news(seen(1), both(2, &[])), changed(&[1, 2], 2));
    assert_eq!(history.news(seen(2), both(2, &[])), changed(&[], 2), "nothing is new");
    assert_eq!(history.news(seen(2), both(3, &[])), changed(&[], 3), "nor in a view that says the same");
    let suspect = [(2, Belief::Suspect(Duration::from_secs(1)))];
    assert_eq!(history.news(seen(3), both(4, &suspect)), changed(&[2], 4), "a belief is news");
    let one = Arc::new(view(5, std::slice::from_ref(&entry_one), &[]));
    assert_eq!(history.news(seen(4), one.clone()), changed(&[2], 5), "who is gone is news");
    assert_eq!(history.news(seen(2), one.clone()), changed(&[2], 5), "several steps at once, each peer once");
    assert_eq!(history.news(seen(1), one), changed(&[1, 2], 5));
}

#[test]
fn who_was_away_with_nobody_watching_gets_the_difference() {
    let history = History::new(RUN, peers(1, &[]));
    let first = peers(5, &[(1, 1), (2, 1)]);
    history.news(None, first.clone());
    let node = first.node(&id(1)).unwrap().entry.clone();
    let later = Arc::new(view(900, &[node, entry(2, Lifecycle::Join, 7, Payload::default())], &[]));
    assert_eq!(history.news(seen(5), later), changed(&[2], 900));
}

#[test]
fn another_run_and_the_future_begin_anew() {
    let history = History::new(RUN, peers(1, &[]));
    let now = peers(3, &[(1, 1)]);
    let other_run = Some(Seen { run: RUN + 1, generation: 2 });
    assert_eq!(history.news(other_run, now.clone()), News::Everything(seen(3).unwrap()));
    assert_eq!(history.news(seen(4), now), News::Everything(seen(3).unwrap()));
}

#[test]
fn a_late_watcher_with_an_older_view_takes_nothing_back() {
    let history = History::new(RUN, peers(1, &[]));
    let (old, new) = (peers(2, &[(1, 1)]), peers(3, &[(1, 2)]));
    history.news(None, new);
    assert_eq!(history.news(seen(3), old), changed(&[], 3));
}

#[test]
fn the_ring_is_bounded_and_says_when_it_does_not_reach_back() {
    let history = History::new(RUN, peers(1, &[]));
    let steps = STEPS_MAX as u64 + 10;
    for generation in 2..2 + steps {
        history.news(None, peers(generation, &[(1, generation)]));
    }
    let newest = 1 + steps;
    let now = || peers(newest, &[(1, newest)]);
    assert_eq!(history.news(seen(1), now()), News::Everything(seen(newest).unwrap()));
    assert_eq!(history.news(seen(11), now()), changed(&[1], newest), "the oldest step that is left");
    let ring = history.ring.lock().unwrap();
    assert!(ring.steps.len() == STEPS_MAX && ring.held == STEPS_MAX);
}

#[test]
fn ids_are_read_back_and_nothing_else_is() {
    let one = Seen { run: u64::MAX, generation: 7 };
    assert_eq!(one.to_string().parse(), Ok(one));
    assert_eq!(Seen { run: 1, generation: 7 }.to_string(), "0000000000000001-7");
    for other in ["", "7", "x-7", "1-x", "1-", "-7", "1-7-7", "ffffffffffffffffff-1"] {
        assert_eq!(other.parse::<Seen>(), Err(NotSeen), "{other}");
    }
}
