//! A node that runs its provider's own engine, and leaves with it.

use super::{Agent, Outcome, life::Begun};
use crate::engine::Process;
use otela_proto::lifecycle::Lifecycle;
use std::ffi::OsString;

/// Lines of an engine's output that are told when it has ended.
const LAST_LINES: usize = 20;

impl Agent {
    /// From launching the engine until nothing of it is left.
    pub(super) async fn serve(&mut self, argv: Vec<OsString>) -> Outcome {
        let tasks = self.tasks.clone();
        let process = match self.begin(argv, tasks.draining()).await {
            Begun::Serving(process) => process,
            Begun::Ended(process) => return self.engine_ended(&process).await,
            Begun::NotLaunched(error) => return Outcome::NotLaunched(error),
            Begun::NotReady(error) => return Outcome::NotReady(error),
            Begun::Interrupted(process) => return self.stop(&process).await,
        };
        tokio::select! {
            _exit = process.exited() => self.engine_ended(&process).await,
            () = tasks.draining() => self.stop(&process).await,
        }
    }

    /// The engine has ended by itself: say so at once, clean up, and let it be seen for a while.
    async fn engine_ended(&mut self, process: &Process) -> Outcome {
        self.gate.close();
        self.voice.say(|said| said.lifecycle = Lifecycle::Down).await;
        let exit = process.gone().await;
        let tasks = self.tasks.clone();
        tokio::select! {
            () = tokio::time::sleep(self.config.linger) => {}
            () = tasks.draining() => {}
        }
        Outcome::EngineExited { exit, last_lines: process.output().last_lines(LAST_LINES) }
    }

    /// A stop was asked for: no new requests, the running ones finish, then the engine ends.
    pub(super) async fn stop(&mut self, process: &Process) -> Outcome {
        self.voice.say(|said| said.draining = true).await;
        self.gate.close();
        tokio::select! {
            () = self.gate.idle() => {}
            () = self.ending.over() => {
                tracing::warn!("requests still ran when the time to drain was over");
            }
            _exit = process.exited() => {}
        }
        process.stop(self.config.stop_grace).await;
        Outcome::Stopped
    }
}
