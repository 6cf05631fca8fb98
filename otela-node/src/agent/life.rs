//! An engine from its launch until the mesh knows that it serves.

use super::{
    Agent, ServiceConfig,
    health::{Serving, names},
};
use crate::engine::{Kind, Launch, LaunchError, ModelInfo, NotReady, Process, Progress, Ready, Told, wait_ready};
use otela_proto::{
    lifecycle::Lifecycle,
    payload::{ModelCard, Service},
};
use std::{ffi::OsString, pin::Pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};

/// So often a free port is chosen before somebody who always takes it first is believed.
const PORTS_TRIED_MAX: usize = 4;
/// Of an entry, for what others are told of models.
const CARDS_BYTES_MAX: usize = 2_500;
const CARD_FIELD_BYTES: usize = 4;
/// A relay answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is said that nobody can reach a node whose engine is ready.
const UNREACHABLE_SAID_EVERY: Duration = Duration::from_mins(1);
/// When it is said what keeps an engine from being ready, and how often again.
const STILL_LOADING_SAID: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(10));
/// Longer than any allocation, and short enough to be added to a clock.
pub(super) const NEVER: Duration = Duration::from_hours(24 * 365);
/// What such a node shows in the place of its engine's stage.
const UNREACHABLE: &str = "unreachable";

/// What became of an engine that was launched.
#[derive(Debug)]
pub(super) enum Begun {
    /// It serves, and the mesh knows.
    Serving(Process, Box<Serving>),
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
    /// Launches an engine and says how far it is, until it serves or something comes in between. If somebody else takes the
    /// port that was chosen for it, another one will do.
    pub(super) async fn begin(&self, argv: Vec<OsString>, interrupted: impl Future<Output = ()>) -> Begun {
        let kind = Kind::recognise(&argv, self.config.engine);
        tokio::pin!(interrupted);
        let mut tries = 1..=PORTS_TRIED_MAX;
        loop {
            let is_last = tries.next().is_none_or(|nth| nth == PORTS_TRIED_MAX);
            let told = match kind.told(&argv) {
                Ok(told) => told,
                Err(error) => return Begun::NotLaunched(LaunchError::NoPort(error)),
            };
            let tries_again = told.chose_port && !is_last;
            match self.begin_once(told, tries_again, interrupted.as_mut()).await {
                Begun::NotReady(NotReady::AddressInUse { .. }) if tries_again => {
                    tracing::warn!(
                        "another process took the port that was chosen for the engine: choosing another one"
                    );
                }
                begun => return begun,
            }
        }
    }

    async fn begin_once(
        &self,
        told: Told,
        tries_again: bool,
        mut interrupted: Pin<&mut impl Future<Output = ()>>,
    ) -> Begun {
        let kind = Kind::recognise(&told.argv, self.config.engine).listening_at(&told);
        let launch = Launch {
            grace: self.config.stop_grace,
            echo: self.config.echo.clone(),
            environment: told.environment,
            patterns: Arc::clone(&self.config.fatal),
            ..Launch::new(told.argv)
        };
        let process = match Process::spawn(&launch, &self.tasks).await {
            Ok(process) => process,
            Err(error) => return Begun::NotLaunched(error),
        };
        self.operations.shows(process.output().clone());
        self.started(&process, &launch);
        let loaded = tokio::select! {
            loaded = self.load(&process, &kind) => loaded,
            () = &mut interrupted => return Begun::Interrupted(process),
        };
        let ready = match loaded {
            Ok(ready) => ready,
            Err(error @ NotReady::AddressInUse { .. }) => {
                // What it has left behind may hold the accelerator.
                process.gone().await;
                if !tries_again {
                    self.post_mortem(&process, &error.to_string()).await;
                }
                return Begun::NotReady(error);
            }
            Err(NotReady::Exited { .. }) => return Begun::Ended(process),
            Err(error) => {
                self.post_mortem(&process, &error.to_string()).await;
                process.stop(self.config.stop_grace).await;
                return Begun::NotReady(error);
            }
        };
        let patience = self.patience(&kind);
        let serving = Serving::new(kind, &ready, patience, self.tasks.clone());
        self.gate.open(serving.open());
        tokio::select! {
            () = self.reachable() => {}
            _exit = process.exited() => return Begun::Ended(process),
            () = &mut interrupted => return Begun::Interrupted(process),
        }
        self.say_serving(serving.kind(), &ready).await;
        Begun::Serving(process, Box::new(serving))
    }

    /// How long an engine may be silent before it is asked.
    pub(super) fn patience(&self, kind: &Kind) -> Duration {
        self.config.patience.hung_after.of(kind.engine).map_or(NEVER, |hung_after| hung_after / 2)
    }

    /// The mesh may send requests.
    pub(super) async fn say_serving(&self, kind: &Kind, ready: &Ready) {
        let service = service(&self.config.service, kind, ready);
        self.voice
            .say(|said| {
                said.lifecycle = Lifecycle::Serving;
                said.services = vec![service];
            })
            .await;
        tracing::info!(models = names(&ready.models), endpoint = %ready.endpoint, "serving");
    }

    /// How far an engine is, which does not serve yet.
    pub(super) async fn say_loading(&self, kind: &Kind, stage: impl ToString) {
        // Its names are known from its arguments: whoever asks for them is told to wait.
        let models = kind.models.iter().map(|id| ModelCard { id: id.clone(), ..ModelCard::default() });
        let loading =
            Service { loading: stage.to_string(), models: models.collect(), ..service_of(&self.config.service, kind) };
        self.voice.say(|said| said.services = vec![loading]).await;
    }

    /// Waits until others can reach this node: what nobody can ask is not ready.
    pub(super) async fn reachable(&self) {
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
    async fn load(&self, process: &Process, kind: &Kind) -> Result<Ready, NotReady> {
        let (progress, mut seen) = watch::channel(Progress::default());
        let options = self.config.ready.clone();
        let ready = wait_ready(process, kind, &options, &progress);
        tokio::pin!(ready);
        let (mut stage, begun) = (None, Instant::now());
        let mut told = tokio::time::interval_at(begun + STILL_LOADING_SAID.0, STILL_LOADING_SAID.1);
        loop {
            let now = seen.borrow_and_update().stage;
            if stage != Some(now) {
                stage = Some(now);
                self.say_loading(kind, now).await;
            }
            tokio::select! {
                ready = &mut ready => return ready,
                Ok(()) = seen.changed() => {}
                _ = told.tick() => {
                    let problem = seen.borrow().problem.clone().unwrap_or_default();
                    tracing::info!("the engine is not ready after {:.0?}: {problem}", begun.elapsed());
                }
            }
        }
    }
}

/// What others are told of an engine's models.
pub(super) fn cards(kind: &Kind, models: &[ModelInfo]) -> Vec<ModelCard> {
    let card = |model: &ModelInfo| ModelCard {
        id: model.id.clone(),
        context_length: model.max_model_len.unwrap_or(0),
        root: model.root.clone().unwrap_or_default(),
        owned_by: model.owned_by.clone().unwrap_or_default(),
        quantization: kind.quantization.clone(),
        dtype: kind.dtype.clone(),
        ..ModelCard::default()
    };
    let mut room = CARDS_BYTES_MAX;
    let fits = |card: &ModelCard| -> bool {
        // Each is a field of a message: what says that it comes, and how long it is, comes besides.
        let bytes = prost::Message::encoded_len(card) + CARD_FIELD_BYTES;
        let fits = bytes <= room;
        room -= if fits { bytes } else { 0 };
        fits
    };
    let cards: Vec<ModelCard> = models.iter().map(card).filter(fits).collect();
    if cards.len() < models.len() {
        tracing::warn!(
            "the engine lists {} models, of which {} fit into this node's entry: others cannot be asked for",
            models.len(),
            cards.len()
        );
    }
    cards
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
    Service {
        engine_version: ready.version.clone().unwrap_or_default(),
        models: cards(kind, &ready.models),
        features: kind.engine.features().iter().map(|feature| (*feature).to_owned()).collect(),
        ..service_of(config, kind)
    }
}
