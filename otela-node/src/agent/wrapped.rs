//! A node that runs its provider's own engine: started again as far as its provider wants that, and left with it.

use super::{Agent, Outcome, health::Fate, life::Begun};
use crate::{
    engine::{NotReady, Process},
    telemetry::chain,
};
use otela_proto::lifecycle::Lifecycle;
use std::{ffi::OsString, time::Duration};
use tokio::time::Instant;

/// Lines of an engine's output that are told when it has ended.
const LAST_LINES: usize = 20;
/// The pause before the first restart; it doubles with each further one.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(2));
/// An engine that has served for so long has been started well: what failed before does not count any more.
const SERVED_WELL: Duration = Duration::from_mins(10);

/// What happens when the engine has ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// The node leaves with it.
    #[default]
    Never,
    /// It is started again, unless it has ended with success; at most so many times in a row.
    OnFailure(u32),
}

/// How one run of an engine ended. Nothing of it is left.
struct Ended {
    outcome: Outcome,
    served_for: Duration,
}

impl Ended {
    fn before_serving(outcome: Outcome) -> Self {
        Self { outcome, served_for: Duration::ZERO }
    }

    /// Why another run may go better, if it may.
    fn failure(&self) -> Option<String> {
        match &self.outcome {
            Outcome::EngineExited { exit, .. } => {
                (!exit.success()).then(|| format!("the engine ended by itself: {exit}"))
            }
            Outcome::EngineLost { cause, .. } => Some(cause.clone()),
            Outcome::NotReady(
                error @ (NotReady::Exited { .. } | NotReady::AddressInUse { .. } | NotReady::Fatal { .. }),
            ) => Some(chain(error)),
            // What took too long once will again; and a command that is not there does not come.
            Outcome::NotReady(NotReady::TimedOut { .. }) | Outcome::NotLaunched(_) | Outcome::Stopped => None,
        }
    }
}

impl Agent {
    /// From launching the engine until nothing of it is left, again and again as the provider wants it.
    pub(super) async fn serve(&self, argv: Vec<OsString>) -> Outcome {
        let mut failures = 0;
        loop {
            let ended = self.run_once(argv.clone()).await;
            let (Some(failure), Restart::OnFailure(most)) = (ended.failure(), self.config.restart) else {
                return self.linger(ended.outcome).await;
            };
            if self.tasks.is_draining() {
                return ended.outcome;
            }
            failures = if ended.served_for >= SERVED_WELL { 1 } else { failures + 1 };
            if failures > most {
                tracing::error!("the engine was started again {most} times in vain, this node gives up: {failure}");
                return self.linger(ended.outcome).await;
            }
            let pause = RESTART_PAUSE.0.saturating_mul(1 << (failures - 1).min(16)).min(RESTART_PAUSE.1);
            tracing::warn!("{failure}; starting it again in {pause:.0?} ({failures} of {most})");
            self.restarts.inc();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.tasks.draining() => return Outcome::Stopped,
            }
            // A session never goes back from Down: what comes is another one.
            self.voice.begin_again().await;
        }
    }

    async fn run_once(&self, argv: Vec<OsString>) -> Ended {
        let tasks = self.tasks.clone();
        let (process, serving) = match self.begin(argv, tasks.draining()).await {
            Begun::Serving(process, serving) => (process, serving),
            Begun::Ended(process) => return Ended::before_serving(self.engine_ended(&process).await),
            Begun::NotLaunched(error) => return Ended::before_serving(Outcome::NotLaunched(error)),
            Begun::NotReady(error) => return Ended::before_serving(self.not_ready(error).await),
            Begun::Interrupted(process) => return Ended::before_serving(self.stop(&process).await),
        };
        let since = Instant::now();
        let outcome = tokio::select! {
            fate = self.attend(&process, &serving) => match fate {
                Fate::Ended => self.engine_ended(&process).await,
                Fate::Fatal(line) => self.engine_lost(&process, format!("the engine printed: {}", line.text)).await,
                Fate::Hung(why) => self.engine_lost(&process, format!("the engine hangs: {why}")).await,
            },
            () = tasks.draining() => self.stop(&process).await,
        };
        Ended { outcome, served_for: since.elapsed() }
    }

    /// The engine never became ready and was stopped.
    async fn not_ready(&self, error: NotReady) -> Outcome {
        self.gate.close();
        self.voice.say(|said| said.lifecycle = Lifecycle::Down).await;
        Outcome::NotReady(error)
    }

    /// The engine has ended by itself: say so at once, and clean up.
    async fn engine_ended(&self, process: &Process) -> Outcome {
        self.gate.close();
        self.voice.say(|said| said.lifecycle = Lifecycle::Down).await;
        let exit = process.gone().await;
        if !exit.success() {
            self.post_mortem(process, &format!("the engine ended by itself: {exit}")).await;
        }
        Outcome::EngineExited { exit, last_lines: process.output().last_lines(LAST_LINES) }
    }

    /// The engine runs and is of no use: say so at once, write down what is known of it, and end it.
    async fn engine_lost(&self, process: &Process, cause: String) -> Outcome {
        tracing::error!("{cause}: ending it");
        self.gate.close();
        self.voice.say(|said| said.lifecycle = Lifecycle::Down).await;
        self.post_mortem(process, &cause).await;
        process.stop(self.config.stop_grace).await;
        Outcome::EngineLost { cause, last_lines: process.output().last_lines(LAST_LINES) }
    }

    /// Down is seen for a while before the node leaves, if its engine has served.
    async fn linger(&self, outcome: Outcome) -> Outcome {
        if matches!(outcome, Outcome::EngineExited { .. } | Outcome::EngineLost { .. }) {
            tokio::select! {
                () = tokio::time::sleep(self.config.linger) => {}
                () = self.tasks.draining() => {}
            }
        }
        outcome
    }

    /// A stop was asked for: no new requests, the running ones finish, then the engine ends.
    pub(super) async fn stop(&self, process: &Process) -> Outcome {
        self.drain(async {
            process.exited().await;
        })
        .await;
        process.stop(self.config.stop_grace).await;
        Outcome::Stopped
    }

    /// No new requests; until the running ones have finished, their time is over, or the engine is `gone`.
    pub(super) async fn drain(&self, gone: impl Future<Output = ()>) {
        self.voice.say(|said| said.draining = true).await;
        self.gate.close();
        tokio::select! {
            biased;
            () = self.gate.idle() => {}
            () = self.ending.over() => tracing::warn!("requests still ran when the time to drain was over"),
            () = gone => {}
        }
    }
}
