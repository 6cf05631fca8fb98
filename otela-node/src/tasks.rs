//! Owned tasks and a stop in two steps.
//!
//! Every task of a process hangs on one [`Tasks`]. *Draining* asks the owners of listeners and queues to take
//! no new work; *stopped* asks everything to end now. [`Tasks::shutdown`] goes through both and waits, so no
//! task outlives its process's orderly end.

use std::{future::Future, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFuture},
    task::TaskTracker,
};

/// The tasks of one process (or of one peer of a local mesh), and the two tokens that end them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    draining: CancellationToken,
    stopped: CancellationToken,
}

impl Tasks {
    /// An owner without tasks yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tasks that can be stopped on their own, and stop with their parent.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { tracker: TaskTracker::new(), draining: self.draining.child_token(), stopped: self.stopped.child_token() }
    }

    /// Runs `task` until it ends or until this owner is stopped, whichever is first.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stopped = self.stopped.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = task => {}
                () = stopped.cancelled() => {}
            }
        })
    }

    /// Runs `task` until it ends by itself: for tasks that clean up after [`Tasks::stopped`].
    pub fn spawn_to_end<F>(&self, task: F) -> JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Resolves when no new work may be taken.
    pub fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.draining.cancelled()
    }

    /// Whether no new work may be taken.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Resolves when everything has to end.
    pub fn stopped(&self) -> WaitForCancellationFuture<'_> {
        self.stopped.cancelled()
    }

    /// A token that is cancelled when no new work may be taken; cancelling it does nothing to the tasks.
    #[must_use]
    pub fn draining_token(&self) -> CancellationToken {
        self.draining.child_token()
    }

    /// A token that is cancelled when everything has to end; cancelling it does nothing to the tasks.
    #[must_use]
    pub fn stopped_token(&self) -> CancellationToken {
        self.stopped.child_token()
    }

    /// Asks for no new work to be taken.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Asks everything to end now.
    pub fn stop(&self) {
        self.draining.cancel();
        self.stopped.cancel();
    }

    /// Asks for no new work, and waits up to `within` for the tasks to end by themselves. Returns whether they did.
    pub async fn drained(&self, within: Duration) -> bool {
        self.draining.cancel();
        self.tracker.close();
        tokio::time::timeout(within, self.tracker.wait()).await.is_ok()
    }

    /// Drains, waits up to `grace` for the tasks to end by themselves, then stops what is left and waits for it.
    /// Returns whether everything ended within the grace.
    pub async fn shutdown(&self, grace: Duration) -> bool {
        let clean = self.drained(grace).await;
        self.stopped.cancel();
        self.tracker.wait().await;
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shutdown_ends_tasks_that_never_would() {
        let tasks = Tasks::new();
        let stuck = tasks.spawn(std::future::pending());
        assert!(!tasks.shutdown(Duration::from_millis(5)).await);
        assert!(stuck.is_finished());
    }

    #[tokio::test]
    async fn shutdown_waits_for_tasks_that_clean_up() {
        let tasks = Tasks::new();
        let (sent, cleaned) = tokio::sync::oneshot::channel();
        let owner = tasks.clone();
        tasks.spawn_to_end(async move {
            owner.draining().await;
            tokio::task::yield_now().await;
            let _ = sent.send(());
        });
        assert!(tasks.shutdown(Duration::from_secs(5)).await);
        cleaned.await.expect("the task ended by itself");
    }

    #[tokio::test]
    async fn a_child_stops_with_its_parent_and_not_the_other_way_round() {
        let parent = Tasks::new();
        let child = parent.child();
        child.shutdown(Duration::ZERO).await;
        assert!(!parent.is_draining());
        let other = parent.child();
        parent.shutdown(Duration::ZERO).await;
        assert!(other.is_draining());
    }
}
