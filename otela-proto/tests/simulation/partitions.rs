//! The network is cut and healed.

use crate::{
    run,
    simulation::{
        operation::{Expected, Op},
        world::World,
    },
};
use std::time::Duration;

#[test]
fn halves_that_wrote_apart_for_an_hour_are_one_mesh_5_s_after_healing() {
    for seed in 0..2 {
        let mut world = World::formed(24, seed, 0.01);
        run(&mut world, &[Op::Cut { hosts: (0..12).collect(), one_way: false }]);
        for minute in 0..60 {
            run(&mut world, &[Op::Write(minute % 24), Op::Wait(60_000)]);
        }
        assert!(!world.is_equal());
        run(&mut world, &[Op::Heal]);
        let took = world.run_while_not(Duration::from_secs(60), Duration::from_millis(50), |world| {
            world.is_equal() && world.is_whole()
        });
        run(&mut world, &[Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
        assert!(took.is_some_and(|took| took <= Duration::from_secs(5)), "seed {seed}: {took:?}");
        run(&mut world, &[Op::Wait(120_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    }
}

#[test]
fn a_pair_that_cannot_reach_each_other_is_evicted_by_nobody() {
    let mut world = World::formed(16, 2, 0.01);
    run(&mut world, &[Op::CutPair(3, 11)]);
    let mistakes = world.measure_mistakes(Duration::from_mins(10));
    assert_eq!(mistakes.evictions, 0, "{mistakes:?}");
}

#[test]
fn a_host_that_is_heard_by_nobody_is_gone_and_comes_back_when_healed() {
    for one_way in [true, false] {
        let mut world = World::formed(16, 3, 0.01);
        run(&mut world, &[Op::Cut { hosts: vec![7], one_way }, Op::Wait(60_000), Op::Expect(Expected::Unroutable(7))]);
        run(&mut world, &[Op::Heal, Op::Wait(60_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    }
}
