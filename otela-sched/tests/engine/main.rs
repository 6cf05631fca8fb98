//! The simulated engine as its clients see it: over real sockets, byte by byte where that matters.

mod api;
mod client;
mod faults;
mod scheduling;

use client::Client;
use otela_node::tasks::Tasks;
use otela_sched::engine::{EngineConfig, Outcome, Serving, serve};
use otela_testing::{PATIENCE, finishes};
use std::{net::SocketAddr, time::Duration};

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
        let outcome = finishes("the engine's end", self.serving.ended()).await;
        assert!(self.tasks.shutdown(PATIENCE).await, "a task outlived the engine");
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
