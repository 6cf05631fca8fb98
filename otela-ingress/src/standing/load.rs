//! How much a session has to do: counted here for our own requests, reported by the node for everybody's.

use otela_node::peer::Path;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// What a node reported counts half after this time, for it says so only with its answers.
const REPORT_HALVES_IN: Duration = Duration::from_secs(2);
/// What a relayed path counts as, in requests in flight: of two equally busy nodes the directly connected one is taken.
const RELAYED: f64 = 0.5;

/// A session's load. Nothing ever resets the count of what is in flight: it is the number of [`InFlightCount`]s.
#[derive(Debug)]
pub(crate) struct Load {
    began: Instant,
    in_flight: AtomicU32,
    /// What others had in flight there (upper half), and when that was reported, in milliseconds since `began` (lower
    /// half).
    others: AtomicU64,
    /// The engine asks for a pause until then, in milliseconds since `began`.
    pause_until_ms: AtomicU64,
    /// The node takes no further request until then.
    full_until_ms: AtomicU64,
    relayed: AtomicBool,
}

impl Load {
    pub(super) fn new(began: Instant) -> Self {
        let never = || AtomicU64::new(0);
        let (in_flight, relayed) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { began, in_flight, others: never(), pause_until_ms: never(), full_until_ms: never(), relayed }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Our own requests in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// What is to be compared: requests in flight from here and, as far as is known, from elsewhere; a little more for
    /// a relayed path.
    pub(crate) fn weight(&self) -> f64 {
        let relayed = if self.relayed.load(Ordering::Relaxed) { RELAYED } else { 0.0 };
        f64::from(self.in_flight()) + self.others() + relayed
    }

    fn others(&self) -> f64 {
        let packed = self.others.load(Ordering::Relaxed);
        let others = u32::try_from(packed >> 32).unwrap_or(u32::MAX);
        if others == 0 {
            return 0.0;
        }
        // Both in 32 bits, which wrap around after seven weeks.
        let age_ms = self.now_ms().wrapping_sub(packed) & u64::from(u32::MAX);
        let halvings = Duration::from_millis(age_ms).as_secs_f64() / REPORT_HALVES_IN.as_secs_f64();
        f64::from(others) * (-halvings).exp2()
    }

    /// The node says how much it has in flight, of ours and of others; `path` is how we learned it.
    pub(crate) fn reported(&self, all: Option<u32>, path: Path) {
        self.relayed.store(path == Path::Relayed, Ordering::Relaxed);
        if let Some(all) = all {
            let others = u64::from(all.saturating_sub(self.in_flight()));
            self.others.store(others << 32 | self.now_ms() & u64::from(u32::MAX), Ordering::Relaxed);
        }
    }

    /// The engine wants fewer requests for a while.
    pub(crate) fn pauses_for(&self, time: Duration) {
        self.pause_until_ms.fetch_max(self.in_ms(time), Ordering::Relaxed);
    }

    /// Whether the engine still wants its pause.
    pub(crate) fn asks_for_pause(&self) -> bool {
        self.pause_until_ms.load(Ordering::Relaxed) > self.now_ms()
    }

    /// The node has as many requests as it takes, and is to be asked again after this time.
    pub(crate) fn is_full_for(&self, time: Duration) {
        self.full_until_ms.fetch_max(self.in_ms(time), Ordering::Relaxed);
    }

    /// Whether the node has said that it is full, a moment ago.
    pub(crate) fn is_full(&self) -> bool {
        self.full_for().is_some()
    }

    /// For how long it counts as full.
    pub(crate) fn full_for(&self) -> Option<Duration> {
        let left = self.full_until_ms.load(Ordering::Relaxed).saturating_sub(self.now_ms());
        (left > 0).then(|| Duration::from_millis(left))
    }

    fn in_ms(&self, time: Duration) -> u64 {
        self.now_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

/// One request in flight, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct InFlightCount(Arc<super::Standing>);

impl InFlightCount {
    /// Counts one more, unless there are `most` already.
    pub(crate) fn take(standing: &Arc<super::Standing>, most: u32) -> Option<Self> {
        let one_more = |now: u32| (now < most).then_some(now + 1);
        standing.load.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).ok()?;
        Some(Self(Arc::clone(standing)))
    }
}

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.0.load.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::{Health, Standing};

    fn standing() -> Arc<Standing> {
        Arc::new(Standing { load: Load::new(Instant::now()), health: Health::new() })
    }

    #[tokio::test(start_paused = true)]
    async fn p34_what_is_in_flight_is_what_somebody_holds() {
        let standing = standing();
        let held: Vec<_> = (0..9).filter_map(|_| InFlightCount::take(&standing, 4)).collect();
        assert_eq!((held.len(), standing.load.in_flight()), (4, 4));
        tokio::time::advance(Duration::from_hours(10)).await;
        assert_eq!(standing.load.in_flight(), 4, "no time resets it");
        drop(held);
        assert_eq!(standing.load.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_do_counts_less_as_it_ages() {
        let standing = standing();
        let _ours = InFlightCount::take(&standing, 10).unwrap();
        standing.load.reported(Some(9), Path::Direct);
        assert!((standing.load.weight() - 9.0).abs() < 0.01);
        tokio::time::advance(REPORT_HALVES_IN).await;
        assert!((standing.load.weight() - 5.0).abs() < 0.01, "{}", standing.load.weight());
        standing.load.reported(None, Path::Relayed);
        assert!((standing.load.weight() - 5.5).abs() < 0.01, "no news is no news of others");
    }

    #[tokio::test(start_paused = true)]
    async fn p18_who_asks_for_a_pause_or_is_full_is_so_for_a_while() {
        let load = &standing().load;
        assert!(!load.asks_for_pause() && !load.is_full());
        load.pauses_for(Duration::from_secs(30));
        load.pauses_for(Duration::from_secs(1));
        load.is_full_for(Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(load.full_for(), Some(Duration::from_secs(6)));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(load.asks_for_pause() && !load.is_full());
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(!load.asks_for_pause());
    }
}
