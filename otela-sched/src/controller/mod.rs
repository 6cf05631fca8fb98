//! The scheduler at work: it looks, plans, and tells idle nodes what to serve, as long as it is its turn.

mod jobs;
mod lease;
mod memory;
mod queue;
mod store;

pub use queue::queue;
pub use store::{Plans, PlansError, read};

use crate::{
    actuator::{Actuator, NotApplied, Slurm},
    catalog::Catalog,
    plan::{Decision, Observation, Plan, Policy, Step, decide},
    view::{Counted, Loads, nodes},
};
use futures::future::{BoxFuture, join_all};
use jobs::Jobs;
use lease::{Lease, Turn};
use memory::Memory;
use otela_node::{
    peer::{Announcement, Peer},
    tasks::Tasks,
    telemetry::{Metrics, chain},
};
use otela_proto::{
    PeerId,
    assignment::{Claim, Directive, Ticket, Work},
    id::{Epoch, Session},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::{Instant, sleep, timeout};

/// Changes come in flocks: what follows the first within this time is looked at together with it.
const TOGETHER: Duration = Duration::from_millis(250);
/// While a claim goes round.
const SETTLING: Duration = Duration::from_millis(500);

/// Asks all ingresses what they have counted: by their names, what each said or why it did not.
pub type Ask =
    Box<dyn Fn() -> BoxFuture<'static, Vec<(String, Result<BTreeMap<String, Counted>, String>)>> + Send + Sync>;

/// What a scheduler works by.
pub struct Settings {
    /// What is wanted.
    pub policy: Policy,
    /// Models and accelerators.
    pub catalog: Catalog,
    /// How often it looks though nothing has changed in the registry.
    pub every: Duration,
    /// Where its plans are kept.
    pub plans: Plans,
    /// How it asks ingresses.
    pub ask: Ask,
    /// What submits the policy's jobs.
    pub slurm: Slurm,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("policy", &self.policy).field("every", &self.every).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: String,
}

/// What a scheduler counts.
#[derive(Debug, Clone, Default)]
struct Counters {
    acts: Gauge,
    generation: Gauge,
    plans: Counter,
    steps: Family<Outcome, Counter>,
    unasked: Counter,
}

struct Controller<A> {
    peer: Peer,
    settings: Settings,
    actuator: A,
    lease: Lease,
    memory: Memory,
    jobs: Jobs,
    loads: Loads,
    counters: Counters,
    started: Instant,
    said: Announcement,
    turn: Option<Turn>,
    /// Which models lacked something when that was last said, and whether any node takes orders.
    lacking: Option<(BTreeSet<String>, bool)>,
}

/// Runs a scheduler until its tasks drain; then it gives up its claim, and what serves goes on serving.
pub async fn run<A: Actuator>(settings: Settings, peer: Peer, actuator: A, tasks: &Tasks, metrics: &Metrics) {
    let counters = Counters::default();
    metrics.register(|r| {
        let c = counters.clone();
        r.register("otela_sched_acts", "Whether this scheduler is the one that acts", c.acts);
        r.register("otela_sched_generation", "The generation under which it acts or would", c.generation);
        r.register("otela_sched_plans", "Plans made", c.plans);
        r.register("otela_sched_steps", "Orders given to nodes, by what came of them", c.steps);
        r.register("otela_sched_ingresses_silent", "Times that an ingress did not tell what it counts", c.unasked);
    });
    let mesh = peer.mesh().to_string();
    let jobs = Jobs::new(settings.slurm.clone(), &settings.policy, mesh, &settings.plans, settings.every);
    jobs.register(metrics);
    let mut controller = Controller {
        jobs,
        lease: Lease::new(peer.id()),
        peer,
        settings,
        actuator,
        memory: Memory::default(),
        loads: Loads::default(),
        counters,
        started: Instant::now(),
        said: Announcement::default(),
        turn: None,
        lacking: None,
    };
    tokio::select! {
        () = controller.work() => {}
        () = tasks.draining() => {}
    }
    controller.claim(None).await;
}

impl<A: Actuator> Controller<A> {
    async fn work(&mut self) {
        self.peer.joined().await;
        // Whoever has a claim has been heard by then.
        sleep(SETTLING).await;
        let mut changes = self.peer.view_changes();
        let mut asked = None;
        loop {
            changes.borrow_and_update();
            if asked.is_none_or(|asked: Instant| asked.elapsed() >= self.settings.every) {
                asked = Some(Instant::now());
                self.ask().await;
            }
            let wait = match self.look().await {
                Turn::Settle(_) => SETTLING,
                Turn::Act(_) | Turn::Watch(_) => self.settings.every,
            };
            // Nobody changes anything for as long as it takes: that is the time to look at loads again.
            let done = tokio::select! {
                _ = timeout(wait, changes.changed()) => None,
                done = self.jobs.done() => Some(done),
            };
            if let Some(done) = done {
                self.jobs.take(done, &self.peer.view(), &mut self.settings.plans);
                continue;
            }
            sleep(TOGETHER).await;
        }
    }

    async fn ask(&mut self) {
        for (ingress, counted) in (self.settings.ask)().await {
            match counted {
                Ok(counted) => self.loads.take(&ingress, self.started.elapsed(), counted),
                Err(why) => {
                    self.counters.unasked.inc();
                    tracing::warn!("the ingress {ingress} does not tell its load: {why}");
                }
            }
        }
    }

    /// Looks whose turn it is, and acts if it is ours.
    async fn look(&mut self) -> Turn {
        let turn = self.lease.look(&self.peer.view(), self.settings.plans.generation());
        if self.turn != Some(turn) {
            self.say_turn(turn).await;
        }
        if let Turn::Act(generation) = turn {
            self.act(generation).await;
        } else {
            self.jobs.rest();
        }
        turn
    }

    async fn say_turn(&mut self, turn: Turn) {
        self.turn = Some(turn);
        self.counters.acts.set(i64::from(matches!(turn, Turn::Act(_))));
        match turn {
            Turn::Act(generation) => {
                self.counters.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
                tracing::info!(generation, "it is this scheduler's turn");
            }
            Turn::Settle(generation) => self.claim(Some(generation)).await,
            Turn::Watch(other) => {
                tracing::info!(scheduler = %other, "another scheduler acts: this one takes over when that is gone");
                self.claim(None).await;
            }
        }
    }

    /// Says in this peer's entry that it acts, or that it does not.
    async fn claim(&mut self, generation: Option<u64>) {
        let plan = self.settings.plans.next() - 1;
        self.said.claim = generation.map(|generation| Claim { generation, plan });
        if let Err(error) = self.peer.announce(self.said.clone()).await {
            tracing::error!(error = chain(&error), "cannot say whether this scheduler acts");
        }
    }

    async fn act(&mut self, generation: u64) {
        let view = self.peer.view();
        let mut seen = nodes(&view, Some(&self.peer.id()));
        self.memory.complete(&mut seen);
        let avoided = self.memory.avoided(&seen, self.settings.policy.retry_after);
        let (queue, is_settled) = self.jobs.seen(&view);
        let observation = Observation { nodes: seen, loads: self.loads.measured(), now_ms: now_ms(), queue };
        let decision = decide(&self.settings.policy, &self.settings.catalog, &observation, &avoided);
        if is_settled {
            self.say_lacks(&decision, observation.nodes.iter().any(|node| !node.templates.is_empty()));
        }
        if decision.steps.is_empty() && decision.submit.is_empty() {
            return;
        }
        let plan = self.plan(generation, decision);
        if let Err(error) = self.settings.plans.keep(&plan) {
            tracing::error!(error = chain(&error), "a plan that cannot be kept is not carried out");
            return;
        }
        self.counters.plans.inc();
        tracing::info!(plan = plan.number, steps = plan.steps.len(), jobs = plan.jobs(), "a new plan");
        self.claim(Some(generation)).await;
        self.carry_out(&plan).await;
        if let Err(error) = self.jobs.submit(&plan.submit, &mut self.settings.plans) {
            tracing::error!(error = chain(&error), "what cannot be kept is not submitted");
        }
    }

    /// Says which models lack something, when that has changed.
    fn say_lacks(&mut self, decision: &Decision, is_followed: bool) {
        let lacking = decision.models.iter().filter(|model| model.lacks.is_some());
        let lacking: BTreeSet<String> = lacking.map(|model| model.model.clone()).collect();
        if self.lacking.as_ref() == Some(&(lacking.clone(), is_followed)) {
            return;
        }
        for model in &decision.models {
            match &model.lacks {
                Some(lacks) => tracing::warn!(model = model.model, "lacks: {lacks}"),
                None => tracing::info!(model = model.model, nodes = model.nodes, "has what it needs"),
            }
        }
        if !is_followed {
            tracing::warn!("no node takes orders of this scheduler: it is named with --scheduler {}", self.peer.id());
        }
        self.lacking = Some((lacking, is_followed));
    }

    fn plan(&self, generation: u64, Decision { models, steps, idle, submit }: Decision) -> Plan {
        Plan {
            number: self.settings.plans.next(),
            generation,
            scheduler: self.peer.id().to_string(),
            mesh: self.peer.mesh().to_string(),
            made_at_ms: now_ms(),
            models,
            steps,
            idle,
            submit,
        }
    }

    async fn carry_out(&mut self, plan: &Plan) {
        let ticket = Ticket { generation: plan.generation, scheduler: self.peer.id(), plan: plan.number };
        let orders: Vec<_> = plan.steps.iter().filter_map(|step| Some((step, order(step, ticket)?))).collect();
        let given = join_all(orders.iter().map(|(_, order)| self.actuator.apply(order))).await;
        for ((step, order), given) in orders.iter().zip(given) {
            self.note(step, order, given);
        }
    }

    fn note(&mut self, step: &Step, order: &Directive, given: Result<(), NotApplied>) {
        let model = step.serve.as_ref().map(|serve| serve.model.clone());
        let (told, number) = (model.as_deref().unwrap_or("nothing"), (order.ticket.generation, order.ticket.plan));
        let outcome = given.as_ref().map_or_else(|not| not.reason().to_owned(), |()| "taken".to_owned());
        self.counters.steps.get_or_create(&Outcome { outcome }).inc();
        match given {
            Ok(()) => {
                tracing::info!(plan = number.1, node = step.node, host = step.host, "is to serve {told}: {}", step.why);
                self.memory.said(order.to, number, model);
            }
            Err(NotApplied::Refused { reason, message }) if reason == "stale_plan" => {
                tracing::warn!(node = step.node, "it has heard of a later scheduler, this one claims anew: {message}");
                self.lease.give_up();
            }
            Err(NotApplied::Refused { message, .. }) => {
                tracing::warn!(node = step.node, host = step.host, "will not serve {told}: {message}");
                if let Some(model) = model {
                    self.memory.failed(order.to, number, model, self.settings.policy.retry_after);
                }
            }
            Err(NotApplied::NotReached(why)) => {
                tracing::warn!(node = step.node, host = step.host, "was not reached and will be told again: {why}");
            }
        }
    }
}

/// Now, in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The order that a step gives.
fn order(step: &Step, ticket: Ticket) -> Option<Directive> {
    let node: PeerId = step.node.parse().ok()?;
    let work = step.serve.as_ref().map(|serve| Work {
        template: serve.template.clone(),
        model: serve.model.clone(),
        tensor_parallel: serve.tensor_parallel,
        data_parallel: serve.data_parallel,
    });
    Some(Directive { to: Session { peer: node, epoch: Epoch(step.epoch) }, ticket, work })
}
