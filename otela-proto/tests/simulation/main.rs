//! Meshes in virtual time: random schedules against invariants, and named scenarios with their numbers.
//!
//! A schedule that fails prints its seed and a list of operations. `SEEDS=2000 cargo test --release -p otela-proto
//! --test simulation schedules` tries more of them, `FROM=` names the first.

#[path = "../../simulation/mod.rs"]
#[allow(dead_code, reason = "the benchmarks use more of it")]
mod simulation;

mod clocks;
mod detection;
mod ghosts;
mod liars;
mod partitions;
mod restarts;
mod schedules;

use simulation::{
    operation::{Op, source},
    world::World,
};

/// Does one thing after the other.
fn run(world: &mut World, operations: &[Op]) {
    for (number, op) in operations.iter().enumerate() {
        if let Err(problem) = world.apply(op) {
            let done = source(&operations[..=number]);
            panic!("operation {number}, {op:?}: {problem}\nseed {}, {} hosts:\n{done}", world.seed, world.hosts.len());
        }
    }
}

/// Refusals for `reason`, at all hosts together.
fn refused(world: &World, reason: &str) -> u64 {
    world.hosts.iter().filter_map(|host| host.notes.refused.get(reason)).sum()
}
