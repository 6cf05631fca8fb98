//! How a node comes to its end: what asks it to drain, and how long requests that run may run on then.

use crate::tasks::Tasks;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// More than any request takes, and little enough to be added to a clock.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// The end of one node. Clones share it.
#[derive(Debug, Clone)]
pub struct Ending {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    tasks: Tasks,
    /// How long requests may run on unless somebody says otherwise.
    usual: Duration,
    /// Until when requests may run on if the node drains because its allocation ends.
    allocated: watch::Sender<Option<Instant>>,
    /// Until when requests may run on, once the node drains.
    limit: watch::Sender<Option<Instant>>,
}

impl Ending {
    /// Of the node that runs on `tasks`, whose requests usually have `usual` to end.
    #[must_use]
    pub fn new(tasks: &Tasks, usual: Duration) -> Self {
        let (allocated, limit) = (watch::Sender::default(), watch::Sender::default());
        Self { shared: Arc::new(Shared { tasks: tasks.clone(), usual, allocated, limit }) }
    }

    /// Lets no new requests in, and gives those that run this long, or as long as is usual. Once more: only a shorter time
    /// counts.
    pub fn drain(&self, within: Option<Duration>) {
        self.drain_until(Instant::now() + within.unwrap_or(self.shared.usual).min(LONGEST));
    }

    /// Lets no new requests in, because the allocation ends: those that run have until then, if it is known when that is.
    pub fn drain_before_the_end(&self) {
        let usual = Instant::now() + self.shared.usual;
        self.drain_until(self.shared.allocated.borrow().unwrap_or(usual));
    }

    /// Whether the node drains.
    pub(super) fn is_draining(&self) -> bool {
        self.shared.tasks.is_draining()
    }

    /// Until when requests may run on at the end of the allocation, as far as that is known.
    pub(super) fn allocated_until(&self, until: Option<Instant>) {
        self.shared.allocated.send_replace(until);
    }

    /// Resolves when requests have had their time. To be called once the node drains.
    pub(super) async fn over(&self) {
        let (mut limit, begun) = (self.shared.limit.subscribe(), Instant::now());
        loop {
            // Whoever only drains the tasks has no wish.
            let until = limit.borrow_and_update().unwrap_or(begun + self.shared.usual);
            tokio::select! {
                () = sleep_until(until) => return,
                // The sender lives as long as `self`.
                _ = limit.changed() => {}
            }
        }
    }

    fn drain_until(&self, until: Instant) {
        self.shared.limit.send_modify(|limit| *limit = Some(limit.map_or(until, |limit| limit.min(until))));
        self.shared.tasks.drain();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_secs(20);

    async fn takes(ending: &Ending) -> Duration {
        let begun = Instant::now();
        ending.over().await;
        begun.elapsed().saturating_sub(Duration::from_millis(1))
    }

    #[tokio::test(start_paused = true)]
    async fn requests_have_the_usual_time_or_what_is_said() {
        let tasks = Tasks::new();
        assert_eq!(takes(&Ending::new(&tasks, USUAL)).await.as_secs(), 19, "whoever only drains the tasks");
        let ending = Ending::new(&tasks, USUAL);
        ending.drain(Some(Duration::from_secs(100)));
        assert!(tasks.is_draining());
        let (shorter, longer) = (ending.clone(), ending.clone());
        let both = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            shorter.drain(None);
            longer.drain(Some(Duration::from_secs(1_000)));
        };
        let (took, ()) = tokio::join!(takes(&ending), both);
        assert_eq!(took.as_secs(), 29, "once more it can only be shorter");
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_end_of_the_allocation_they_have_until_then() {
        let ending = Ending::new(&Tasks::new(), USUAL);
        ending.allocated_until(Some(Instant::now() + Duration::from_secs(90)));
        ending.drain_before_the_end();
        assert_eq!(takes(&ending).await.as_secs(), 89);
        let unknown = Ending::new(&Tasks::new(), USUAL);
        unknown.drain_before_the_end();
        assert_eq!(takes(&unknown).await.as_secs(), 19);
    }
}
