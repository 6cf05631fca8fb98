//! Slurm jobs of a scheduler: one command at a time, beside everything else that it does.

use super::{
    queue::Queue,
    store::{Plans, PlansError},
};
use crate::{
    actuator::{Batch, Job, Slurm, Submitted},
    plan::{JobKind, KindSeen, Policy, Submit},
    view::job_nodes,
};
use futures::future::BoxFuture;
use otela_node::telemetry::{Metrics, chain};
use otela_proto::registry::View;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::pending,
    time::Duration,
};
use tokio::time::Instant;

const STATES: [&str; 3] = ["pending", "running", "joined"];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindOutcome {
    kind: String,
    outcome: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindState {
    kind: String,
    state: String,
}

/// What is counted of jobs.
#[derive(Debug, Clone, Default)]
struct Counters {
    submitted: Family<KindOutcome, Counter>,
    jobs: Family<KindState, Gauge>,
    unknown: Counter,
}

/// What a command has told.
pub(super) enum Done {
    /// Looked at the queue, from then on.
    Looked(Instant, Result<Vec<Job>, String>),
    /// Submitted some, by their kinds, in this order.
    Submitted(Vec<(String, Submitted)>),
}

/// What is being done.
struct Doing {
    /// Kinds of which jobs are being submitted; none while the queue is looked at.
    submits: BTreeSet<String>,
    done: BoxFuture<'static, Done>,
}

/// The jobs of one scheduler.
pub(super) struct Jobs {
    slurm: Slurm,
    kinds: Vec<JobKind>,
    mesh: String,
    every: Duration,
    queue: Queue,
    /// When the queue was last begun to be looked at.
    looked: Option<Instant>,
    doing: Option<Doing>,
    /// Whether it was said that the queue cannot be read.
    is_lost: bool,
    counters: Counters,
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Jobs {
    pub(super) fn new(slurm: Slurm, policy: &Policy, mesh: String, plans: &Plans, every: Duration) -> Self {
        let kinds = policy.slurm.jobs.clone();
        let queue = Queue::new(&kinds, &mesh, policy.retry_after, plans.unsettled());
        let counters = Counters::default();
        Self { slurm, kinds, mesh, every, queue, looked: None, doing: None, is_lost: false, counters }
    }

    pub(super) fn register(&self, metrics: &Metrics) {
        let c = self.counters.clone();
        metrics.register(|r| {
            let submitted = "Slurm jobs submitted, by what came of it: taken, refused, or unknown";
            r.register("otela_sched_jobs_submitted", submitted, c.submitted);
            r.register("otela_sched_jobs", "Slurm jobs in the queue, by how far they are", c.jobs);
            r.register("otela_sched_queue_unknown", "Times that Slurm's queue could not be read", c.unknown);
        });
    }

    /// What is known of the queue, for who decides; and whether that is all that can be known now. Begins to look at the
    /// queue if it is time to.
    pub(super) fn seen(&mut self, view: &View) -> (Option<BTreeMap<String, KindSeen>>, bool) {
        if self.kinds.is_empty() {
            return (None, true);
        }
        let is_due = self.looked.is_none_or(|looked| looked.elapsed() >= self.every);
        if self.doing.is_none() && is_due {
            self.look();
        }
        let mut seen = self.queue.seen(&job_nodes(view));
        self.count();
        if self.doing.is_some() {
            // Numbers that are just about to change are no ground for more jobs.
            let all = seen.iter_mut().flat_map(BTreeMap::values_mut);
            all.for_each(|of| of.paused = Some("Slurm is being asked".to_owned()));
        }
        (seen, self.doing.is_none())
    }

    fn look(&mut self) {
        let begun = Instant::now();
        self.looked = Some(begun);
        let looked = self.slurm.clone().queue(self.queue.names());
        let done = Box::pin(async move { Done::Looked(begun, looked.await) });
        self.doing = Some(Doing { submits: BTreeSet::new(), done });
    }

    /// Begins to submit what was planned.
    pub(super) fn submit(&mut self, submit: &[Submit], plans: &mut Plans) -> Result<(), PlansError> {
        let of = |submit: &Submit| {
            let kind = self.kinds.iter().find(|kind| kind.name == submit.kind)?;
            let (name, options) = (kind.job_name(&self.mesh), kind.options.clone());
            let batch = Batch { name, options, script: kind.script.clone() };
            Some(std::iter::repeat_n((kind.name.clone(), batch), submit.count as usize))
        };
        let batches: Vec<_> = submit.iter().filter_map(of).flatten().collect();
        if batches.is_empty() || self.doing.is_some() {
            return Ok(());
        }
        let submits: BTreeSet<String> = batches.iter().map(|(kind, _)| kind.clone()).collect();
        // Whoever comes after a process that ended here is to know of it.
        plans.unsettle(self.queue.unsettled().union(&submits).cloned().collect())?;
        let done = Box::pin(all(self.slurm.clone(), batches));
        self.doing = Some(Doing { submits, done });
        Ok(())
    }

    /// Waits for the command that runs; for ever, if none does.
    pub(super) async fn done(&mut self) -> Done {
        match &mut self.doing {
            None => pending().await,
            Some(doing) => {
                let done = (&mut doing.done).await;
                self.doing = None;
                done
            }
        }
    }

    /// Takes what a command has told.
    pub(super) fn take(&mut self, done: Done, view: &View, plans: &mut Plans) {
        match done {
            Done::Looked(begun, Ok(shown)) => {
                self.queue.take(&shown, begun, &job_nodes(view));
                if std::mem::take(&mut self.is_lost) {
                    tracing::info!("Slurm's queue is known again");
                }
            }
            Done::Looked(_, Err(why)) => {
                self.counters.unknown.inc();
                self.queue.lose();
                if !std::mem::replace(&mut self.is_lost, true) {
                    tracing::warn!("Slurm's queue is not known, and nothing is submitted until it is: {why}");
                }
            }
            Done::Submitted(all) => all.into_iter().for_each(|(kind, submitted)| self.note(kind, submitted)),
        }
        if let Err(error) = plans.unsettle(self.queue.unsettled()) {
            tracing::error!(error = chain(&error), "cannot keep of which kinds jobs may have been submitted");
        }
        self.count();
    }

    fn note(&mut self, kind: String, submitted: Submitted) {
        let outcome = match submitted {
            Submitted::Taken(job) => {
                tracing::info!(job, kind, "was submitted");
                self.queue.put(&kind, job);
                "taken"
            }
            Submitted::Refused(why) => {
                self.queue.fails(&kind, &why);
                "refused"
            }
            Submitted::Unknown(why) => {
                tracing::warn!(kind, "it is not known whether a job was submitted, the queue will show it: {why}");
                self.queue.unsettle(&kind);
                "unknown"
            }
        };
        self.counters.submitted.get_or_create(&KindOutcome { kind, outcome: outcome.to_owned() }).inc();
    }

    /// It is another scheduler's turn: what runs is stopped, and nothing is known any more.
    pub(super) fn rest(&mut self) {
        if let Some(doing) = self.doing.take() {
            doing.submits.iter().for_each(|kind| self.queue.unsettle(kind));
        }
        self.queue.lose();
        self.looked = None;
    }

    fn count(&self) {
        for (kind, counts) in self.queue.counts() {
            for (state, count) in STATES.iter().zip(counts) {
                let of = KindState { kind: kind.clone(), state: (*state).to_owned() };
                self.counters.jobs.get_or_create(&of).set(count);
            }
        }
    }
}

/// One after another. Of a kind of which one was not taken, no more.
async fn all(slurm: Slurm, batches: Vec<(String, Batch)>) -> Done {
    let (mut all, mut stopped) = (Vec::new(), BTreeSet::new());
    for (kind, batch) in batches {
        if stopped.contains(&kind) {
            continue;
        }
        let submitted = slurm.clone().submit(batch).await;
        if !matches!(submitted, Submitted::Taken(_)) {
            stopped.insert(kind.clone());
        }
        all.push((kind, submitted));
    }
    Done::Submitted(all)
}
