//! Watches over an engine that serves: whether it ends, prints that it is lost, or hangs; and which models it has.
//!
//! Real traffic is the main sign ([`Pulse`]). Whoever doubts asks for one token; an engine that does not make it is taken out of
//! rotation, and comes back with the next token that it makes. One that hangs for long is ended, which is all that helps.

use super::{
    Agent,
    life::{NEVER, cards},
    pulse::{Doubt, Pulse},
    serve::Open,
};
use crate::{
    engine::{Belief, Client, Engine, FatalLine, Kind, ModelInfo, Output, Process, Ready, Watched},
    tasks::Tasks,
    telemetry::Metrics,
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::{Instant, interval_at, sleep};

/// What an engine that hangs shows in the place of its stage.
pub(super) const NOT_ANSWERING: &str = "not answering";

/// An engine that nobody asks anything is asked for a token this often.
const IDLE_ASKED_EVERY: Duration = Duration::from_mins(5);
/// An engine that hangs for so many times the patience with it is ended.
const HANGS_MAX: u32 = 5;
/// Pauses between two questions to one that hangs.
const ASKED_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// A device that is lost shows within this, however much patience there is otherwise.
const NOT_AT_ONCE: Duration = Duration::from_mins(1);
/// The rests of one that makes single tokens and no answers double so often.
const RELAPSES_MAX: u32 = 3;

/// Models named on one line, and characters of each.
const NAMES_MAX: usize = 10;
const NAME_CHARS_MAX: usize = 200;

/// How closely an engine is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// An engine that has requests and makes no token for so long is taken out of rotation.
    pub hung_after: HungAfter,
    /// An engine that prints a fatal fault and still makes a token within this has survived it. Its further lines are not
    /// looked at for as long again: each may be of the same fault.
    pub fatal_within: Duration,
    /// Models and adapters are read again this often.
    pub models_every: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            hung_after: HungAfter::default(),
            fatal_within: Duration::from_secs(10),
            models_every: Duration::from_secs(30),
        }
    }
}

/// How long an engine may have requests and make no token, half of it before it is asked for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HungAfter {
    /// Two minutes; ten for engines that may let a small request wait behind long ones.
    #[default]
    Usual,
    /// So long.
    After(Duration),
    /// For ever.
    Never,
}

impl HungAfter {
    /// Of this engine; `None` for ever.
    pub(super) fn of(self, engine: Engine) -> Option<Duration> {
        match self {
            Self::Usual if engine.batches() => Some(Duration::from_mins(2)),
            Self::Usual => Some(Duration::from_mins(10)),
            Self::After(time) => Some(time),
            Self::Never => None,
        }
    }
}

/// How serving came to its end.
#[derive(Debug)]
pub(super) enum Fate {
    /// The engine has ended by itself.
    Ended,
    /// It has printed that it is lost.
    Fatal(FatalLine),
    /// It has not made a token for long; why it was doubted.
    Hung(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// What is counted of engines' health.
#[derive(Debug, Clone, Default)]
pub(super) struct HealthCounters {
    hung: Counter,
    asked: Family<Outcome, Counter>,
    fatal_lines: Counter,
    survived: Counter,
}

impl HealthCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let counters = Self::default();
        let shown = counters.clone();
        metrics.register(|r| {
            r.register("otela_agent_engine_hung", "Times that an engine was found to hang", shown.hung);
            r.register("otela_agent_engine_asked", "Tokens asked of an engine that was doubted or idle", shown.asked);
            let help = "Lines of engines that told of a fatal fault and were looked into";
            r.register("otela_agent_engine_fatal_lines", help, shown.fatal_lines);
            let help = "Times that an engine printed a fatal fault and went on";
            r.register("otela_agent_engine_survived", help, shown.survived);
        });
        counters
    }
}

/// An engine that serves.
#[derive(Debug, Clone)]
pub(super) struct Serving {
    kind: Kind,
    watched: Watched,
    open: Open,
    models: Vec<ModelInfo>,
}

impl Serving {
    /// An engine of this kind that has become ready, doubted after so long.
    pub(super) fn new(kind: Kind, ready: &Ready, patience: Duration, tasks: Tasks) -> Self {
        let client = Arc::new(Client::new(ready.endpoint, kind.api_key.as_deref(), tasks));
        let watched = Watched::new(ready, &kind);
        let open = Open { client, pulse: Pulse::new(patience) };
        Self { kind, watched, open, models: ready.models.clone() }
    }

    /// What it is.
    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Where it is asked.
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// What the door opens to.
    pub(super) fn open(&self) -> Open {
        self.open.clone()
    }
}

impl Agent {
    /// Watches until the engine is lost in one way or another.
    pub(super) async fn attend(&self, process: &Process, serving: &Serving) -> Fate {
        tokio::select! {
            _exit = process.exited() => Fate::Ended,
            line = self.prints_fatal(process.output(), serving) => Fate::Fatal(line),
            why = self.hangs(serving, Some(HANGS_MAX)) => Fate::Hung(why),
            never = self.read_models_again(serving) => match never {},
            never = self.read_load(serving) => match never {},
        }
    }

    /// Resolves when it has printed that it is lost, and is.
    async fn prints_fatal(&self, output: &Output, serving: &Serving) -> FatalLine {
        loop {
            let line = output.fatal().await;
            self.health.fatal_lines.inc();
            if line.belief == Belief::AtOnce {
                return line;
            }
            let (pulse, then) = (&serving.open.pulse, serving.open.pulse.now());
            let within = self.config.patience.fatal_within;
            let makes_a_token = self.ask(serving, within).await.is_ok();
            // Behind a long prompt or a long queue the token has to wait.
            if !makes_a_token && !pulse.lives(then, self.patience(&serving.kind).min(NOT_AT_ONCE)).await {
                return line;
            }
            self.health.survived.inc();
            tracing::warn!("the engine printed a fatal fault and still makes tokens: {}", line.text);
            sleep(within).await;
            output.survived();
        }
    }

    /// Takes the engine out of rotation whenever it hangs, and back; resolves when it has hung for `hangs_max` times the
    /// patience.
    pub(super) async fn hangs(&self, serving: &Serving, hangs_max: Option<u32>) -> String {
        let Some(hung_after) = self.config.patience.hung_after.of(serving.kind.engine) else {
            return std::future::pending().await;
        };
        let (pulse, patience) = (&serving.open.pulse, hung_after / 2);
        let (mut relapses, mut well) = (0, pulse.now());
        loop {
            let doubt = tokio::select! {
                doubt = pulse.doubted() => Some(doubt),
                () = sleep(IDLE_ASKED_EVERY) => None,
            };
            if doubt.is_none() && pulse.silent_for() < IDLE_ASKED_EVERY {
                continue;
            }
            let then = pulse.now();
            let asked = self.ask(serving, patience).await;
            // Whoever was not silent until now has as long again: a token that is asked for may be refused or have to wait where
            // real requests fill the engine.
            let limit = if matches!(doubt, Some(Doubt::Silent(_))) { Duration::ZERO } else { patience };
            let gave_up = matches!(doubt, Some(Doubt::GivenUp(_)));
            if (asked.is_err() || gave_up) && pulse.lives(then, limit).await {
                pulse.begins_anew();
                sleep(ASKED_AGAIN.0).await;
                continue;
            }
            let why = match (asked, doubt) {
                (Ok(()), Some(doubt)) if gave_up => doubt.to_string(),
                (Ok(()), _) => {
                    pulse.is_well();
                    continue;
                }
                (Err(problem), Some(doubt)) => format!("{doubt}; asked for a token: {problem}"),
                (Err(problem), None) => format!("asked for a token: {problem}"),
            };
            self.take_out(serving, &why).await;
            relapses = if pulse.has_beaten_since(well) { 0 } else { relapses };
            // Whoever makes single tokens and no answers is given longer and longer rests.
            let rest = if gave_up { patience.saturating_mul(1 << relapses.min(RELAPSES_MAX)) } else { ASKED_AGAIN.0 };
            relapses += u32::from(gave_up);
            let limit = hangs_max.map(|most| hung_after.saturating_mul(most).max(rest * 2));
            if !self.recovers(serving, (rest, patience), limit).await {
                return why;
            }
            self.take_back(serving).await;
            well = pulse.now();
        }
    }

    /// Whether it makes a token within `limit`, of itself or for a request that still runs. `rest` is the pause before the first
    /// question.
    async fn recovers(
        &self,
        serving: &Serving,
        (rest, patience): (Duration, Duration),
        limit: Option<Duration>,
    ) -> bool {
        let (pulse, then) = (&serving.open.pulse, serving.open.pulse.now());
        let asks = async {
            let mut pause = rest;
            loop {
                sleep(pause).await;
                if self.ask(serving, patience).await.is_ok() {
                    return true;
                }
                pause = pause.saturating_mul(2).clamp(ASKED_AGAIN.0, ASKED_AGAIN.1);
            }
        };
        tokio::select! {
            recovered = asks => recovered,
            () = pulse.beats_after(then) => true,
            () = sleep(limit.unwrap_or(NEVER)) => false,
        }
    }

    async fn ask(&self, serving: &Serving, within: Duration) -> Result<(), String> {
        let asked = serving.watched.generates(within).await;
        let outcome = if asked.is_ok() { "token" } else { "none" };
        self.health.asked.get_or_create(&Outcome { outcome }).inc();
        asked
    }

    async fn take_out(&self, serving: &Serving, why: &str) {
        self.health.hung.inc();
        tracing::error!(models = names(&serving.models), "the engine is out of rotation: {why}");
        self.gate.close();
        let out = NOT_ANSWERING;
        self.voice.say(|said| said.services.iter_mut().for_each(|service| out.clone_into(&mut service.loading))).await;
    }

    async fn take_back(&self, serving: &Serving) {
        tracing::info!(models = names(&serving.models), "the engine makes tokens again: it is back in rotation");
        serving.open.pulse.begins_anew();
        self.gate.open(serving.open());
        self.voice.say(|said| said.services.iter_mut().for_each(|service| service.loading.clear())).await;
    }

    /// Tells the mesh which models and adapters the engine has, as they change.
    pub(super) async fn read_models_again(&self, serving: &Serving) -> Infallible {
        let mut known = serving.models.clone();
        let every = self.config.patience.models_every;
        let mut due = interval_at(Instant::now() + every, every);
        loop {
            due.tick().await;
            // One that does not answer is the others' business.
            let Ok(now) = serving.watched.models().await else { continue };
            if now == known {
                continue;
            }
            tracing::info!(models = names(&now), before = names(&known), "the engine's models have changed");
            let cards = cards(&serving.kind, &now);
            known = now;
            self.voice
                .say(|said| {
                    if let Some(service) = said.services.first_mut() {
                        service.models = cards;
                    }
                })
                .await;
        }
    }
}

/// The first of them.
pub(super) fn names(models: &[ModelInfo]) -> String {
    let shown = models.iter().take(NAMES_MAX).map(|model| model.id.chars().take(NAME_CHARS_MAX).collect());
    let mut shown: Vec<String> = shown.collect();
    if models.len() > NAMES_MAX {
        shown.push(format!("and {} more", models.len() - NAMES_MAX));
    }
    shown.join(" ")
}
