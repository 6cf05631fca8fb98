//! Random schedules.

use crate::simulation::schedule::Schedule;
use otela_testing::repetitions;

#[test]
fn random_schedules_end_in_equal_replicas_without_ghosts() {
    let (from, seeds) = (number("FROM").unwrap_or(0), number("SEEDS").unwrap_or(repetitions(24, 120)));
    let failed: Vec<_> = (from..from + seeds)
        .map(Schedule::random)
        .filter_map(|schedule| Some((schedule.run().err()?, schedule)))
        .collect();
    if let Some((_, first)) = failed.first() {
        let list: String = failed.iter().map(|(problem, s)| format!("seed {}: {problem}\n", s.seed)).collect();
        panic!("{} of {seeds} seeds failed\n{list}the first, made shorter: {}", failed.len(), first.explained());
    }
}

#[test]
fn the_same_seed_makes_the_same_world() {
    for seed in 0..repetitions(4, 12) {
        let schedule = Schedule::random(seed);
        let once = || {
            let mut world = schedule.run_to_the_end()?;
            let sent = world.take_traffic_sum();
            Ok::<_, String>((sent.wire_bytes, sent.frames_of, world.links_made))
        };
        assert_eq!(once(), once(), "seed {seed}");
    }
}

#[expect(clippy::disallowed_methods, reason = "a test has no flags")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
