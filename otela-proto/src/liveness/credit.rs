//! How far an accuser's word alone counts.
//!
//! A suspicion takes a node out of rotation at once, so a liar could take out everybody again and again. An accuser
//! that stands alone with many accusations, or whose accusations were refuted several times lately, is believed only
//! where another one says the same.

use crate::registry::Registry;
use libp2p_identity::PeerId;
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// Accusations with no second accuser, and refuted ones, up to which an accuser is believed alone.
const ALONE_MAX: usize = 4;
/// For how long a refuted accusation counts.
const REMEMBERED: Duration = Duration::from_mins(10);

/// The record of every accuser.
#[derive(Debug, Default)]
pub(super) struct Credit {
    refuted: HashMap<PeerId, VecDeque<Duration>>,
}

impl Credit {
    /// What `accuser` said was refuted by its subject.
    pub(super) fn refuted(&mut self, accuser: PeerId, now: Duration) {
        let times = self.refuted.entry(accuser).or_default();
        times.push_back(now);
        if times.len() > ALONE_MAX + 1 {
            times.pop_front();
        }
    }

    /// Lets old refutations go.
    pub(super) fn forget(&mut self, now: Duration) {
        self.refuted.retain(|_, times| times.back().is_some_and(|at| *at + REMEMBERED > now));
    }

    /// Whether `accuser` is believed where nobody else says the same.
    pub(super) fn is_good(&self, accuser: &PeerId, alone: &Alone, now: Duration) -> bool {
        let refuted =
            self.refuted.get(accuser).map_or(0, |times| times.iter().filter(|at| **at + REMEMBERED > now).count());
        refuted <= ALONE_MAX && alone.of.get(accuser).copied().unwrap_or(0) <= ALONE_MAX
    }
}

/// With how many accusations each accuser stands alone.
#[derive(Debug, Default)]
pub(super) struct Alone {
    of: HashMap<PeerId, usize>,
}

impl Alone {
    pub(super) fn count(registry: &Registry) -> Self {
        let mut of = HashMap::new();
        for (_, accusations) in registry.accused() {
            if let [only] = &**accusations {
                *of.entry(only.accuser()).or_insert(0) += 1;
            }
        }
        Self { of }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refuted_often_is_not_believed_alone_for_a_while() {
        let (mut credit, liar, alone) = (Credit::default(), PeerId::random(), Alone::default());
        for n in 0..=ALONE_MAX as u64 {
            assert!(credit.is_good(&liar, &alone, Duration::from_secs(n)));
            credit.refuted(liar, Duration::from_secs(n));
        }
        assert!(!credit.is_good(&liar, &alone, Duration::from_secs(10)));
        assert!(credit.is_good(&liar, &alone, REMEMBERED + Duration::from_secs(10)));
        credit.forget(REMEMBERED + Duration::from_secs(10));
        assert!(credit.refuted.is_empty());
    }
}
