//! The provider's agent: what `otela start` does once its peer is up.
//!
//! It announces the node's hardware, runs the engine, tells the mesh the truth about it (loading, ready, down, left),
//! and lets requests through exactly while that is "ready". [`run`] reads as the life of a node.

pub mod hardware;
mod serve;

use crate::{
    engine::{
        Client, Echo, Exit, Kind, Launch, LaunchError, NotReady, Process, Progress, Ready, ReadyOptions, wait_ready,
    },
    peer::{Announcement, Inbound, Peer, tunnel},
    tasks::Tasks,
    telemetry::{Metrics, chain, trace::Traces},
};
use hardware::{Tools, Visible};
use otela_proto::{
    lifecycle::Lifecycle,
    payload::{Accelerator, Hardware, ModelCard, Service},
};
use serve::{Gate, Opening};
use std::{collections::BTreeMap, ffi::OsString, time::Duration};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

/// Neighbours get our leave within this, or notice by themselves.
const LEAVE_WITHIN: Duration = Duration::from_millis(800);

/// A relay answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is said that nobody can reach a node whose engine is ready.
const UNREACHABLE_SAID_EVERY: Duration = Duration::from_mins(1);
/// What such a node shows in the place of its engine's stage.
const UNREACHABLE: &str = "unreachable";

/// The settings of one agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The engine's own command line; none for an idle node that only shows its hardware.
    pub process: Option<Vec<OsString>>,
    /// The provider's labels.
    pub labels: BTreeMap<String, String>,
    /// What the engine is offered as.
    pub service: ServiceConfig,
    /// When the engine counts as ready, and how long that may take.
    pub ready: ReadyOptions,
    /// How long requests may run on after a stop was asked for.
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
            labels: BTreeMap::new(),
            service: ServiceConfig::default(),
            ready: ReadyOptions::default(),
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
    said: Announcement,
}

/// Runs a node until its tasks drain or its engine ends.
pub async fn run(
    config: AgentConfig,
    peer: Peer,
    requests: mpsc::Receiver<Inbound>,
    tasks: &Tasks,
    metrics: &Metrics,
) -> Outcome {
    let ServiceConfig { in_flight_max, paths, .. } = config.service.clone();
    let gate = Gate::new(metrics, Opening { in_flight_max, paths }, config.traces.clone());
    tasks.spawn(tunnel::serve(requests, gate.clone(), tasks.clone()));
    let said = Announcement { labels: config.labels.clone(), ..Announcement::default() };
    let mut agent = Agent { config, peer, tasks: tasks.clone(), gate, said };
    agent.announce().await;
    agent.said.hardware = Some(detect(&agent.config.visible).await);
    agent.announce().await;
    let outcome = match agent.config.process.clone() {
        Some(argv) => agent.serve(argv).await,
        None => {
            agent.tasks.draining().await;
            Outcome::Stopped
        }
    };
    agent.peer.leave(LEAVE_WITHIN).await;
    outcome
}

impl Agent {
    /// From launching the engine until nothing of it is left.
    async fn serve(&mut self, argv: Vec<OsString>) -> Outcome {
        let kind = Kind::recognise(&argv);
        let launch = Launch { grace: self.config.stop_grace, echo: self.config.echo.clone(), ..Launch::new(argv) };
        let process = match Process::spawn(&launch, &self.tasks).await {
            Ok(process) => process,
            Err(error) => return Outcome::NotLaunched(error),
        };
        let ready = match self.load(&process, &kind).await {
            Some(Ok(ready)) => ready,
            Some(Err(NotReady::Exited { .. })) => return self.engine_ended(&process).await,
            Some(Err(error)) => {
                process.stop(self.config.stop_grace).await;
                return Outcome::NotReady(error);
            }
            None => return self.stop(&process).await,
        };
        self.gate.open(Client::new(ready.endpoint, kind.api_key.as_deref(), self.tasks.clone()));
        let tasks = self.tasks.clone();
        tokio::select! {
            () = self.reachable() => {}
            _exit = process.exited() => return self.engine_ended(&process).await,
            () = tasks.draining() => return self.stop(&process).await,
        }
        self.said.lifecycle = Lifecycle::Serving;
        self.said.services = vec![service(&self.config.service, &kind, &ready)];
        self.announce().await;
        let models: Vec<_> = ready.models.iter().map(|model| model.id.as_str()).collect();
        tracing::info!(models = models.join(" "), endpoint = %ready.endpoint, "serving");
        tokio::select! {
            _exit = process.exited() => self.engine_ended(&process).await,
            () = tasks.draining() => self.stop(&process).await,
        }
    }

    /// Waits until others can reach this node: what nobody can ask is not ready.
    async fn reachable(&mut self) {
        if self.peer.reach().is_reachable() {
            return;
        }
        for service in &mut self.said.services {
            service.loading = UNREACHABLE.to_owned();
        }
        self.announce().await;
        let mut patience = tokio::time::interval_at(Instant::now() + PATIENCE, UNREACHABLE_SAID_EVERY);
        let reachable = self.peer.reachable();
        tokio::pin!(reachable);
        loop {
            tokio::select! {
                () = &mut reachable => return,
                _ = patience.tick() => tracing::warn!(
                    "the engine is ready, and nobody can reach this node yet: it has not found its mesh, or no relay relays for it"
                ),
            }
        }
    }

    /// Waits for the engine, telling the mesh how far it is. `None` when a stop was asked for meanwhile.
    async fn load(&mut self, process: &Process, kind: &Kind) -> Option<Result<Ready, NotReady>> {
        let (progress, mut seen) = watch::channel(Progress::default());
        let options = self.config.ready.clone();
        let tasks = self.tasks.clone();
        let ready = wait_ready(process, kind, &options, &progress);
        tokio::pin!(ready);
        let mut stage = None;
        loop {
            let now = seen.borrow_and_update().stage;
            if stage != Some(now) {
                stage = Some(now);
                // Its names are known from its arguments: whoever asks for them is told to wait.
                let models = kind.models.iter().map(|id| ModelCard { id: id.clone(), ..ModelCard::default() });
                let loading = Service {
                    loading: now.to_string(),
                    models: models.collect(),
                    ..service_of(&self.config.service, kind)
                };
                self.said.services = vec![loading];
                self.announce().await;
            }
            tokio::select! {
                ready = &mut ready => return Some(ready),
                Ok(()) = seen.changed() => {}
                () = tasks.draining() => return None,
            }
        }
    }

    /// The engine has ended by itself: say so at once, clean up, and let it be seen for a while.
    async fn engine_ended(&mut self, process: &Process) -> Outcome {
        self.gate.close();
        self.said.lifecycle = Lifecycle::Down;
        self.announce().await;
        let exit = process.gone().await;
        let tasks = self.tasks.clone();
        tokio::select! {
            () = tokio::time::sleep(self.config.linger) => {}
            () = tasks.draining() => {}
        }
        Outcome::EngineExited { exit, last_lines: process.output().last_lines(20) }
    }

    /// A stop was asked for: no new requests, the running ones finish, then the engine ends.
    async fn stop(&mut self, process: &Process) -> Outcome {
        self.said.draining = true;
        self.announce().await;
        self.gate.close();
        tokio::select! {
            () = self.gate.idle() => {}
            () = tokio::time::sleep(self.config.drain_within) => {
                tracing::warn!("requests still ran when the time to drain was over");
            }
            _exit = process.exited() => {}
        }
        process.stop(self.config.stop_grace).await;
        Outcome::Stopped
    }

    async fn announce(&self) {
        if let Err(error) = self.peer.announce(self.said.clone()).await {
            tracing::error!(error = chain(&error), "cannot announce this node");
        }
    }
}

fn service_of(config: &ServiceConfig, kind: &Kind) -> Service {
    Service {
        name: config.name.clone(),
        engine: kind.engine.name().to_owned(),
        in_flight_max: config.in_flight_max,
        paths: config.paths.clone(),
        ..Service::default()
    }
}

fn service(config: &ServiceConfig, kind: &Kind, ready: &Ready) -> Service {
    let models = ready.models.iter().map(|model| ModelCard {
        id: model.id.clone(),
        context_length: model.max_model_len.unwrap_or(0),
        root: model.root.clone().unwrap_or_default(),
        owned_by: model.owned_by.clone().unwrap_or_default(),
        quantization: kind.quantization.clone(),
        dtype: kind.dtype.clone(),
        ..ModelCard::default()
    });
    Service {
        engine_version: ready.version.clone().unwrap_or_default(),
        models: models.collect(),
        features: kind.engine.features().iter().map(|feature| (*feature).to_owned()).collect(),
        ..service_of(config, kind)
    }
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
