//! What real requests tell of an engine: that it lives, or that it may not.
//!
//! A token of any answer is a sign of life. An engine that has requests and gives none is not taken for dead by that: a long
//! prompt may take minutes, and an answer that is not streamed comes all at once. It is doubted, and whoever doubts asks it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// So many requests in a row that their callers gave up without a token, and an engine is not believed whatever it answers.
const GIVEN_UP_MAX: u32 = 3;
/// So many answers in a row that are errors of the engine's own, and it is asked.
const ERRORS_MAX: u32 = 5;

/// Why an engine is doubted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It has requests, and has made no token for long.
    Silent(Duration),
    /// Callers gave up on so many requests in a row, each after a long wait for the first token.
    GivenUp(u32),
    /// So many answers in a row were errors of its own.
    Errors(u32),
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Silent(silent) => write!(f, "it has requests and has answered nothing for {silent:.0?}"),
            Self::GivenUp(times) => write!(f, "callers gave up waiting for {times} requests in a row"),
            Self::Errors(times) => write!(f, "{times} answers in a row were errors of its own"),
        }
    }
}

/// The signs of life of one engine. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Pulse {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// How long an engine may be silent before it is doubted, and a caller must have waited for its giving up to count.
    patience: Duration,
    /// When the last sign of life was, in milliseconds since `began`.
    last_ms: AtomicU64,
    counts: watch::Sender<Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    waiting: usize,
    given_up: u32,
    errors: u32,
}

impl Pulse {
    pub(super) fn new(patience: Duration) -> Self {
        let (began, counts) = (Instant::now(), watch::Sender::default());
        Self { shared: Arc::new(Shared { began, patience, last_ms: AtomicU64::new(0), counts }) }
    }

    /// A request is in the engine's hands now.
    pub(super) fn asked(&self) -> Asked {
        let is_first = self.shared.counts.borrow().waiting == 0;
        if is_first {
            // Its silence begins now.
            self.beat();
        }
        self.shared.counts.send_modify(|counts| counts.waiting += 1);
        Asked { pulse: self.clone(), since: Instant::now(), answered: false }
    }

    /// A sign of life.
    pub(super) fn beat(&self) {
        let now_ms = self.shared.began.elapsed().as_millis();
        self.shared.last_ms.store(u64::try_from(now_ms).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long the last sign of life is ago.
    pub(super) fn silent_for(&self) -> Duration {
        Instant::now().saturating_duration_since(self.last())
    }

    /// It was asked, and is well.
    pub(super) fn is_well(&self) {
        self.beat();
        self.shared.counts.send_modify(|counts| (counts.given_up, counts.errors) = (0, 0));
    }

    /// Resolves when there is reason to doubt.
    pub(super) async fn doubted(&self) -> Doubt {
        let mut changes = self.shared.counts.subscribe();
        loop {
            let counts = *changes.borrow_and_update();
            if counts.given_up >= GIVEN_UP_MAX {
                return Doubt::GivenUp(counts.given_up);
            }
            if counts.errors >= ERRORS_MAX {
                return Doubt::Errors(counts.errors);
            }
            let doubted_at = self.last() + self.shared.patience;
            if counts.waiting > 0 && doubted_at <= Instant::now() {
                return Doubt::Silent(self.silent_for());
            }
            tokio::select! {
                // The sender lives as long as `self`.
                _ = changes.changed() => {}
                () = sleep_until(doubted_at), if counts.waiting > 0 => {}
            }
        }
    }

    fn last(&self) -> Instant {
        self.shared.began + Duration::from_millis(self.shared.last_ms.load(Ordering::Relaxed))
    }
}

/// A request in an engine's hands.
#[derive(Debug)]
pub(super) struct Asked {
    pulse: Pulse,
    since: Instant,
    answered: bool,
}

impl Asked {
    /// A token has come, or a whole answer.
    pub(super) fn answered(&mut self) {
        self.goes_on();
        if !self.answered {
            self.answered = true;
            self.count(|counts| (counts.given_up, counts.errors) = (0, 0));
        }
    }

    /// What has come is an error of the engine's own: an answer, but no sign of life.
    pub(super) fn failed(&mut self) {
        self.answered = true;
        self.count(|counts| counts.errors += 1);
    }

    /// Something has come that tells nothing of the engine; but its caller has not given up.
    pub(super) fn heard(&mut self) {
        self.answered = true;
    }

    /// More of its answer has come.
    pub(super) fn goes_on(&self) {
        self.pulse.beat();
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        self.pulse.shared.counts.send_if_modified(|counts| {
            let before = (counts.given_up, counts.errors);
            change(counts);
            before != (counts.given_up, counts.errors)
        });
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let gave_up = !self.answered && self.since.elapsed() >= self.pulse.shared.patience;
        self.pulse.shared.counts.send_modify(|counts| {
            counts.waiting -= 1;
            counts.given_up += u32::from(gave_up);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use tokio::time::advance;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn doubt(pulse: &Pulse) -> Option<Doubt> {
        pulse.doubted().now_or_never()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_doubted_only_while_there_are_requests() {
        let pulse = Pulse::new(PATIENCE);
        advance(PATIENCE * 10).await;
        assert_eq!(doubt(&pulse), None, "nobody has asked anything");
        let mut long = pulse.asked();
        advance(PATIENCE / 2).await;
        let mut other = pulse.asked();
        other.answered();
        advance(PATIENCE * 3 / 4).await;
        assert_eq!(doubt(&pulse), None, "another request was answered meanwhile");
        advance(PATIENCE / 4).await;
        assert_eq!(doubt(&pulse), Some(Doubt::Silent(PATIENCE)));
        pulse.is_well();
        assert_eq!(doubt(&pulse), None);
        long.answered();
        advance(PATIENCE / 2).await;
        long.goes_on();
        advance(PATIENCE / 2).await;
        assert_eq!(doubt(&pulse), None, "its answer goes on");
        drop((long, other));
        advance(PATIENCE * 2).await;
        assert_eq!(doubt(&pulse), None);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_give_up_in_a_row_are_believed() {
        let pulse = Pulse::new(PATIENCE);
        for _ in 0..GIVEN_UP_MAX - 1 {
            let asked = pulse.asked();
            advance(PATIENCE).await;
            drop(asked);
        }
        let quick = pulse.asked();
        drop(quick);
        assert_eq!(doubt(&pulse), None, "two, and one that did not wait");
        pulse.asked().answered();
        let asked = pulse.asked();
        advance(PATIENCE).await;
        drop(asked);
        assert_eq!(doubt(&pulse), None, "one was answered in between");
        for _ in 1..GIVEN_UP_MAX {
            let asked = pulse.asked();
            advance(PATIENCE).await;
            drop(asked);
        }
        assert_eq!(doubt(&pulse), Some(Doubt::GivenUp(GIVEN_UP_MAX)));
        pulse.is_well();
        assert_eq!(doubt(&pulse), None);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_in_a_row_are_doubted() {
        let pulse = Pulse::new(PATIENCE);
        for _ in 1..ERRORS_MAX {
            pulse.asked().failed();
        }
        assert_eq!(doubt(&pulse), None);
        pulse.asked().failed();
        assert_eq!(doubt(&pulse), Some(Doubt::Errors(ERRORS_MAX)));
    }
}
