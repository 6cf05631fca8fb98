//! A node that waits for a scheduler to tell it what to serve.
//!
//! What it is told replaces what it serves: requests that run finish first. An engine that ends by itself leaves the node
//! idle, with the reason in its entry, until the next order; to try again is the scheduler's decision, which sees more.

mod orders;
mod templates;

pub use orders::Assignable;
pub(super) use orders::{Orders, Refused};
pub use templates::{LaunchTemplate, TemplatesError};

use super::{
    Agent, Outcome,
    health::{Fate, Serving},
    life::Begun,
};
use crate::{engine::Process, telemetry::chain};
use otela_proto::assignment::{Assigned, AssignedState, Directive, Offer, Work};
use std::sync::Arc;
use tokio::sync::watch;

/// Longest reason in an entry, in characters: the rest is in the node's log.
const REASON_CHARS_MAX: usize = 300;
/// Of an engine that failed, as many of its last lines go to the log.
const LAST_LINES: usize = 20;

/// What ended an assignment.
#[derive(Debug)]
enum Next {
    /// There is another order.
    Order,
    /// The node is asked to stop.
    Stop,
    /// The engine did not start, or has ended.
    Failed(String),
}

impl Agent {
    /// Follows orders until the node is asked to stop.
    pub(super) async fn follow(&self, orders: Arc<Orders>) -> Outcome {
        let offered = orders.assignable().templates.iter().map(LaunchTemplate::offered);
        let schedulers = orders.assignable().schedulers.iter().map(|key| key.to_bytes());
        let offer = Offer { templates: offered.collect(), schedulers: schedulers.collect() };
        self.voice.say(|said| said.offer = Some(offer)).await;
        let mut order = orders.follow();
        loop {
            let now = order.borrow_and_update().clone();
            let work = now.as_ref().and_then(|now| now.work.as_ref().map(|work| (now, work)));
            let next = match work {
                None => self.rest(None, &mut order).await,
                Some((directive, work)) => match self.work(&orders, directive, work, &mut order).await {
                    Next::Failed(reason) => {
                        tracing::warn!(model = work.model, "what this node was told to serve has failed: {reason}");
                        let failed = assigned(directive, work, AssignedState::Failed, &reason);
                        self.rest(Some(failed), &mut order).await
                    }
                    next => next,
                },
            };
            if matches!(next, Next::Stop) {
                return Outcome::Stopped;
            }
        }
    }

    /// Serves nothing until there is another order.
    async fn rest(&self, assigned: Option<Assigned>, order: &mut watch::Receiver<Option<Directive>>) -> Next {
        self.voice
            .say(|said| {
                said.assigned = assigned;
                said.services.clear();
            })
            .await;
        let tasks = self.tasks.clone();
        tokio::select! {
            () = changed(order) => Next::Order,
            () = tasks.draining() => Next::Stop,
        }
    }

    /// Runs the engine of one order.
    async fn work(
        &self,
        orders: &Orders,
        directive: &Directive,
        work: &Work,
        order: &mut watch::Receiver<Option<Directive>>,
    ) -> Next {
        // It was checked when the order was taken.
        let Some(template) = orders.template(&work.template) else { return Next::Failed("no such template".into()) };
        let argv = match template.command(work) {
            Ok(argv) => argv,
            Err(error) => return Next::Failed(format!("no free port: {error}")),
        };
        tracing::info!(model = work.model, template = work.template, plan = directive.ticket.plan, "told to serve");
        let starting = assigned(directive, work, AssignedState::Starting, "");
        self.voice.say(|said| said.assigned = Some(starting)).await;
        let tasks = self.tasks.clone();
        let interrupted = async {
            tokio::select! {
                () = other_work(order, work) => {}
                () = tasks.draining() => {}
            }
        };
        let (process, serving) = match self.begin(argv, interrupted).await {
            Begun::Serving(process, serving) => (process, serving),
            Begun::Ended(process) => return self.failed(&process).await,
            Begun::NotLaunched(error) => return Next::Failed(chain(&error)),
            Begun::NotReady(error) => return Next::Failed(chain(&error)),
            Begun::Interrupted(process) => return self.make_room(&process).await,
        };
        self.serving(directive, work, (&process, &serving), order).await
    }

    /// From serving to whatever comes next.
    async fn serving(
        &self,
        directive: &Directive,
        work: &Work,
        (process, serving): (&Process, &Serving),
        order: &mut watch::Receiver<Option<Directive>>,
    ) -> Next {
        let tasks = self.tasks.clone();
        let mut said = directive.clone();
        let attended = self.attend(process, serving);
        tokio::pin!(attended);
        loop {
            let serving = assigned(&said, work, AssignedState::Serving, "");
            self.voice.say(|said| said.assigned = Some(serving)).await;
            tokio::select! {
                fate = &mut attended => return match fate {
                    Fate::Ended => self.failed(process).await,
                    Fate::Fatal(line) => self.lost(process, format!("the engine printed: {}", line.text)).await,
                    Fate::Hung(why) => self.lost(process, format!("the engine hangs: {why}")).await,
                },
                () = tasks.draining() => {
                    self.stop(process).await;
                    return Next::Stop;
                }
                () = changed(order) => match order.borrow_and_update().clone() {
                    // A later plan that leaves it at that.
                    Some(now) if now.work.as_ref() == Some(work) => said = now,
                    _ => {}
                },
            }
            if order.borrow().as_ref().and_then(|now| now.work.as_ref()) != Some(work) {
                return self.make_room(process).await;
            }
        }
    }

    /// The engine has ended by itself.
    async fn failed(&self, process: &Process) -> Next {
        self.gate.close();
        self.voice.say(|said| said.services.clear()).await;
        let exit = process.gone().await;
        if !exit.success() {
            self.post_mortem(process, &format!("the engine ended by itself: {exit}")).await;
        }
        let lines = process.output().last_lines(LAST_LINES);
        for line in &lines {
            tracing::warn!("the engine's last lines: {line}");
        }
        Next::Failed(format!(
            "the engine ended with {exit}: {}",
            lines.last().map_or("it wrote nothing", String::as_str)
        ))
    }

    /// The engine runs and is of no use.
    async fn lost(&self, process: &Process, cause: String) -> Next {
        self.gate.close();
        self.voice.say(|said| said.services.clear()).await;
        self.post_mortem(process, &cause).await;
        process.stop(self.config.stop_grace).await;
        Next::Failed(cause)
    }

    /// Ends the engine for another order, or for good: whoever is told to stop meanwhile still finishes what runs.
    async fn make_room(&self, process: &Process) -> Next {
        if self.tasks.is_draining() {
            self.stop(process).await;
            return Next::Stop;
        }
        self.voice
            .say(|said| {
                if let Some(assigned) = &mut said.assigned {
                    assigned.state = AssignedState::Stopping.into();
                }
                said.services.clear();
            })
            .await;
        self.gate.close();
        let drain = self.config.drain_within;
        tokio::select! {
            () = self.gate.idle() => {}
            () = tokio::time::sleep(drain) => tracing::warn!("requests still ran when the time to drain was over"),
            _exit = process.exited() => {}
        }
        process.stop(self.config.stop_grace).await;
        Next::Order
    }
}

/// Resolves with the next order; never, if there can be none any more.
async fn changed(order: &mut watch::Receiver<Option<Directive>>) {
    if order.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Resolves when something else than `work` is to be done.
async fn other_work(order: &mut watch::Receiver<Option<Directive>>, work: &Work) {
    let is_other = |now: &Option<Directive>| now.as_ref().and_then(|now| now.work.as_ref()) != Some(work);
    if order.wait_for(is_other).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn assigned(directive: &Directive, work: &Work, state: AssignedState, reason: &str) -> Assigned {
    Assigned {
        scheduler: directive.ticket.scheduler.to_bytes(),
        generation: directive.ticket.generation,
        plan: directive.ticket.plan,
        model: work.model.clone(),
        template: work.template.clone(),
        state: state.into(),
        reason: reason.chars().take(REASON_CHARS_MAX).collect(),
    }
}
