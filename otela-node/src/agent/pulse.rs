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
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
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
    /// Since when it is silent, in milliseconds since `began`: the last sign of life, or the first request after a rest.
    silent_since_ms: AtomicU64,
    /// How many signs of life real requests have given.
    beats: AtomicU64,
    beaten: Notify,
    counts: watch::Sender<Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    waiting: usize,
    given_up: u32,
    errors: u32,
}

/// A moment, to be compared with later ones by the signs of life in between.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beats(u64);

impl Pulse {
    pub(super) fn new(patience: Duration) -> Self {
        let (began, counts) = (Instant::now(), watch::Sender::default());
        let (silent_since_ms, beats, beaten) = (AtomicU64::new(0), AtomicU64::new(0), Notify::new());
        Self { shared: Arc::new(Shared { began, patience, silent_since_ms, beats, beaten, counts }) }
    }

    /// A request is in the engine's hands now.
    pub(super) fn asked(&self) -> Asked {
        let is_first = self.shared.counts.borrow().waiting == 0;
        if is_first {
            self.silent_from_now();
        }
        self.shared.counts.send_modify(|counts| counts.waiting += 1);
        Asked { pulse: self.clone(), since: Instant::now(), answered: false }
    }

    fn silent_from_now(&self) {
        let now_ms = self.shared.began.elapsed().as_millis();
        self.shared.silent_since_ms.store(u64::try_from(now_ms).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A real request has got a token.
    fn beat(&self) {
        self.silent_from_now();
        self.shared.beats.fetch_add(1, Ordering::Relaxed);
        self.shared.beaten.notify_waiters();
        self.count(|counts| (counts.given_up, counts.errors) = (0, 0));
    }

    /// How long it has been silent.
    pub(super) fn silent_for(&self) -> Duration {
        Instant::now().saturating_duration_since(self.silent_since())
    }

    /// Now.
    pub(super) fn now(&self) -> Beats {
        Beats(self.shared.beats.load(Ordering::Relaxed))
    }

    /// Whether real requests have got tokens since.
    pub(super) fn has_beaten_since(&self, then: Beats) -> bool {
        self.now().0 != then.0
    }

    /// Resolves when a real request has got a token since.
    pub(super) async fn beats_after(&self, then: Beats) {
        loop {
            let beaten = self.shared.beaten.notified();
            if self.has_beaten_since(then) {
                return;
            }
            beaten.await;
        }
    }

    /// Whether real requests that run get a token within `limit` of now, or have since then.
    pub(super) async fn lives(&self, then: Beats, limit: Duration) -> bool {
        let mut counts = self.shared.counts.subscribe();
        tokio::select! {
            biased;
            () = self.beats_after(then) => true,
            // The sender lives as long as `self`.
            _ = counts.wait_for(|counts| counts.waiting == 0) => false,
            () = sleep(limit) => false,
        }
    }

    /// It was asked, and has made a token. That callers have given up is another matter: real requests may hang nevertheless.
    pub(super) fn is_well(&self) {
        self.silent_from_now();
        self.count(|counts| counts.errors = 0);
    }

    /// What was counted so far has had its consequences.
    pub(super) fn begins_anew(&self) {
        self.silent_from_now();
        self.count(|counts| (counts.given_up, counts.errors) = (0, 0));
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
            let doubted_at = self.silent_since() + self.shared.patience;
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

    fn silent_since(&self) -> Instant {
        self.shared.began + Duration::from_millis(self.shared.silent_since_ms.load(Ordering::Relaxed))
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        self.shared.counts.send_if_modified(|counts| {
            let before = (counts.given_up, counts.errors);
            change(counts);
            before != (counts.given_up, counts.errors)
        });
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
    /// A token has come, or a whole answer, or more of one.
    pub(super) fn answered(&mut self) {
        self.answered = true;
        self.pulse.beat();
    }

    /// What has come is an error of the engine's own: an answer, but no sign of life.
    pub(super) fn failed(&mut self) {
        self.answered = true;
        self.pulse.count(|counts| counts.errors += 1);
    }

    /// Something has come that tells nothing of the engine; but its caller has not given up.
    pub(super) fn heard(&mut self) {
        self.answered = true;
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
        long.answered();
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
        assert_eq!(doubt(&pulse), Some(Doubt::GivenUp(GIVEN_UP_MAX)), "one token that it was asked for proves nothing");
        pulse.asked().answered();
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

    #[tokio::test(start_paused = true)]
    async fn real_tokens_are_life_as_long_as_requests_run() {
        let pulse = Pulse::new(PATIENCE);
        let then = pulse.now();
        assert!(!pulse.lives(then, PATIENCE).now_or_never().unwrap(), "nothing runs");
        let mut stream = pulse.asked();
        let later = async {
            tokio::time::sleep(PATIENCE / 2).await;
            stream.answered();
            stream
        };
        let (lives, stream) = tokio::join!(pulse.lives(then, PATIENCE), later);
        assert!(lives && pulse.has_beaten_since(then));
        let then = pulse.now();
        assert!(!pulse.lives(then, PATIENCE).await, "no more come");
        let (lives, ()) = tokio::join!(pulse.lives(then, PATIENCE), async move { drop(stream) });
        assert!(!lives, "the last one has gone");
    }
}
