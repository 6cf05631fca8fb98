//! The connections of a pool that rest, and those that are lent out.

use super::{PoolLimits, body::Slices};
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
    idle: Mutex<Vec<Idle>>,
    limits: PoolLimits,
    tasks: Tasks,
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
}

impl Line {
    pub(super) fn new(sender: SendRequest<Upload>, driver: AbortHandle) -> Self {
        Self { sender, driver }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Lines {
    pub(super) fn new(limits: PoolLimits, tasks: Tasks) -> Self {
        Self { idle: Mutex::default(), limits, tasks }
    }

    /// How many rest.
    pub(super) fn idle(&self) -> usize {
        self.lock().len()
    }

    /// The connection that was used last, if it is still good.
    pub(super) async fn reuse(&self) -> Option<Line> {
        loop {
            let Idle { mut line, since } = self.lock().pop()?;
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

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(self: &Arc<Self>, line: Line) {
        let mut idle = self.lock();
        // The first one to rest starts the task that sees to it that none rests for ever.
        if idle.is_empty() {
            self.tasks.spawn(reap(Arc::downgrade(self)));
        }
        idle.push(Idle { line, since: Instant::now() });
        if idle.len() > self.limits.idle_max {
            idle.remove(0);
        }
    }
}

/// Closes connections that rest for too long, until none is left.
async fn reap(pool: Weak<Lines>) {
    loop {
        let Some(wait) = pool.upgrade().map(|shared| shared.limits.idle_for_max) else { return };
        tokio::time::sleep(wait / 2).await;
        let Some(shared) = pool.upgrade() else { return };
        let mut idle = shared.lock();
        idle.retain(|idle| idle.since.elapsed() < shared.limits.idle_for_max);
        if idle.is_empty() {
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
