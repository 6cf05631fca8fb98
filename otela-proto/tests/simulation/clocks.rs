//! Wall clocks that are wrong: nobody dies of them.

use crate::{
    run,
    simulation::{
        operation::{Expected, Op},
        world::World,
    },
};
use std::time::Duration;

#[test]
fn p41_clocks_that_are_off_are_not_read_as_death() {
    let mut world = World::formed(12, 1, 0.01);
    run(
        &mut world,
        &[
            Op::ClockJump { host: 3, by_ms: -600_000 },
            Op::ClockJump { host: 4, by_ms: 600_000 },
            Op::Write(3),
            Op::Write(4),
            Op::Wait(30_000),
            Op::ClockJump { host: 5, by_ms: -3_600_000 },
            Op::Write(5),
            Op::Write(6),
        ],
    );
    let mistakes = world.measure_mistakes(Duration::from_mins(20));
    assert_eq!((mistakes.suspicions, mistakes.evictions), (0, 0));
    run(&mut world, &[Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
}

#[test]
fn p41_restarts_and_joins_work_while_clocks_are_off() {
    let mut world = World::formed(12, 2, 0.01);
    run(
        &mut world,
        &[
            Op::ClockJump { host: 3, by_ms: -600_000 },
            Op::ClockJump { host: 4, by_ms: 600_000 },
            Op::Restart { host: 3, new_key: false },
            Op::Restart { host: 4, new_key: false },
            Op::Wait(30_000),
            Op::Restart { host: 5, new_key: true },
            Op::Crash { host: 6, silent: true },
            Op::Wait(60_000),
            Op::Expect(Expected::AllAlive),
            Op::Expect(Expected::Gone(6)),
            Op::Expect(Expected::Equal),
        ],
    );
}

#[test]
fn entries_are_renewed_before_they_expire() {
    let mut world = World::formed(6, 3, 0.0);
    run(&mut world, &[Op::Wait(30 * 3_600_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
}
