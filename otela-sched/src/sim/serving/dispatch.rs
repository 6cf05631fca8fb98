//! Who gets a request: the place where an ingress' balancer runs inside the simulation.

use super::{Arrival, Load};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// The replicas that may be given a request now, by their places among these.
pub trait Open {
    /// How many there are; at least one.
    fn count(&self) -> usize;
    /// Which of all replicas the `nth` of these is. It stays that, whoever else comes and goes.
    fn id(&self, nth: usize) -> usize;
    /// How busy the `nth` is. To know that is not free: the replica is brought to this moment.
    fn load(&mut self, nth: usize) -> Load;
}

/// Chooses replicas for requests.
pub trait Dispatch {
    /// The place of the chosen one among those that are open.
    fn choose(&mut self, arrival: &Arrival, open: &mut dyn Open) -> usize;
}

/// Any of them, each as likely as the others.
#[derive(Debug)]
pub struct Random(StdRng);

impl Random {
    /// The same choices for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }
}

impl Dispatch for Random {
    fn choose(&mut self, _: &Arrival, open: &mut dyn Open) -> usize {
        self.0.random_range(0..open.count())
    }
}

/// One after another.
#[derive(Debug, Default)]
pub struct RoundRobin {
    last: Option<usize>,
}

impl Dispatch for RoundRobin {
    fn choose(&mut self, _: &Arrival, open: &mut dyn Open) -> usize {
        let next = (0..open.count()).find(|nth| self.last.is_none_or(|last| open.id(*nth) > last)).unwrap_or(0);
        self.last = Some(open.id(next));
        next
    }
}

/// Each as often as its share says.
#[derive(Debug)]
pub struct Weighted {
    shares: Vec<f64>,
    random: StdRng,
}

impl Weighted {
    /// `shares` are of all replicas, in their order, and need no particular sum; those beyond its end have none.
    pub fn new(shares: Vec<f64>, seed: u64) -> Self {
        Self { shares, random: StdRng::seed_from_u64(seed) }
    }
}

impl Dispatch for Weighted {
    fn choose(&mut self, _: &Arrival, open: &mut dyn Open) -> usize {
        let share = |id: usize| self.shares.get(id).copied().unwrap_or(0.0).max(0.0);
        let all: f64 = (0..open.count()).map(|nth| share(open.id(nth))).sum();
        let mut at = self.random.random::<f64>() * all;
        for nth in 0..open.count() {
            at -= share(open.id(nth));
            if at < 0.0 {
                return nth;
            }
        }
        // None has a share: anybody.
        self.random.random_range(0..open.count())
    }
}

/// Who has least to do, counted in requests.
#[derive(Debug, Default)]
pub struct LeastLoaded;

impl Dispatch for LeastLoaded {
    fn choose(&mut self, _: &Arrival, open: &mut dyn Open) -> usize {
        (0..open.count()).min_by_key(|nth| requests(open.load(*nth))).unwrap_or(0)
    }
}

/// The less busy of two that are drawn.
#[derive(Debug)]
pub struct TwoChoices(StdRng);

impl TwoChoices {
    /// The same choices for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }
}

impl Dispatch for TwoChoices {
    fn choose(&mut self, _: &Arrival, open: &mut dyn Open) -> usize {
        let count = open.count();
        let one = self.0.random_range(0..count);
        if count == 1 {
            return one;
        }
        let other = (one + self.0.random_range(1..count)) % count;
        if requests(open.load(other)) < requests(open.load(one)) { other } else { one }
    }
}

fn requests(load: Load) -> u64 {
    u64::from(load.running) + u64::from(load.waiting)
}
