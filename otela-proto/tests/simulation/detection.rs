//! Who is taken for dead: soon, if it is; never, if it is not.

use crate::{
    run,
    simulation::{
        operation::{Expected, Op},
        world::World,
    },
};
use otela_proto::registry::Belief;
use std::time::Duration;

#[test]
fn a_crash_is_known_everywhere_within_3_s_and_final_within_the_grace_and_2_s() {
    for (seed, silent) in [(1, true), (2, true), (3, false)] {
        let mut world = World::formed(48, seed, 0.01);
        let grace = world.settings.grace_far;
        let death = world.measure_death(17, silent, Duration::from_mins(2)).expect("a crash is noticed");
        assert!(death.suspected <= Duration::from_secs(3), "seed {seed}: {death:?}");
        assert!(death.evicted <= grace + Duration::from_secs(2), "seed {seed}: {death:?}");
    }
}

#[test]
fn p40_a_failed_request_takes_a_node_out_at_once_and_a_probe_brings_it_back() {
    let mut world = World::formed(8, 4, 0.0);
    run(&mut world, &[Op::FailedRequest { at: 0, of: 5 }]);
    let peer = world.hosts[5].peer;
    assert_ne!(world.member(0).belief(&peer), Belief::Alive);
    assert_eq!(world.member(1).belief(&peer), Belief::Alive, "one host's failure is not everybody's");
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.member(0).belief(&peer), Belief::Alive);
    assert!(world.hosts[5].notes.new_sessions.is_empty());
}

#[test]
fn nobody_is_evicted_at_10_percent_loss() {
    let mut world = World::formed(32, 5, 0.1);
    let mistakes = world.measure_mistakes(Duration::from_mins(20));
    assert_eq!(mistakes.evictions, 0, "{mistakes:?}");
}

#[test]
fn a_process_that_was_stopped_for_a_minute_accuses_nobody_and_comes_back() {
    for seed in 0..6 {
        let mut world = World::formed(16, seed, 0.01);
        run(&mut world, &[Op::Pause(4), Op::Wait(60_000)]);
        run(&mut world, &[Op::Expect(Expected::Gone(4))]);
        world.doubts = Some(Vec::new());
        run(&mut world, &[Op::Resume(4), Op::Wait(20_000), Op::Expect(Expected::AllAlive)]);
        let doubts = world.doubts.take().unwrap_or_default();
        let evicted = doubts
            .iter()
            .filter(|(.., peer, belief)| *peer != world.hosts[4].peer && matches!(belief, Belief::Evicted(_)));
        assert_eq!(evicted.count(), 0, "seed {seed}");
        run(&mut world, &[Op::Wait(60_000), Op::Expect(Expected::Equal)]);
    }
}

#[test]
fn who_leaves_is_gone_within_a_second_everywhere() {
    let mut world = World::formed(24, 6, 0.01);
    run(
        &mut world,
        &[Op::Leave(9), Op::Wait(1_000), Op::Expect(Expected::Gone(9)), Op::Expect(Expected::Unroutable(9))],
    );
    run(&mut world, &[Op::Wait(60_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
}
