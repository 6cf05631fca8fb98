//! Self-doubt, after Lifeguard: a peer whose own probes fail suspects itself first.

use std::{collections::VecDeque, time::Duration};

/// Outcomes that are remembered.
const WINDOW: usize = 8;
/// Fewer than these say nothing.
const ENOUGH: usize = 4;
/// How much time-outs are stretched in doubt.
const STRETCH: u32 = 4;
/// After a sleep (a stopped process, a suspended machine) nobody is accused for this long: what came meanwhile has to
/// be read first.
const WAKING: Duration = Duration::from_secs(3);

/// How far a peer trusts its own observations.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    outcomes: VecDeque<bool>,
    awake_at: Duration,
}

impl Doubt {
    /// A probe of ours was answered in time (`good`), or it failed in a way that may be our own fault.
    pub(super) fn note(&mut self, good: bool) {
        self.outcomes.push_back(good);
        if self.outcomes.len() > WINDOW {
            self.outcomes.pop_front();
        }
    }

    /// This peer has not run for a while.
    pub(super) fn slept(&mut self, now: Duration) {
        self.awake_at = now + WAKING;
    }

    /// Whether to accuse nobody.
    pub(super) fn doubts(&self, now: Duration) -> bool {
        let bad = self.outcomes.iter().filter(|good| !**good).count();
        now < self.awake_at || self.outcomes.len() >= ENOUGH && bad * 2 >= self.outcomes.len()
    }

    /// The factor for all time-outs.
    pub(super) fn stretch(&self, now: Duration) -> u32 {
        if self.doubts(now) { STRETCH } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_probes_missed_is_doubt() {
        let mut doubt = Doubt::default();
        [false, false, false].into_iter().for_each(|good| doubt.note(good));
        assert!(!doubt.doubts(Duration::ZERO), "too few to tell");
        doubt.note(true);
        assert!(doubt.doubts(Duration::ZERO));
        assert_eq!(doubt.stretch(Duration::ZERO), STRETCH);
        [true, true, true, true].into_iter().for_each(|good| doubt.note(good));
        assert!(!doubt.doubts(Duration::ZERO));
        doubt.slept(Duration::from_secs(60));
        assert!(doubt.doubts(Duration::from_secs(62)) && !doubt.doubts(Duration::from_secs(63)));
    }
}
