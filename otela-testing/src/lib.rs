//! Time and ports in tests. Time is of two kinds:
//!
//! - **Waits for an event** end with the event. [`PATIENCE`] bounds all of them alike: it ends a test that hangs, and
//!   says nothing about speed. Use [`eventually`] or [`finishes`].
//! - **Claims about durations** hold on any machine only if they compare. A [`Stopwatch`] gives lower bounds ("not before
//!   its timer") and ratios to a control that the same test has measured. Every other claim belongs into a benchmark.
//!
//! Tests call no timer of their own: the tidy test finds `elapsed` and `timeout` in test code outside this crate.

mod port;

pub use port::ReservedPort;
use std::{
    fmt::{self, Display},
    future::Future,
    time::{Duration, Instant},
};

/// The limit on every wait in the suite, for the slowest machine under the highest load. It only ends what hangs, so that
/// a timer of the product that must not be waited for is shown by setting it to a multiple of this.
pub const PATIENCE: Duration = Duration::from_mins(10);

/// A setting of the product that a passing test never waits for: longer than [`PATIENCE`] by far.
pub const FAR_BEYOND_PATIENCE: Duration = Duration::from_hours(10);

/// How often a test repeats something: `short` in `make test`, `long` in `make soak`. Both must show the promise; the long
/// form looks for what happens seldom.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a test has no flags")]
pub fn repetitions<N>(short: N, long: N) -> N {
    if std::env::var("OTELA_SOAK").is_ok() { long } else { short }
}

/// First and longest pause between two looks at a condition. The pauses grow because dozens of tests look at once, and
/// each look may cost a connection.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// Waits until `look` returns a value, and returns it.
///
/// # Panics
/// With `what`, if that takes longer than [`PATIENCE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: impl Display, mut look: impl FnMut() -> F) -> T {
    let looks = async {
        let mut pause = LOOK_AGAIN.0;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(LOOK_AGAIN.1);
        }
    };
    finishes(what, looks).await
}

/// A description that is made when it is printed, so that it tells the state at that time.
pub fn lazily(describe: impl Fn() -> String) -> impl Display {
    struct Lazily<F>(F);

    impl<F: Fn() -> String> Display for Lazily<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0())
        }
    }

    Lazily(describe)
}

/// Waits until `future` is done.
///
/// # Panics
/// With `what`, if that takes longer than [`PATIENCE`].
pub async fn finishes<T>(what: impl Display, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("the test hangs, waiting for: {what}"),
    }
}

/// Watches `future` for `length` and panics with `what` if it resolves by then. On a slow machine the watch may end before
/// the event that it watches for, so this can miss a fault; it never reports one that is not there.
///
/// # Panics
/// With `what`, if `future` resolves within `length`.
pub async fn stays_pending<T>(what: impl Display, length: Duration, future: impl Future<Output = T>) {
    assert!(tokio::time::timeout(length, future).await.is_err(), "{what}");
}

/// A running measurement of real time.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start, to be printed or held against a control with [`assert_comparable`].
    #[must_use]
    pub fn read(&self) -> Duration {
        self.0.elapsed()
    }

    /// Asserts a lower bound. It holds on a slow machine too.
    ///
    /// # Panics
    /// If less than `least` has passed.
    #[track_caller]
    pub fn assert_at_least(&self, least: Duration, what: impl Display) {
        let read = self.read();
        assert!(read >= least, "{what}: after {read:?}, which is less than {least:?}");
    }
}

/// Asserts that the shortest of `measured` is at most `times` the middle one of `control`. Both come from the same test,
/// taken in turn, so that they saw the same machine. Load only ever adds: what is slow is slow in its shortest too, while
/// one control that was lucky says nothing.
///
/// # Panics
/// If it is not, or if one of them is empty.
#[track_caller]
pub fn assert_comparable(what: impl Display, measured: &[Duration], control: &[Duration], times: u32) {
    let (with, without) = (least(measured), middle(control));
    assert!(
        are_comparable(measured, control, times),
        "{what}: {with:?} is more than {times} times the control's {without:?}\n{measured:?}\n{control:?}"
    );
}

/// Returns whether [`assert_comparable`] would hold, for tests that measure once more if it does not.
///
/// # Panics
/// If one of them is empty.
#[must_use]
pub fn are_comparable(measured: &[Duration], control: &[Duration], times: u32) -> bool {
    least(measured) <= middle(control) * times
}

fn least(all: &[Duration]) -> Duration {
    all.iter().min().copied().expect("something was measured")
}

fn middle(all: &[Duration]) -> Duration {
    let mut all = all.to_vec();
    all.sort_unstable();
    all.get(all.len() / 2).copied().expect("something was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_its_event() {
        let mut looks = 0;
        let found = eventually("the tenth look", || {
            looks += 1;
            let look = looks;
            async move { (look == 10).then_some(look) }
        });
        assert_eq!(found.await, 10);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "waiting for: nothing")]
    async fn a_wait_for_nothing_ends_too() {
        eventually("nothing", async || None::<()>).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "too soon")]
    async fn an_event_that_must_not_come_is_found() {
        stays_pending("too soon", Duration::from_secs(2), tokio::time::sleep(Duration::from_secs(1))).await;
    }

    #[test]
    #[should_panic(expected = "more than 3 times")]
    fn a_slow_one_is_found_beside_its_control() {
        let ms = |all: &[u64]| all.iter().copied().map(Duration::from_millis).collect::<Vec<_>>();
        assert_comparable("fast", &ms(&[30, 500]), &ms(&[90, 1, 10]), 3);
        assert_comparable("slow", &ms(&[31, 500]), &ms(&[90, 1, 10]), 3);
    }

    #[test]
    #[should_panic(expected = "too early: after")]
    fn a_lower_bound_is_held() {
        let watch = Stopwatch::start();
        watch.assert_at_least(Duration::ZERO, "in time");
        watch.assert_at_least(FAR_BEYOND_PATIENCE, "too early");
    }
}
