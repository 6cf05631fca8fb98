//! The network between hosts: how long a message takes, what gets lost, and where it is cut.
//!
//! Hosts live at sites. A message takes 0.15 to 0.6 ms inside a site and 5 to 20 ms across; what is lost comes late,
//! as TCP repeats it, and is never missing.

use rand::{RngExt, rngs::SmallRng};
use std::{collections::HashSet, time::Duration};

/// Number of sites that hosts are spread over, in turn.
pub(crate) const SITES: usize = 4;
/// One way inside a site, in microseconds.
const NEAR_US: (u64, u64) = (150, 600);
/// One way across sites, in microseconds.
const FAR_US: (u64, u64) = (5_000, 20_000);
/// The first repetition of a lost segment comes after this many milliseconds, the next after twice as long.
const REPEAT_MS: (u64, u64) = (200, 400);
/// TCP does not double its pause for ever.
const REPEAT_MAX: Duration = Duration::from_mins(1);
/// Bytes that a connection carries each microsecond: 1 Gbit/s.
const BYTES_PER_US: u64 = 125;

/// The state of the network.
#[derive(Debug)]
pub(crate) struct Network {
    /// Share of messages whose first segment is lost.
    pub(crate) loss_ratio: f64,
    /// Added to every way, one way.
    pub(crate) extra: Duration,
    /// Ordered pairs of hosts between which nothing passes.
    cut: HashSet<(usize, usize)>,
}

impl Network {
    pub(crate) fn new(loss_ratio: f64) -> Self {
        Self { loss_ratio, extra: Duration::ZERO, cut: HashSet::new() }
    }

    /// The way from one site to another, without loss.
    pub(crate) fn one_way(&self, from_site: usize, to_site: usize, rng: &mut SmallRng) -> Duration {
        let (least, most) = if from_site == to_site { NEAR_US } else { FAR_US };
        Duration::from_micros(rng.random_range(least..=most)) + self.extra
    }

    /// What a message waits for its repetitions.
    pub(crate) fn repeated(&self, rng: &mut SmallRng) -> Duration {
        let mut waited = Duration::ZERO;
        let mut repeats = 0;
        while self.loss_ratio > 0.0 && rng.random_bool(self.loss_ratio) {
            waited += repeat_after(repeats, rng);
            repeats += 1;
        }
        waited
    }

    /// Cuts every way from one of `from` to one of `to`.
    pub(crate) fn cut(&mut self, from: &[usize], to: &[usize]) {
        self.cut.extend(from.iter().flat_map(|a| to.iter().map(|b| (*a, *b))));
    }

    /// Takes every cut back.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        !self.cut.is_empty() && self.cut.contains(&(from, to))
    }

    /// Whether a question and its answer pass.
    pub(crate) fn is_open(&self, a: usize, b: usize) -> bool {
        !self.is_cut(a, b) && !self.is_cut(b, a)
    }
}

/// The pause before repetition number `repeats`.
pub(crate) fn repeat_after(repeats: u32, rng: &mut SmallRng) -> Duration {
    let first = Duration::from_millis(rng.random_range(REPEAT_MS.0..=REPEAT_MS.1));
    first.saturating_mul(1 << repeats.min(16)).min(REPEAT_MAX)
}

/// How long a connection is busy with so many bytes.
pub(crate) fn transfer_time(bytes: usize) -> Duration {
    Duration::from_micros(bytes as u64 / BYTES_PER_US)
}
