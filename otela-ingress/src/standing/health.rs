//! Passive ejection: a session whose requests fail one after another is taken out of rotation, whatever its probes say,
//! and comes back when a small request of ours succeeds there.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A session is out after this much failure with no success in between.
const OUT_AT: u32 = 30;
/// The first trial comes after this time, and each further one after twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How heavily a failure weighs. One request that breaks whatever engine it is given to must not take all of them out,
/// so no single failure suffices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strike {
    /// The engine or its node failed: a broken or truncated answer, 502, 503, 504, a time-out.
    Failed,
    /// The engine answers 500: as likely the request's fault.
    Error,
}

impl Strike {
    const fn weight(self) -> u32 {
        match self {
            Self::Failed => 10,
            Self::Error => 2,
        }
    }
}

/// A session's health.
#[derive(Debug)]
pub(crate) struct Health {
    ejected: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    strikes: u32,
    trials_failed: u32,
}

impl Health {
    pub(super) fn new() -> Self {
        Self { ejected: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Whether it is out of rotation.
    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected.load(Ordering::Relaxed)
    }

    /// An engine has produced something, so it can.
    pub(crate) fn succeeded(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever is out comes back by a trial: an answer that began long ago says little.
        if !self.is_ejected() {
            state.strikes = 0;
        }
    }

    /// A request has failed. True if the session is out now and was not before: whoever is told so has to hold trials.
    #[must_use]
    pub(crate) fn failed(&self, strike: Strike) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.strikes = state.strikes.saturating_add(strike.weight());
        state.strikes >= OUT_AT && !self.ejected.swap(true, Ordering::Relaxed)
    }

    /// How long to wait before the next trial.
    pub(crate) fn pause(&self) -> Duration {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        FIRST_PAUSE.saturating_mul(1 << state.trials_failed.min(16)).min(PAUSE_MAX)
    }

    /// A trial has ended.
    pub(crate) fn tried(&self, succeeded: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if succeeded {
            *state = State::default();
            self.ejected.store(false, Ordering::Relaxed);
        } else {
            state.trials_failed = state.trials_failed.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p19_one_failure_or_many_errors_between_successes_eject_nobody() {
        let health = Health::new();
        for _ in 0..50 {
            assert!(!health.failed(Strike::Failed) && !health.failed(Strike::Error));
            health.succeeded();
        }
        assert!(!health.is_ejected());
    }

    #[test]
    fn p37_failures_in_a_row_eject_once_and_a_trial_brings_it_back() {
        let health = Health::new();
        assert!(!health.failed(Strike::Failed) && !health.failed(Strike::Failed));
        assert!(health.failed(Strike::Failed), "this one");
        assert!(!health.failed(Strike::Failed), "is out already");
        health.succeeded();
        assert!(health.is_ejected(), "an old answer says nothing");
        let first = health.pause();
        health.tried(false);
        assert_eq!(health.pause(), first * 2);
        (0..20).for_each(|_| health.tried(false));
        assert_eq!(health.pause(), PAUSE_MAX);
        health.tried(true);
        assert!(!health.is_ejected());
        assert_eq!(health.pause(), first);
        assert!(!health.failed(Strike::Failed), "it begins anew");
    }
}
