use super::*;
use crate::peer::defaults::{
    DIALS_MAX, DIALS_RESERVED, DIRECT_FIRST_FOR, FOUND_DIALS_MAX, HANDSHAKE_PATIENCE, LAST_RESORT_AFTER,
    LISTED_DIALS_MAX, LISTED_UNTIL, REDIAL_MAX, REDIAL_MEETING_MAX, REMEMBERED_DIALS_MAX, REMEMBERED_UNTIL,
};

fn address(port: u16) -> Multiaddr {
    format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap()
}

#[test]
fn pauses_grow_and_end_with_a_connection() {
    let now = Instant::now();
    let mut dialer = Dialer::new(1, [(0, address(1))], now);
    let (peer, mut at, mut longest) = (PeerId::random(), now, std::time::Duration::ZERO);
    for n in 0..30 {
        let due = dialer.take_due(at);
        assert_eq!(due.len(), 1);
        let id = ConnectionId::new_unchecked(n);
        dialer.started(due[0].target, id);
        assert!(dialer.take_due(at).is_empty(), "one dial at a time");
        dialer.failed(id, at);
        assert!(dialer.take_due(at).is_empty(), "not again at once");
        let next = dialer.next().unwrap();
        longest = longest.max(next - at);
        at = next;
    }
    assert!(longest >= REDIAL_MEETING_MAX && longest <= REDIAL_MEETING_MAX * 2, "a bootstrap: {longest:?}");
    let id = ConnectionId::new_unchecked(99);
    dialer.take_due(at);
    dialer.started(Target::Bootstrap(0), id);
    dialer.connected(peer, id, Way::Own, at);
    assert_eq!(dialer.next(), None);
    dialer.lost(&peer, at);
    assert!(dialer.take_due(at).is_empty(), "one that hangs up at once is not hammered");
    let at = dialer.next().unwrap();
    assert_eq!(dialer.take_due(at)[0].peer, None, "whoever is at the address now will do");
    dialer.started(Target::Bootstrap(0), id);
    dialer.connected(peer, id, Way::Own, at);
    let at = at + STEADY_AFTER;
    dialer.lost(&peer, at);
    assert_eq!(dialer.take_due(at).len(), 1, "a lost bootstrap is dialled at once");
}

fn contact(peer: PeerId, n: u16) -> Contact {
    Contact { peer, epoch: Epoch(1), addresses: vec![address(n)], is_relay: false }
}

/// Nobody is given the time to call first.
fn lowest() -> PeerId {
    PeerId::from_bytes(&[0, 0]).unwrap()
}

#[test]
fn of_two_that_want_each_other_one_calls() {
    let now = Instant::now();
    let (a, b) = (PeerId::random(), PeerId::random());
    let (low, high) = (a.min(b), a.max(b));
    let wants = |me: &PeerId, other| {
        let mut dialer = Dialer::default();
        dialer.want(vec![contact(other, 1)], |_| false, me, now);
        (dialer.take_due(now).len(), dialer.take_due(now + COURTESY).len())
    };
    assert_eq!(wants(&low, high), (1, 0));
    assert_eq!(wants(&high, low), (0, 1), "later, if nobody has called");
}

#[test]
fn own_addresses_come_before_those_at_relays_and_those_in_time() {
    let (now, peer) = (Instant::now(), PeerId::random());
    let relay: Multiaddr = format!("/ip4/10.0.0.9/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
    let quic: Multiaddr = "/ip4/10.0.0.1/udp/1/quic-v1".parse().unwrap();
    let all = vec![relay.clone(), quic.clone(), address(1)];
    let wants = || {
        let mut dialer = Dialer::default();
        dialer.want(vec![Contact { addresses: all.clone(), ..contact(peer, 1) }], |_| false, &lowest(), now);
        let first = dialer.take_due(now);
        assert_eq!(first[0].addresses, [address(1)]);
        dialer.started(first[0].target, ConnectionId::new_unchecked(1));
        dialer
    };
    let mut slow = wants();
    assert_eq!(slow.next(), Some(now + DIRECT_FIRST_FOR));
    let second = slow.take_due(now + DIRECT_FIRST_FOR);
    assert_eq!(second[0].addresses, [quic, relay], "both are under way now");
    slow.started(second[0].target, ConnectionId::new_unchecked(2));
    assert_eq!(slow.next(), None);
    slow.failed(ConnectionId::new_unchecked(1), now);
    assert_eq!(slow.next(), None, "one still is");
    slow.failed(ConnectionId::new_unchecked(2), now);
    assert!(slow.next().unwrap() > now, "a pause, then both again");
    let mut refused = wants();
    refused.failed(ConnectionId::new_unchecked(1), now);
    assert_eq!(refused.next(), Some(now), "nobody is there: no need to wait");
    let mut connected = wants();
    connected.connected(peer, ConnectionId::new_unchecked(1), Way::Own, now);
    assert_eq!(connected.next(), None, "the others are not needed");
}

#[test]
fn where_somebody_answers_the_handshake_may_take_its_time_but_not_for_ever() {
    let (began, peer) = (Instant::now(), PeerId::random());
    let relay: Multiaddr = format!("/ip4/10.0.0.9/tcp/1/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
    let answers = Answers::default();
    let mut dialer = Dialer::default().with(None, answers.clone());
    let wanted = Contact { addresses: vec![relay.clone(), address(1)], ..contact(peer, 1) };
    dialer.want(vec![wanted], |_| false, &lowest(), began);
    let first = dialer.take_due(began);
    dialer.started(first[0].target, ConnectionId::new_unchecked(1));
    let dial = answers.begun(&address(1));
    answers.answered(&address(1));
    let mut now = dialer.next().unwrap();
    assert_eq!(now, began + DIRECT_FIRST_FOR);
    while now < began + HANDSHAKE_PATIENCE {
        assert!(dialer.take_due(now).is_empty(), "{:?}", now - began);
        now = dialer.next().unwrap();
    }
    assert_eq!(dialer.take_due(now)[0].addresses, [relay], "a gateway may answer for everybody");
    drop(dial);
    assert!(!answers.is_there(&address(1)));
}

#[test]
fn what_looks_like_the_web_comes_last_and_at_once_where_it_was_of_use() {
    let (now, peer) = (Instant::now(), PeerId::random());
    let proxy = Proxy::new("http://proxy.site:3128", "10.0.0.0/8").unwrap();
    let [tcp, wss, near]: [Multiaddr; 3] =
        ["/ip4/192.0.2.1/tcp/443", "/dns4/a.example/tcp/443/wss", "/ip4/10.0.0.1/tcp/1"].map(|a| a.parse().unwrap());
    let through = |address: &Multiaddr| proxy.through(address).unwrap();
    let addresses = vec![wss.clone(), tcp.clone(), near.clone()];
    let mut dialer = Dialer::default().with(Some(proxy.clone()), Answers::default());
    dialer.want(vec![Contact { addresses, ..contact(peer, 1) }], |_| false, &lowest(), now);
    let take = |dialer: &mut Dialer, n, at| {
        let due = dialer.take_due(at);
        assert_eq!(due.len(), 1);
        dialer.started(due[0].target, ConnectionId::new_unchecked(n));
        due[0].addresses.clone()
    };
    assert_eq!(take(&mut dialer, 1, now), [tcp.clone(), near.clone()]);
    let at = now + LAST_RESORT_AFTER;
    assert_eq!(dialer.next(), Some(at));
    assert_eq!(take(&mut dialer, 2, at), std::slice::from_ref(&wss));
    assert_eq!(dialer.next(), Some(at + DIRECT_FIRST_FOR));
    assert_eq!(dialer.failed(ConnectionId::new_unchecked(2), at), Failed::NotAll);
    assert_eq!(dialer.next(), Some(at + DIRECT_FIRST_FOR), "the first one is still under way");
    dialer.failed(ConnectionId::new_unchecked(1), at);
    assert_eq!(dialer.next(), Some(at), "nothing is");
    assert_eq!(take(&mut dialer, 3, at), [through(&wss), through(&tcp)], "10.0.0.1 needs no proxy");
    dialer.connected(peer, ConnectionId::new_unchecked(3), Way::Proxy, at);
    let later = at + STEADY_AFTER;
    dialer.lost(&peer, later);
    let all = [through(&wss), through(&tcp), wss, tcp, near];
    assert_eq!(take(&mut dialer, 4, later), all);
    assert_eq!(dialer.next(), None, "that was everything");
    assert_eq!(dialer.failed(ConnectionId::new_unchecked(4), later), Failed::All(Some(peer)));
}

#[test]
fn p46_who_is_back_is_dialled_at_once() {
    let (now, peer) = (Instant::now(), PeerId::random());
    let mut dialer = Dialer::default();
    let want = |dialer: &mut Dialer, epoch| {
        dialer.want(vec![Contact { epoch: Epoch(epoch), ..contact(peer, 1) }], |_| false, &lowest(), now);
    };
    want(&mut dialer, 1);
    for n in 0..8 {
        let at = dialer.next().unwrap();
        let due = dialer.take_due(at);
        dialer.started(due[0].target, ConnectionId::new_unchecked(n));
        dialer.failed(ConnectionId::new_unchecked(n), at);
    }
    want(&mut dialer, 1);
    assert!(dialer.next().unwrap() > now, "it is still gone");
    want(&mut dialer, 2);
    assert_eq!(dialer.next(), Some(now), "a new session");
}

#[test]
fn who_was_refused_is_left_alone_whoever_asks_for_it_and_not_in_a_new_session() {
    let (now, peer) = (Instant::now(), PeerId::random());
    let mut dialer = Dialer::default();
    dialer.want(vec![contact(peer, 1)], |_| false, &lowest(), now);
    let due = dialer.take_due(now);
    dialer.started(due[0].target, ConnectionId::new_unchecked(1));
    dialer.failed(ConnectionId::new_unchecked(1), now);
    dialer.put_off(&peer, now);
    // Gossip has heard of it again, it has another address, and a request would like to go there.
    let (waiter, _told) = oneshot::channel();
    dialer.hurry(peer, vec![address(1)], Some(waiter), now);
    dialer.want(vec![contact(peer, 2)], |_| false, &lowest(), now);
    assert_eq!(dialer.next(), Some(now + REFUSED_PAUSE));
    assert!(dialer.take_due(now + REFUSED_PAUSE / 2).is_empty());
    let back = Contact { epoch: Epoch(9), ..contact(peer, 2) };
    dialer.want(vec![back], |_| false, &lowest(), now);
    assert_eq!(dialer.take_due(now).len(), 1, "perhaps with another binary");
    dialer.put_off(&peer, now);
    dialer.begin_anew(now);
    assert!(dialer.refused.is_empty());
}

#[test]
fn circuits_that_are_put_back_are_dialled_a_moment_later_and_nobody_is_told_meanwhile() {
    let (now, peer) = (Instant::now(), PeerId::random());
    let mut dialer = Dialer::default();
    let (waiter, mut told) = oneshot::channel();
    dialer.hurry(peer, vec![address(1)], Some(waiter), now);
    let due = dialer.take_due(now).remove(0);
    let circuits = due.addresses.clone();
    dialer.put_back(due.target, due.addresses, true, now);
    assert!(dialer.take_due(now).is_empty());
    assert_eq!(dialer.next(), Some(now + RELAY_LOOK_EVERY));
    let again = dialer.take_due(now + RELAY_LOOK_EVERY).remove(0);
    assert_eq!(again.addresses, circuits);
    assert!(told.try_recv().is_err(), "it is not decided yet");
    // What could be dialled at once fails meanwhile.
    dialer.put_back(again.target, again.addresses, false, now);
    dialer.started(again.target, ConnectionId::new_unchecked(1));
    assert_eq!(dialer.failed(ConnectionId::new_unchecked(1), now), Failed::NotAll);
    let last = dialer.take_due(now + RELAY_LOOK_EVERY).remove(0);
    assert_eq!(last.addresses, circuits);
    dialer.started(last.target, ConnectionId::new_unchecked(2));
    dialer.failed(ConnectionId::new_unchecked(2), now);
    assert_eq!(told.try_recv(), Ok(false));
}

#[test]
fn who_calls_us_and_hangs_up_does_not_keep_us_from_calling() {
    let now = Instant::now();
    let (peer, mut dialer) = (PeerId::random(), Dialer::default());
    dialer.want(vec![contact(peer, 1)], |_| false, &lowest(), now);
    for n in 0..20 {
        dialer.connected(peer, ConnectionId::new_unchecked(n), Way::Own, now);
        dialer.lost(&peer, now);
    }
    assert_eq!(dialer.take_due(now).len(), 1, "at once, as if nothing had been");
}

#[test]
fn p42_dead_peers_do_not_starve_the_living() {
    let now = Instant::now();
    let mut dialer = Dialer::default();
    let wanted = (0..500).map(|n| contact(PeerId::random(), n)).collect();
    dialer.want(wanted, |_| false, &lowest(), now);
    let due = dialer.take_due(now);
    assert_eq!(due.len(), DIALS_MAX - DIALS_RESERVED);
    for (n, due) in due.iter().enumerate() {
        dialer.started(due.target, ConnectionId::new_unchecked(n));
    }
    assert_eq!(dialer.next(), None, "no more than that at once");
    // But for those that somebody waits for.
    let waiters = [0; DIALS_RESERVED + 1].map(|_| {
        let (waiter, told) = oneshot::channel();
        dialer.hurry(PeerId::random(), vec![address(2)], Some(waiter), now);
        told
    });
    assert_eq!(dialer.next(), Some(now));
    let awaited = dialer.take_due(now);
    assert_eq!(awaited.len(), DIALS_RESERVED);
    assert_eq!(dialer.next(), None, "these too are bounded");
    for (n, due) in awaited.iter().enumerate() {
        dialer.started(due.target, ConnectionId::new_unchecked(1_000 + n));
        dialer.failed(ConnectionId::new_unchecked(1_000 + n), now);
    }
    let last = dialer.take_due(now);
    assert_eq!(last.len(), 1, "the last of them has its turn");
    dialer.refused(last[0].target, now);
    drop(waiters);
    dialer.failed(ConnectionId::new_unchecked(0), now);
    let later = now + REDIAL_MAX * 3;
    let next = dialer.take_due(later);
    assert_eq!(next.len(), 1);
    assert!(due.iter().all(|earlier| earlier.target != next[0].target), "fresh ones before failed ones");
    let (peer, (waiter, mut told)) = (PeerId::random(), oneshot::channel());
    dialer.hurry(peer, vec![address(1)], Some(waiter), later);
    dialer.failed(ConnectionId::new_unchecked(1), later);
    assert_eq!(dialer.take_due(later)[0].peer, Some(peer), "one that somebody waits for before all");
    dialer.started(Target::Peer(peer), ConnectionId::new_unchecked(99));
    dialer.failed(ConnectionId::new_unchecked(99), later);
    assert_eq!(told.try_recv(), Ok(false));
}

#[test]
fn remembered_peers_are_tried_gently() {
    let start = Instant::now();
    let known = |_| Known { peer: PeerId::random(), addresses: vec![address(1)] };
    let mut dialer = Dialer::new(1, [(0, address(9))], start);
    dialer.remember((0..20).map(known).collect(), start);
    let due = dialer.take_due(start);
    assert_eq!(due.iter().map(|due| due.target).collect::<Vec<_>>(), [Target::Bootstrap(0)], "configured ones first");
    let now = start + REMEMBERED_AFTER;
    assert_eq!(dialer.next(), Some(now));
    let due = dialer.take_due(now);
    assert_eq!(due.len(), REMEMBERED_DIALS_MAX);
    assert_eq!(dialer.next(), None, "and no more at once");
    let ids: Vec<_> = (0..REMEMBERED_DIALS_MAX).map(ConnectionId::new_unchecked).collect();
    for (due, id) in due.iter().zip(&ids) {
        dialer.started(due.target, *id);
        assert!(dialer.is_quiet(*id));
    }
    dialer.failed(ids[0], now);
    assert_eq!(dialer.next(), Some(now), "one that failed makes room");
    for n in 0..REMEMBERED_UNTIL {
        dialer.connected(PeerId::random(), ConnectionId::new_unchecked(100 + n), Way::Own, now);
    }
    assert_eq!((dialer.take_due(now), dialer.next()), (vec![], None), "the mesh has been found");
    let found = due[1].peer.unwrap();
    dialer.connected(found, ids[1], Way::Own, now);
    dialer.lost(&found, now);
    assert!(!dialer.attempts.contains_key(&Target::Remembered(found)), "the registry's matter from now on");
}

#[test]
fn remembered_peers_that_are_gone_are_given_up_once_anybody_is_there() {
    let mut at = Instant::now();
    let mut dialer = Dialer::default();
    dialer.remember(vec![Known { peer: PeerId::random(), addresses: vec![address(1)] }], at);
    let mut fail = |dialer: &mut Dialer, n: u32| {
        at = dialer.next().expect("it is tried again");
        let id = ConnectionId::new_unchecked(n as usize);
        let due = dialer.take_due(at);
        dialer.started(due[0].target, id);
        dialer.failed(id, at);
    };
    for n in 0..3 * REMEMBERED_TRIES_MAX {
        fail(&mut dialer, n);
    }
    let at = dialer.next().unwrap();
    dialer.connected(PeerId::random(), ConnectionId::new_unchecked(1_000), Way::Own, at);
    fail(&mut dialer, 999);
    assert_eq!(dialer.next(), None);
}

fn at(peer: &PeerId, port: u16) -> Multiaddr {
    address(port).with_p2p(*peer).unwrap()
}

#[test]
fn a_list_is_dialled_until_enough_of_it_answers() {
    let now = Instant::now();
    let peers: Vec<_> = (0..20).map(|_| PeerId::random()).collect();
    let list = |range: std::ops::Range<usize>| range.flat_map(|n| [at(&peers[n], 1), at(&peers[n], 2)]).collect();
    let mut dialer = Dialer::new(1, [], now);
    assert!(dialer.is_deserted(), "a bootstrap is configured, and nothing is known of it");
    dialer.list(0, list(0..20), &peers[19], now);
    let due = dialer.take_due(now);
    assert_eq!(due.len(), LISTED_DIALS_MAX);
    assert!(due.iter().all(|due| due.addresses.len() == 2), "each peer is dialled at all of its addresses");
    assert_eq!(dialer.next(), None);
    for (n, due) in due.iter().enumerate() {
        dialer.started(due.target, ConnectionId::new_unchecked(n));
        assert_eq!(dialer.bootstrap(due.target).map(|(source, _)| source), Some(0));
    }
    for (n, due) in due.iter().enumerate().take(LISTED_UNTIL) {
        dialer.connected(due.peer.unwrap(), ConnectionId::new_unchecked(n), Way::Own, now);
        assert!(!dialer.is_deserted());
    }
    for n in LISTED_UNTIL..LISTED_DIALS_MAX {
        dialer.failed(ConnectionId::new_unchecked(n), now);
    }
    let later = now + REDIAL_MEETING_MAX * 3;
    assert_eq!((dialer.take_due(later), dialer.next()), (vec![], None), "the others are not needed");
    let lost = due[0].peer.unwrap();
    dialer.lost(&lost, later);
    assert_eq!(dialer.take_due(later).len(), LISTED_DIALS_MAX, "now they are");
}

#[test]
fn what_stays_on_a_list_keeps_its_pauses_and_what_is_gone_is_not_dialled() {
    let now = Instant::now();
    let [stays, goes, comes, me] = [0; 4].map(|_| PeerId::random());
    let mut dialer = Dialer::new(2, [(0, address(9))], now);
    dialer.list(1, vec![at(&stays, 1), at(&goes, 2), at(&me, 3)], &me, now);
    let due = dialer.take_due(now);
    assert_eq!(due.iter().filter(|due| due.peer.is_some()).count(), 2, "oneself is passed over");
    for (n, due) in due.iter().enumerate() {
        dialer.started(due.target, ConnectionId::new_unchecked(n));
        dialer.failed(ConnectionId::new_unchecked(n), now);
    }
    dialer.list(1, vec![at(&comes, 4), at(&stays, 1)], &me, now);
    let due = dialer.take_due(now);
    assert_eq!(due.iter().map(|due| due.peer).collect::<Vec<_>>(), [Some(comes)], "the other one has a pause");
    dialer.refused(due[0].target, now);
    let later = now + REDIAL_MEETING_MAX * 3;
    let due: BTreeMap<_, _> = dialer.take_due(later).into_iter().map(|due| (due.peer, due.addresses)).collect();
    assert_eq!(due.keys().copied().collect::<HashSet<_>>(), [None, Some(comes), Some(stays)].into());
    dialer.list(1, vec![], &me, later);
    assert!(dialer.attempts.keys().all(|target| *target == Target::Bootstrap(0)), "another source's stays");
}

#[test]
fn found_peers_are_tried_a_few_times_whoever_is_connected() {
    let mut at_time = Instant::now();
    let [me, found] = [0; 2].map(|_| PeerId::random());
    let mut dialer = Dialer::new(1, [], at_time);
    for n in 0..REMEMBERED_UNTIL {
        dialer.connected(PeerId::random(), ConnectionId::new_unchecked(n), Way::Own, at_time);
    }
    assert!(dialer.found(found, vec![address(1)], &me, at_time));
    assert!(!dialer.found(found, vec![address(2)], &me, at_time), "once is enough");
    assert!(!dialer.found(me, vec![address(1)], &me, at_time) && !dialer.found(PeerId::random(), vec![], &me, at_time));
    for n in 0..FOUND_TRIES_MAX {
        at_time = dialer.next().expect("it is tried");
        let id = ConnectionId::new_unchecked(100 + n as usize);
        let due = dialer.take_due(at_time);
        dialer.started(due[0].target, id);
        assert!(dialer.is_quiet(id));
        dialer.failed(id, at_time);
    }
    assert_eq!(dialer.next(), None, "given up");
    assert!(dialer.found(found, vec![address(1)], &me, at_time), "until it is found again");
    for _ in 0..2 * FOUND_MAX {
        dialer.found(PeerId::random(), vec![address(1)], &me, at_time);
    }
    assert_eq!(dialer.attempts.len(), FOUND_MAX);
    assert_eq!(dialer.take_due(at_time).len(), FOUND_DIALS_MAX);
    dialer.connected(found, ConnectionId::new_unchecked(999), Way::Own, at_time);
    assert!(!dialer.attempts.contains_key(&Target::Found(found)), "the registry's matter from now on");
}
