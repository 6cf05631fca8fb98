//! Processes that end and start again.

use crate::{
    run,
    simulation::{
        operation::{Expected, Op},
        world::World,
    },
};
use std::time::Duration;

#[test]
fn p39_a_restart_with_the_same_key_is_one_entry_and_the_new_session_wins_at_once() {
    let mut world = World::formed(12, 1, 0.01);
    let peer = world.hosts[5].peer;
    for round in 0..10 {
        let before = world.member(0).registry().rank(&peer).expect("known").epoch;
        run(&mut world, &[Op::Crash { host: 5, silent: false }, Op::Wait(500), Op::Join(5), Op::Wait(1_500)]);
        for host in 0..12 {
            let registry = world.member(host).registry();
            assert_eq!(registry.len(), 12, "round {round}, host {host}");
            let known = registry.rank(&peer).expect("known").epoch;
            assert!(known > before, "round {round}, host {host}");
            assert_eq!(known, world.member(5).session().epoch, "round {round}, host {host}");
        }
        run(&mut world, &[Op::Expect(Expected::AllAlive)]);
    }
    run(&mut world, &[Op::Wait(60_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
}

#[test]
fn p39_a_restart_with_a_new_key_leaves_one_live_row_for_the_host() {
    let mut world = World::formed(12, 2, 0.01);
    for _ in 0..10 {
        let old = world.hosts[5].peer;
        run(
            &mut world,
            &[Op::Crash { host: 5, silent: false }, Op::Wait(1_000), Op::Restart { host: 5, new_key: true }],
        );
        world.run_for(Duration::from_secs(3));
        for host in (0..12).filter(|host| *host != 5) {
            let view = world.member(host).view(world.hosts[host].now(world.now), 1);
            assert!(view.node(&old).is_none_or(|node| !node.is_routable()), "host {host} would still use the old key");
            assert!(
                view.node(&world.hosts[5].peer).is_some_and(otela_proto::registry::Node::is_routable),
                "host {host}"
            );
        }
        world.run_for(Duration::from_secs(17));
        for host in (0..12).filter(|host| *host != 5) {
            let view = world.member(host).view(world.hosts[host].now(world.now), 1);
            let rows = view.nodes().filter(|(_, node)| node.is_listed()).count();
            assert_eq!(rows, 12, "host {host}");
        }
    }
}

#[test]
fn a_clock_that_was_set_back_does_not_make_a_restart_look_old() {
    let mut world = World::formed(8, 3, 0.0);
    run(
        &mut world,
        &[
            Op::ClockJump { host: 4, by_ms: -600_000 },
            Op::Restart { host: 4, new_key: false },
            Op::Wait(5_000),
            Op::Expect(Expected::AllAlive),
            Op::Expect(Expected::Equal),
        ],
    );
}

#[test]
fn of_two_processes_with_one_key_one_is_told_to_stop() {
    let mut world = World::formed(8, 4, 0.0);
    let twin = world.add_host();
    world.hosts[twin].key = world.hosts[3].key.clone();
    world.hosts[twin].peer = world.hosts[3].peer;
    run(&mut world, &[Op::Join(twin), Op::Wait(60_000)]);
    let told = [3, twin].map(|host| world.hosts[host].notes.is_twin);
    assert!(told[0] != told[1], "{told:?}");
}
