//! Work on large bodies, aside from the threads that serve everybody: a decoder or a scanner that is busy for a second must
//! not keep others waiting.

use std::thread::available_parallelism;
use tokio::{sync::Semaphore, task::spawn_blocking};

/// A few threads for such work. More of it waits, so that the others always get a processor.
#[derive(Debug)]
pub(crate) struct Aside(Semaphore);

impl Default for Aside {
    fn default() -> Self {
        Self(Semaphore::new(available_parallelism().map_or(1, |cores| cores.get() / 2).max(1)))
    }
}

impl Aside {
    /// Does `work`, and waits for it. Work that has begun is finished, also if nobody waits any more.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let _turn = self.0.acquire().await.expect("it is never closed");
        match spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process is ending.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
