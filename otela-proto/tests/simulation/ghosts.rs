//! Those who are gone stay gone, cost little, and block nobody.

use crate::{
    run,
    simulation::{
        operation::{Expected, Op},
        world::World,
    },
};
use bytes::Bytes;
use otela_proto::{
    entry::Entry, lifecycle::Lifecycle, member::Input, payload::Role, registry::DEPARTED_MAX, wire::Entries,
};
use otela_testing::repetitions;
use std::time::Duration;

/// Join and leave cycles of the churn test, more than a replica keeps; the benchmark does 20,000 within an hour.
const CYCLES: usize = 1_500;

#[test]
fn p38_who_left_does_not_come_back_by_hearsay() {
    let mut world = World::formed(6, 1, 0.0);
    let peer = world.hosts[3].peer;
    let old = world.member(0).registry().get(&peer).expect("it lives").signed().to_vec();
    run(&mut world, &[Op::Crash { host: 3, silent: true }]);
    // Hosts 1 and 2 are away in turn, so that each hears of the dead one from the other, for two days.
    for hour in 0..50 {
        let away = 1 + hour % 2;
        run(
            &mut world,
            &[Op::Cut { hosts: vec![away], one_way: false }, Op::Wait(3_600_000), Op::Heal, Op::Wait(60_000)],
        );
        // Its last entry is offered again as well, by whoever may still have it: long after all have dropped it, too.
        world.broadcast(3 - away, std::slice::from_ref(&old), &[]);
        world.run_for(Duration::from_secs(1));
        run(&mut world, &[Op::Expect(Expected::Unroutable(3)), Op::Expect(Expected::Gone(3))]);
    }
    for host in [0, 1, 2, 4, 5] {
        assert!(world.member(host).registry().get(&peer).is_none(), "host {host} keeps what nobody would accept");
    }
    run(&mut world, &[Op::Wait(120_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    run(&mut world, &[Op::Join(3), Op::Wait(70_000), Op::Expect(Expected::AllAlive)]);
}

#[test]
fn p42_495_dead_of_500_are_not_dialled_all_at_once_and_delay_nobody() {
    let mut world = World::formed(5, 2, 0.0);
    run(&mut world, &[Op::Crash { host: 0, silent: false }]);
    world.hosts[0].role = Role::Ingress;
    run(&mut world, &[Op::Join(0), Op::Wait(5_000)]);
    say_of_ghosts(&mut world, 495, Lifecycle::Serving);
    world.run_for(Duration::from_secs(5));
    // A node joins: it knows the living at once, whatever becomes of the dead.
    let joiner = world.add_host();
    run(&mut world, &[Op::Join(joiner), Op::Wait(2_000)]);
    assert_eq!(world.member(joiner).registry().len(), 501);
    let spread = world.measure_spread(joiner, Duration::from_secs(2)).expect("its word arrives");
    assert!(spread.all <= Duration::from_millis(500), "{spread:?}");
    world.run_for(Duration::from_mins(3));
    for host in 0..6 {
        let notes = &world.hosts[host].notes;
        // 495 dead peers in three minutes among six: a few hundred each at most, not thousands.
        assert!(notes.reached_for <= 4 * 495, "host {host} was to reach {}", notes.reached_for);
    }
    let view = world.member(0).view(world.hosts[0].now(world.now), 1);
    let routable = view.nodes().filter(|(_, node)| node.is_routable()).count();
    assert!(routable <= 6, "the ingress would send requests to {routable}");
    run(&mut world, &[Op::Expect(Expected::AllAlive)]);
}

#[test]
fn p43_joins_and_leaves_leave_nothing_behind_and_nothing_comes_back() {
    let mut world = World::formed(8, 3, 0.0);
    // Host 6 goes away while these are there, and returns when nobody else has more than a tombstone of them.
    say_of_ghosts(&mut world, 50, Lifecycle::Serving);
    run(&mut world, &[Op::Wait(2_000), Op::Cut { hosts: vec![6], one_way: false }]);
    say_of_ghosts(&mut world, 50, Lifecycle::Left);
    world.run_for(Duration::from_secs(2));
    let old: Vec<_> = world.member(6).registry().entries().map(Entry::owner).collect();
    let old: Vec<_> = old.into_iter().filter(|peer| world.hosts.iter().all(|host| host.peer != *peer)).collect();
    assert_eq!(old.len(), 50, "what it takes along");
    let mut largest = 0;
    for number in 50..CYCLES {
        world.cycle(number..number + 1);
        largest = largest.max(world.member(0).registry().len());
    }
    world.run_for(Duration::from_secs(30));
    let registry = world.member(0).registry();
    assert!(largest <= 8 + DEPARTED_MAX + 1, "{largest} entries at the most");
    assert!(registry.len() <= 8 + DEPARTED_MAX);
    assert!(registry.graves() >= CYCLES - DEPARTED_MAX - 200, "{} graves", registry.graves());
    assert!(old.iter().all(|peer| registry.buried(peer).is_some()), "those of old lie under tombstones");
    run(&mut world, &[Op::Heal, Op::Wait(120_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    for host in 0..8 {
        let now = world.hosts[host].now(world.now);
        let listed = world.member(host).view(now, 1).nodes().filter(|(_, node)| node.is_listed()).count();
        assert_eq!(listed, 8, "host {host}");
    }
}

/// Host 0 hears this of the first `count` peers that nobody has met.
fn say_of_ghosts(world: &mut World, count: usize, lifecycle: Lifecycle) {
    let signed = world.ghosts(0, count, lifecycle, Duration::ZERO).into_iter().map(Bytes::from).collect();
    let now_ms = world.hosts[0].wall_ms(world.now);
    let opened = world.verifier.open(&Entries { signed, accusations: Vec::new() }, now_ms);
    let from = world.hosts[1].peer;
    world.input(0, Input::Entries { from, entries: opened.entries, accusations: Vec::new() });
}

#[test]
fn more_dead_than_a_replica_keeps_are_buried_alike_everywhere() {
    let hosts = repetitions(3, 6);
    let mut world = World::formed(hosts, 4, 0.0);
    run(&mut world, &[Op::Crash { host: 0, silent: false }]);
    world.hosts[0].role = Role::Ingress;
    run(&mut world, &[Op::Join(0), Op::Wait(5_000)]);
    let dead = DEPARTED_MAX + 200;
    let signed = world.ghosts(0, dead, Lifecycle::Serving, Duration::ZERO).into_iter().map(Bytes::from).collect();
    let now_ms = world.hosts[1].wall_ms(world.now);
    let opened = world.verifier.open(&Entries { signed, accusations: Vec::new() }, now_ms);
    let from = world.hosts[2].peer;
    world.input(1, Input::Entries { from, entries: opened.entries, accusations: Vec::new() });
    // Every one of them has to be found out: the ingress dials them, others on the ring confirm it.
    let evicted = |world: &World| {
        (0..hosts).all(|host| {
            let view = world.member(host).view(world.hosts[host].now(world.now), 1);
            view.nodes().filter(|(_, node)| node.is_listed()).count() == hosts
        })
    };
    let took = world.run_while_not(Duration::from_mins(30), Duration::from_secs(10), evicted);
    let listed = world.member(0).view(world.hosts[0].now(world.now), 1).nodes().filter(|(_, n)| n.is_listed()).count();
    assert!(took.is_some(), "{listed} are still listed after half an hour, of which {dead} are dead");
    run(&mut world, &[Op::Wait(120_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    assert!((0..hosts).all(|host| world.member(host).registry().len() <= hosts + DEPARTED_MAX));
}
