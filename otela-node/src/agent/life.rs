//! An engine from its launch until the mesh knows that it serves.

use super::{Agent, ServiceConfig};
use crate::engine::{Client, Kind, Launch, LaunchError, NotReady, Process, Progress, Ready, wait_ready};
use otela_proto::{
    lifecycle::Lifecycle,
    payload::{ModelCard, Service},
};
use std::{ffi::OsString, time::Duration};
use tokio::{sync::watch, time::Instant};

/// A relay answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is said that nobody can reach a node whose engine is ready.
const UNREACHABLE_SAID_EVERY: Duration = Duration::from_mins(1);
/// What such a node shows in the place of its engine's stage.
const UNREACHABLE: &str = "unreachable";

/// What became of an engine that was launched.
#[derive(Debug)]
pub(super) enum Begun {
    /// It serves, and the mesh knows.
    Serving(Process),
    /// It has ended by itself.
    Ended(Process),
    /// It could not be started.
    NotLaunched(LaunchError),
    /// It never became ready, and was stopped.
    NotReady(NotReady),
    /// Something else came first; it runs still.
    Interrupted(Process),
}

impl Agent {
    /// Launches an engine and says how far it is, until it serves or something comes in between.
    pub(super) async fn begin(&mut self, argv: Vec<OsString>, interrupted: impl Future<Output = ()>) -> Begun {
        let kind = Kind::recognise(&argv);
        let launch = Launch { grace: self.config.stop_grace, echo: self.config.echo.clone(), ..Launch::new(argv) };
        let process = match Process::spawn(&launch, &self.tasks).await {
            Ok(process) => process,
            Err(error) => return Begun::NotLaunched(error),
        };
        tokio::pin!(interrupted);
        let loaded = tokio::select! {
            loaded = self.load(&process, &kind) => loaded,
            () = &mut interrupted => return Begun::Interrupted(process),
        };
        let ready = match loaded {
            Ok(ready) => ready,
            Err(NotReady::Exited { .. }) => return Begun::Ended(process),
            Err(error) => {
                process.stop(self.config.stop_grace).await;
                return Begun::NotReady(error);
            }
        };
        self.gate.open(Client::new(ready.endpoint, kind.api_key.as_deref(), self.tasks.clone()));
        tokio::select! {
            () = self.reachable() => {}
            _exit = process.exited() => return Begun::Ended(process),
            () = &mut interrupted => return Begun::Interrupted(process),
        }
        let service = service(&self.config.service, &kind, &ready);
        self.voice
            .say(|said| {
                said.lifecycle = Lifecycle::Serving;
                said.services = vec![service];
            })
            .await;
        let models: Vec<_> = ready.models.iter().map(|model| model.id.as_str()).collect();
        tracing::info!(models = models.join(" "), endpoint = %ready.endpoint, "serving");
        Begun::Serving(process)
    }

    /// Waits until others can reach this node: what nobody can ask is not ready.
    async fn reachable(&mut self) {
        if self.peer.reach().is_reachable() {
            return;
        }
        self.voice
            .say(|said| said.services.iter_mut().for_each(|service| UNREACHABLE.clone_into(&mut service.loading)))
            .await;
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

    /// Waits for the engine, telling the mesh how far it is.
    async fn load(&mut self, process: &Process, kind: &Kind) -> Result<Ready, NotReady> {
        let (progress, mut seen) = watch::channel(Progress::default());
        let options = self.config.ready.clone();
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
                self.voice.say(|said| said.services = vec![loading]).await;
            }
            tokio::select! {
                ready = &mut ready => return ready,
                Ok(()) = seen.changed() => {}
            }
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
