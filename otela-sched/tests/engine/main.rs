//! The simulated engine as its clients see it: over real sockets, byte by byte where that matters.

mod api;
mod client;
mod faults;
mod scheduling;

use client::Client;
use otela_node::tasks::Tasks;
use otela_sched::engine::{EngineConfig, Outcome, Serving, serve};
use std::{future::Future, net::SocketAddr, time::Duration};

/// Generous: only a test that fails waits this long.
const DEADLINE: Duration = Duration::from_secs(30);
/// Longer than any test: what takes this long does not happen by itself.
const NEVER: Duration = Duration::from_secs(3600);

/// A running engine.
struct Engine {
    tasks: Tasks,
    address: SocketAddr,
    serving: Serving,
}

impl Engine {
    /// A fast engine on a free port, changed as the test wants.
    async fn start(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = config();
        change(&mut config);
        let tasks = Tasks::new();
        let serving = serve(config, &tasks).await.expect("the engine starts");
        Self { tasks, address: serving.address(), serving }
    }

    fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Stops it and says how it ended.
    async fn stop(self) -> Outcome {
        self.tasks.drain();
        let outcome = within(self.serving.ended()).await;
        assert!(self.tasks.shutdown(DEADLINE).await, "a task outlived the engine");
        outcome
    }
}

fn config() -> EngineConfig {
    let mut config = EngineConfig::new("test/model");
    config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.timing.ttft = Duration::ZERO;
    config.timing.itl = Duration::ZERO;
    config
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.expect("in time")
}
