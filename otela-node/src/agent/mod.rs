//! The provider's agent: what `otela start` does once its peer is up.
//!
//! It announces the node's hardware, runs the engine, tells the mesh the truth about it (loading, ready, down, left),
//! and lets requests through exactly while that is "ready". [`run`] reads as the life of a node.

mod allocation;
mod assigned;
mod attached;
pub mod control;
mod ending;
pub mod hardware;
mod health;
mod life;
mod load;
mod operate;
mod post_mortem;
mod pulse;
mod readiness;
mod serve;
mod voice;
mod wrapped;

use crate::{
    engine::{Echo, Engine, Exit, FatalPatterns, LaunchError, NotReady, ReadyOptions},
    peer::{Announcement, Inbound, Peer, tunnel},
    tasks::Tasks,
    telemetry::{Metrics, trace::Traces},
};
pub use allocation::{Allocation, Job};
use assigned::Orders;
pub use assigned::{Assignable, LaunchTemplate, TemplatesError};
pub use attached::Attached;
pub use ending::Ending;
use hardware::{Tools, Visible};
use health::HealthCounters;
pub use health::{HungAfter, Patience};
use load::Account;
use operate::Operations;
pub use operate::{DRAIN_PATH, LOGS_PATH};
use otela_proto::{
    PeerId,
    payload::{Accelerator, Hardware},
};
use post_mortem::Coroner;
pub(crate) use post_mortem::keep;
pub use post_mortem::{LogSink, POST_MORTEM_PATH, writable};
use prometheus_client::metrics::counter::Counter;
pub use readiness::readiness;
use serve::{Gate, Opening, Others};
use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};
use voice::Voice;
pub use wrapped::Restart;

/// Neighbours get our leave within this, or notice by themselves.
const LEAVE_WITHIN: Duration = Duration::from_millis(800);

/// The settings of one agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The engine's own command line; none for an idle node, which shows its hardware and serves what it is told to.
    pub process: Option<Vec<OsString>>,
    /// An engine that runs already, in the place of a command line.
    pub attached: Option<Attached>,
    /// Whose command line that is, if it is not to be recognised.
    pub engine: Option<Engine>,
    /// What happens when the engine fails.
    pub restart: Restart,
    /// How closely the engine is watched.
    pub patience: Patience,
    /// Lines of an engine's output that tell of a fatal fault.
    pub fatal: Arc<FatalPatterns>,
    /// Where is written down what is known of an engine that failed.
    pub log_sink: Option<LogSink>,
    /// Who may drain this node and read what its engine prints.
    pub operators: Vec<PeerId>,
    /// The folder of the control socket, for operators on this machine.
    pub control: Option<PathBuf>,
    /// Who may tell an idle node what to serve.
    pub assignable: Assignable,
    /// The provider's labels.
    pub labels: BTreeMap<String, String>,
    /// What the engine is offered as.
    pub service: ServiceConfig,
    /// When the engine counts as ready, and how long that may take.
    pub ready: ReadyOptions,
    /// For how long it has its machine.
    pub allocation: Allocation,
    /// How long requests may run on when the engine makes room for another.
    pub drain_within: Duration,
    /// How long the engine may take to end before it is killed.
    pub stop_grace: Duration,
    /// How long Down is shown before the node leaves, when its engine has ended by itself.
    pub linger: Duration,
    /// Which accelerators this job may see.
    pub visible: Visible,
    /// Where the engine's output goes besides the lines that are kept.
    pub echo: Option<Echo>,
    /// Where the spans of requests go.
    pub traces: Traces,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            process: None,
            attached: None,
            engine: None,
            restart: Restart::default(),
            patience: Patience::default(),
            fatal: Arc::default(),
            log_sink: None,
            operators: Vec::new(),
            control: None,
            assignable: Assignable::default(),
            labels: BTreeMap::new(),
            service: ServiceConfig::default(),
            ready: ReadyOptions::default(),
            allocation: Allocation::default(),
            drain_within: Duration::from_secs(20),
            stop_grace: Duration::from_secs(5),
            linger: Duration::from_secs(5),
            visible: Visible::default(),
            echo: None,
            traces: Traces::default(),
        }
    }
}

/// What an engine is offered as.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// The service's name; `llm` for engines that speak the OpenAI API.
    pub name: String,
    /// Most requests in the engine's hands at once; as many as come, if 0.
    pub in_flight_max: u32,
    /// Paths of the engine that are reachable through the mesh beyond the inference routes; one that ends in `/` opens all
    /// below it.
    pub paths: Vec<String>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self { name: "llm".to_owned(), in_flight_max: 0, paths: Vec::new() }
    }
}

/// How an agent ended. The node has left the mesh and nothing of the engine is left.
#[derive(Debug)]
pub enum Outcome {
    /// It was asked to.
    Stopped,
    /// The engine ended by itself.
    EngineExited {
        /// How.
        exit: Exit,
        /// The last lines of its output.
        last_lines: Vec<String>,
    },
    /// The engine was of no use any more, and was ended.
    EngineLost {
        /// Why.
        cause: String,
        /// The last lines of its output.
        last_lines: Vec<String>,
    },
    /// The engine could not be started.
    NotLaunched(LaunchError),
    /// The engine never became ready.
    NotReady(NotReady),
}

/// The parts that an agent is made of while it runs.
struct Agent {
    config: AgentConfig,
    peer: Peer,
    tasks: Tasks,
    gate: Gate,
    voice: Voice,
    ending: Ending,
    operations: Operations,
    health: HealthCounters,
    account: Account,
    coroner: Coroner,
    restarts: Counter,
}

/// Runs a node until its tasks drain or its engine ends. `ending` is of the same tasks.
pub async fn run(
    config: AgentConfig,
    peer: Peer,
    requests: mpsc::Receiver<Inbound>,
    (tasks, ending): (&Tasks, Ending),
    metrics: &Metrics,
) -> Outcome {
    let ServiceConfig { in_flight_max, paths, .. } = config.service.clone();
    // Whoever runs an engine of its own takes no orders, and says so.
    let assignable = if config.process.is_none() && config.attached.is_none() {
        config.assignable.clone()
    } else {
        Assignable::default()
    };
    let session = peer.clone();
    let orders = Orders::new(peer.mesh().clone(), move || session.session(), assignable, tasks.clone(), metrics);
    let orders = Arc::new(orders);
    let in_flight = watch::Sender::default();
    let operations = Operations::new(config.operators.clone(), ending.clone(), in_flight.subscribe(), metrics);
    let others = Others { orders: Arc::clone(&orders), operations: operations.clone() };
    let gate = Gate::new(metrics, Opening { in_flight_max, paths }, config.traces.clone(), (others, in_flight));
    tasks.spawn(tunnel::serve(requests, gate.clone(), tasks.clone()));
    let _control = config.control.as_deref().and_then(|folder| control::start(folder, operations.clone(), tasks));
    let said = Announcement { labels: config.labels.clone(), ..Announcement::default() };
    let voice = Voice::new(peer.clone(), said);
    let (health, coroner, restarts) = (HealthCounters::new(metrics), Coroner::new(metrics), Counter::default());
    let shown = restarts.clone();
    metrics.register(|r| r.register("otela_agent_engine_restarts", "Times that an engine was started again", shown));
    let (allocation, stop_grace) = (config.allocation.clone(), config.stop_grace);
    let (tasks, ending) = (tasks.clone(), ending);
    let account = Account::new(metrics);
    let agent = Agent { config, peer, tasks, gate, voice, ending, operations, health, account, coroner, restarts };
    agent.voice.say(|_| {}).await;
    agent.tasks.spawn(allocation.follow(agent.voice.clone(), agent.ending.clone(), stop_grace));
    let hardware = detect(&agent.config.visible).await;
    orders.has_accelerators(hardware.accelerators.iter().map(|kind| kind.count).max().unwrap_or(0));
    agent.voice.say(|said| said.hardware = Some(hardware)).await;
    let outcome = match (agent.config.process.clone(), &agent.config.attached) {
        (Some(argv), _) => agent.serve(argv).await,
        (None, Some(engine)) => agent.attach(engine).await,
        (None, None) if orders.are_taken() => agent.follow(orders).await,
        (None, None) => {
            agent.tasks.draining().await;
            Outcome::Stopped
        }
    };
    agent.peer.leave(LEAVE_WITHIN).await;
    outcome
}

async fn detect(visible: &Visible) -> Hardware {
    let found = hardware::detect(&Tools::default(), visible).await;
    let accelerators = found.accelerators.into_iter().map(|a| Accelerator {
        kind: a.kind,
        name: a.name,
        count: u32::try_from(a.count).unwrap_or(u32::MAX),
        memory_bytes: a.memory_bytes.unwrap_or(0),
    });
    Hardware {
        accelerators: accelerators.collect(),
        hostname: found.hostname,
        cpus: u32::try_from(found.cpus).unwrap_or(u32::MAX),
        memory_bytes: found.memory_bytes,
        driver: found.driver.unwrap_or_default(),
    }
}
