//! The connections of a pool that rest, and those that are lent out.

use super::{PoolLimits, body::Slices, progress::Writes};
use crate::tasks::Tasks;
use http_body_util::Either;
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::{sync::OwnedSemaphorePermit, task::AbortHandle, time::Instant};

/// A request's body on its way out.
pub(super) type Upload = Either<Slices, Incoming>;

/// The connections of one pool that rest, last used last.
#[derive(Debug)]
pub(super) struct Lines {
    resting: Mutex<Resting>,
    limits: PoolLimits,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct Resting {
    idle: Vec<Idle>,
    /// Whether a task sees to it that none rests for ever.
    is_watched: bool,
}

#[derive(Debug)]
struct Idle {
    line: Line,
    since: Instant,
}

/// One connection: dropping it closes the connection at once.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) sender: SendRequest<Upload>,
    driver: AbortHandle,
    pub(super) writes: Writes,
}

impl Line {
    pub(super) fn new(sender: SendRequest<Upload>, driver: AbortHandle, writes: Writes) -> Self {
        Self { sender, driver, writes }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Lines {
    pub(super) fn new(limits: PoolLimits, tasks: Tasks) -> Self {
        Self { resting: Mutex::default(), limits, tasks }
    }

    /// How many rest.
    pub(super) fn idle(&self) -> usize {
        self.lock().idle.len()
    }

    /// The connection that was used last, if it is still good.
    pub(super) async fn reuse(&self) -> Option<Line> {
        loop {
            let Idle { mut line, since } = self.lock().idle.pop()?;
            if since.elapsed() > self.limits.idle_for_max || line.sender.is_closed() {
                continue;
            }
            // The answer's end may have overtaken the connection's own bookkeeping by a moment.
            let settled = tokio::time::timeout(Duration::from_millis(10), line.sender.ready());
            if matches!(settled.await, Ok(Ok(()))) {
                return Some(line);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Resting> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(self: &Arc<Self>, line: Line) {
        let mut resting = self.lock();
        if !std::mem::replace(&mut resting.is_watched, true) {
            self.tasks.spawn(reap(Arc::downgrade(self)));
        }
        resting.idle.push(Idle { line, since: Instant::now() });
        if resting.idle.len() > self.limits.idle_max {
            resting.idle.remove(0);
        }
    }
}

/// Closes connections that rest for too long, until none is left.
async fn reap(pool: Weak<Lines>) {
    loop {
        let Some(wait) = pool.upgrade().map(|shared| shared.limits.idle_for_max) else { return };
        tokio::time::sleep(wait / 2).await;
        let Some(shared) = pool.upgrade() else { return };
        let mut resting = shared.lock();
        resting.idle.retain(|idle| idle.since.elapsed() < shared.limits.idle_for_max);
        if resting.idle.is_empty() {
            resting.is_watched = false;
            return;
        }
    }
}

/// A connection in use, and the place it takes.
#[derive(Debug)]
pub(super) struct Lease {
    line: Line,
    lines: Arc<Lines>,
    _place: OwnedSemaphorePermit,
}

impl Lease {
    pub(super) fn new(line: Line, lines: Arc<Lines>, place: OwnedSemaphorePermit) -> Self {
        Self { line, lines, _place: place }
    }

    pub(super) fn give_back(self) {
        if !self.line.sender.is_closed() {
            self.lines.put(self.line);
        }
    }
}
