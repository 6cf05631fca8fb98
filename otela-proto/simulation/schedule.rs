//! Random lists of operations from a seed, the run of a list, and the search for a shorter one that fails as well.

use super::{
    forge::FORGERIES,
    invariant,
    operation::{Flood, Op, source},
    world::World,
};
use otela_proto::payload::Role;
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IndexedRandom};
use std::time::Duration;

/// Hosts of a random mesh.
const HOSTS: (usize, usize) = (5, 14);
/// Operations of a random list, waits not counted.
const OPERATIONS: (usize, usize) = (8, 24);
/// How long a mesh is left in peace before it is judged: the longest grace, a minute's pause between two dials, and
/// some time to compare.
pub(crate) const PEACE: Duration = Duration::from_secs(150);
/// Statements of one flood.
const FLOOD: usize = 400;

/// What a seed stands for.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) hosts: usize,
    pub(crate) operations: Vec<Op>,
}

impl Schedule {
    /// The schedule of a seed.
    pub(crate) fn random(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        let hosts = rng.random_range(HOSTS.0..=HOSTS.1);
        let mut operations: Vec<_> = (0..hosts).map(Op::Join).collect();
        operations.push(Op::Wait(rng.random_range(0..20_000)));
        // Clocks stay within the slack of signed statements.
        let mut slow = vec![false; hosts];
        for _ in 0..rng.random_range(OPERATIONS.0..=OPERATIONS.1) {
            operations.push(random_operation(&mut rng, &mut slow));
            let wait = *[0, 50, 1_000, 5_000, 20_000, 60_000].choose(&mut rng).expect("not empty");
            if wait > 0 {
                operations.push(Op::Wait(rng.random_range(0..wait)));
            }
        }
        Self { seed, hosts, operations }
    }

    /// Runs it, leaves the mesh in peace, and judges.
    ///
    /// # Errors
    /// What did not hold.
    pub(crate) fn run(&self) -> Result<(), String> {
        self.run_to_the_end().map(drop)
    }

    /// As [`Self::run`], and returns the world as it is then.
    ///
    /// # Errors
    /// What did not hold.
    pub(crate) fn run_to_the_end(&self) -> Result<World, String> {
        let mut world = self.world();
        for (number, op) in self.operations.iter().enumerate() {
            let at = |problem| format!("after operation {number}, {op:?}: {problem}");
            world.apply(op).map_err(at)?;
            invariant::at_any_moment(&world).map_err(at)?;
        }
        world.leave_in_peace();
        invariant::in_peace(&world).map_err(|problem| format!("in peace: {problem}"))?;
        Ok(world)
    }

    /// The world before anything is done.
    pub(crate) fn world(&self) -> World {
        let mut world = World::new(self.hosts, self.seed, 0.01);
        let mut rng = SmallRng::seed_from_u64(self.seed);
        world.bootstraps.truncate(rng.random_range(1..=3));
        for host in &mut world.hosts {
            host.role =
                *[Role::Node, Role::Node, Role::Node, Role::Ingress, Role::Relay].choose(&mut rng).expect("not empty");
        }
        world
    }

    /// The shortest list that was found to fail as well, for people.
    pub(crate) fn explained(&self) -> String {
        let shortest = self.minimised();
        let problem = shortest.run().err().unwrap_or_default();
        let Self { seed, hosts, operations } = shortest;
        format!("seed {seed} with {hosts} hosts: {problem}\n{}", source(&operations))
    }

    /// Drops operations, larger pieces first, as long as the rest fails. The joins at the beginning stay: without
    /// them there are bootstraps that never answered.
    fn minimised(&self) -> Self {
        let mut shortest = self.clone();
        let mut piece = shortest.operations.len() / 2;
        while piece > 0 {
            let mut from = self.hosts;
            while from < shortest.operations.len() {
                let mut shorter = shortest.clone();
                let to = (from + piece).min(shorter.operations.len());
                shorter.operations.drain(from..to);
                if shorter.run().is_err() {
                    shortest = shorter;
                } else {
                    from += piece;
                }
            }
            piece /= 2;
        }
        shortest
    }
}

impl World {
    /// Heals, lets everything go on, and waits.
    pub(crate) fn leave_in_peace(&mut self) {
        self.network.heal();
        self.network.loss_ratio = 0.0;
        self.network.extra = Duration::ZERO;
        for host in 0..self.hosts.len() {
            self.resume(host);
        }
        self.run_for(PEACE);
    }
}

fn random_operation(rng: &mut SmallRng, slow: &mut [bool]) -> Op {
    let hosts = slow.len();
    // The first host stays honest and up, so that there is a mesh to come back to.
    let any = rng.random_range(1..hosts);
    let other = rng.random_range(0..hosts);
    match rng.random_range(0..22) {
        0 => Op::Join(any),
        1 => Op::Leave(any),
        2 => {
            let mut cut: Vec<_> = (0..hosts).filter(|_| rng.random_bool(0.5)).collect();
            cut.truncate(hosts - 1);
            Op::Cut { hosts: cut, one_way: rng.random_bool(0.2) }
        }
        3 => Op::CutPair(any, other),
        4 | 5 => Op::Heal,
        6 => Op::Loss(*[0, 10, 100].choose(rng).expect("not empty")),
        7 => Op::Delay(rng.random_range(0..80)),
        8 => Op::Crash { host: any, silent: true },
        9 => Op::Crash { host: any, silent: false },
        10 | 11 => Op::Restart { host: any, new_key: rng.random_bool(0.3) },
        12 => Op::Pause(any),
        13 | 14 => Op::Resume(any),
        15 => {
            slow[any] = !slow[any];
            Op::ClockJump { host: any, by_ms: if slow[any] { -600_000 } else { 600_000 } }
        }
        16 => Op::Replay { by: any, of: other },
        17 => Op::Forge { by: any, of: other, kind: *FORGERIES.choose(rng).expect("not empty") },
        18 => Op::FailedRequest { at: other, of: any },
        19 => match rng.random_range(0..6) {
            0 => Op::Accuse { by: 1, of: other },
            1 => Op::Flood { by: 1, with: Flood::Forgeries, count: FLOOD },
            2 => Op::Flood { by: 1, with: Flood::Versions, count: FLOOD },
            _ => Op::Write(any),
        },
        _ => Op::Write(any),
    }
}
