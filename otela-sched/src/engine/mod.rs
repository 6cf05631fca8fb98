//! A simulated inference engine that speaks vLLM's HTTP API.
//!
//! It computes nothing, yet behaves: requests queue, take slots and KV blocks, are preempted, and get tokens at a
//! given pace; answers are readable, and the same for the same prompt; and it can be told to fail in the ways that
//! real engines fail. A user without a GPU tries otela with it, tests break it, and `batch` is what the scheduler's
//! simulator will drive. Every answer says that it is simulated. What it does not imitate is in docs/engine.md.

mod api;
mod batch;
mod config;
mod connection;
mod faults;
mod metrics;
mod pace;
mod prose;
mod runner;
mod tokens;

pub use config::{Capacity, ConfigError, EngineConfig, ModelConfig, Start};
pub use faults::{BreakOff, Failure, Faults, How};
pub use pace::{Profile, ProfileError, Timing};

use batch::Batch;
use metrics::Meters;
use otela_node::tasks::Tasks;
use runner::Runner;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};
use tokio::{net::TcpListener, sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

/// The `system_fingerprint` and owner that answers carry.
pub const FINGERPRINT: &str = "otela-simulated";

/// Why an engine did not come up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The configuration makes no sense; nothing was started.
    #[error("the engine cannot run like this")]
    Config(#[from] ConfigError),
    /// The address cannot be had: choose another one, or stop what holds it.
    #[error("cannot listen on {address}")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It was asked to stop before its port had opened. Not a failure.
    #[error("stopped before the port opened")]
    Stopped,
}

/// How an engine ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was asked to, and its connections are closed.
    Drained,
    /// It crashed on purpose. The process should end at once with this exit code.
    Crashed(u8),
}

/// A running engine.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    outcome: oneshot::Receiver<Outcome>,
}

impl Serving {
    /// The address it listens on, with the port it got.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has drained (`Tasks::drain` or `Tasks::shutdown` starts that) or crashed.
    pub async fn ended(self) -> Outcome {
        // Tasks that are stopped rather than drained send nothing.
        self.outcome.await.unwrap_or(Outcome::Drained)
    }
}

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Sim {
    config: EngineConfig,
    runner: Arc<Runner>,
    meters: Arc<Meters>,
    /// Cancelled by a crash done on purpose: everything drops its sockets.
    crash: CancellationToken,
    /// Before this, `/health` says 503.
    ready: Instant,
    /// Unix seconds, as in the list of models.
    created: u64,
}

/// Starts an engine. Returns when its port is open, which is after `start.port_after`.
///
/// # Errors
/// The configuration makes no sense, the address cannot be had, or `tasks` drained before the port had opened.
pub async fn serve(config: EngineConfig, tasks: &Tasks) -> Result<Serving, EngineError> {
    config.check()?;
    let ready = Instant::now() + config.start.ready_after;
    if !config.start.port_after.is_zero() {
        tracing::info!(model = config.names()[0], after = ?config.start.port_after, "simulated engine starts");
        tokio::select! {
            () = tokio::time::sleep(config.start.port_after) => {}
            () = tasks.draining() => return Err(EngineError::Stopped),
        }
    }
    let asked = config.listen;
    let refused = |source| EngineError::Listen { address: asked, source };
    let listener = TcpListener::bind(asked).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;

    let room = config.room();
    let meters = Arc::new(Meters::new(&config.names()[0], room.block_tokens, room.blocks));
    let runner = Arc::new(Runner::new(Batch::new(room, config.pace()), Arc::clone(&meters)));
    tracing::info!(%address, models = config.names().join(","), "simulated engine listens: no model is loaded");
    let sim = Arc::new(Sim { config, runner, meters, crash: CancellationToken::new(), ready, created: unix_seconds() });
    let (sender, outcome) = oneshot::channel();
    let (router, owner) = (api::router(Arc::clone(&sim)), tasks.clone());
    tasks.spawn(async move {
        let clock = Arc::clone(&sim.runner).run();
        tokio::select! {
            () = clock => {}
            // Nobody may be waiting for the outcome.
            outcome = connection::accept(listener, Arc::clone(&sim), router, owner) => { let _ = sender.send(outcome); }
        }
    });
    Ok(Serving { address, outcome })
}

/// Seconds since 1970, for the `created` fields that answers carry.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// 32 hexadecimal digits that nobody else has.
fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
