//! What is remembered of jobs between two looks at Slurm's queue: which have brought a node, which kinds have failed, and
//! which submissions may have come through though nobody knows.

use crate::{
    actuator::{Job, Slurm},
    plan::{JobKind, KindSeen, Policy},
    view::{JobNode, job_nodes},
};
use otela_proto::registry::View;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// For so long a kind is not used that has failed once; twice as long with each further time.
const PAUSED_FOR: Duration = Duration::from_secs(30);
/// Whether a job was taken shows in the queue by then.
const UNSETTLED_FOR: Duration = Duration::from_mins(1);
/// A node that has joined knows its accelerators sooner.
const CARDS_WITHIN: Duration = Duration::from_secs(30);
/// A job that runs for longer without its node is said.
const JOINS_WITHIN: Duration = Duration::from_mins(30);

/// What Slurm's queue has of the policy's kinds of jobs now; without kinds nobody is asked.
///
/// # Errors
/// Why that is not known, on one line.
pub async fn queue(
    slurm: Slurm,
    policy: &Policy,
    mesh: &str,
    view: &View,
) -> Result<BTreeMap<String, KindSeen>, String> {
    if policy.slurm.jobs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut queue = Queue::new(&policy.slurm.jobs, mesh, policy.retry_after, &BTreeSet::new());
    let (begun, nodes) = (Instant::now(), job_nodes(view));
    queue.take(&slurm.queue(queue.names()).await?, begun, &nodes);
    Ok(queue.seen(&nodes).unwrap_or_default())
}

/// Jobs of the kinds that may be submitted.
#[derive(Debug)]
pub(super) struct Queue {
    /// Their names, and the kinds.
    kinds: BTreeMap<String, String>,
    retry_after: Duration,
    /// By their numbers. Of some of them nobody knows whether they are still there, if not `is_known`.
    jobs: BTreeMap<u64, Known>,
    /// Jobs that the queue shows more than once, by kind: tasks of an array, which somebody else has submitted.
    more: BTreeMap<String, u32>,
    is_known: bool,
    failed: BTreeMap<String, Failing>,
    unsettled: BTreeMap<String, Instant>,
}

#[derive(Debug)]
struct Known {
    kind: String,
    state: Stage,
    running_since: Option<Instant>,
    /// Since when its node has been there, if it ever was.
    joined_since: Option<Instant>,
    node: Option<JobNode>,
    is_said: bool,
}

#[derive(Debug)]
struct Failing {
    times: u32,
    until: Instant,
    why: String,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It is to start, for the first time or again.
    Pending,
    /// It runs.
    Running,
    /// It ends, or is held until somebody looks at it.
    Ending,
}

impl Stage {
    fn of(word: &str) -> Self {
        match word {
            "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_FED" | "RESV_DEL_HOLD" => Self::Pending,
            "RUNNING" | "RESIZING" | "SIGNALING" | "STOPPED" | "SUSPENDED" => Self::Running,
            _ => Self::Ending,
        }
    }
}

impl Queue {
    /// Of which nothing is known yet. Of `unsettled` kinds an earlier scheduler has submitted some, and nobody knows whether.
    pub(super) fn new(kinds: &[JobKind], mesh: &str, retry_after: Duration, unsettled: &BTreeSet<String>) -> Self {
        let until = Instant::now() + UNSETTLED_FOR;
        Self {
            kinds: kinds.iter().map(|kind| (kind.job_name(mesh), kind.name.clone())).collect(),
            retry_after,
            jobs: BTreeMap::new(),
            more: BTreeMap::new(),
            is_known: false,
            failed: BTreeMap::new(),
            unsettled: unsettled.iter().map(|kind| (kind.clone(), until)).collect(),
        }
    }

    /// The names of jobs of any kind.
    pub(super) fn names(&self) -> Vec<String> {
        self.kinds.keys().cloned().collect()
    }

    /// Nobody knows any more what is in the queue.
    pub(super) fn lose(&mut self) {
        self.is_known = false;
    }

    /// Takes what the queue shows, to who began to look at `begun`.
    pub(super) fn take(&mut self, shown: &[Job], begun: Instant, nodes: &BTreeMap<u64, JobNode>) {
        self.meet(nodes);
        self.more.clear();
        let mut there = BTreeSet::new();
        for job in shown {
            let Some(kind) = self.kinds.get(&job.name).cloned() else { continue };
            if !there.insert(job.id) {
                *self.more.entry(kind).or_default() += 1;
                continue;
            }
            self.jobs.entry(job.id).or_insert_with(|| Known::new(kind)).is_at(Stage::of(&job.state));
        }
        self.meet(nodes);
        let (jobs, gone) = std::mem::take(&mut self.jobs).into_iter().partition(|(id, _)| there.contains(id));
        self.jobs = jobs;
        self.end(&gone);
        self.unsettled.retain(|_, until| begun < *until);
        self.is_known = true;
        self.say_late();
    }

    /// Jobs have ended. Those that have never brought a node have failed.
    fn end(&mut self, gone: &BTreeMap<u64, Known>) {
        let mut failed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (id, job) in gone {
            if job.joined_since.is_none() {
                failed.entry(&job.kind).or_default().push(*id);
            }
        }
        for (kind, ids) in failed {
            let ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            self.fails(kind, &format!("of job {ids} no node has joined, and it has ended"));
        }
    }

    /// A kind is not used for a while.
    pub(super) fn fails(&mut self, kind: &str, why: &str) {
        let now = Instant::now();
        let failing = self.failed.entry(kind.to_owned());
        let failing = failing.or_insert(Failing { times: 0, until: now, why: String::new() });
        let most = self.retry_after.max(PAUSED_FOR);
        let paused_for = PAUSED_FOR.saturating_mul(1 << failing.times.min(16)).min(most);
        *failing = Failing { times: failing.times + 1, until: now + paused_for, why: why.to_owned() };
        tracing::warn!(kind, "{why}: jobs of this kind are not submitted for {paused_for:?}");
    }

    /// A job of this kind may be in the queue, or may come there.
    pub(super) fn unsettle(&mut self, kind: &str) {
        self.unsettled.insert(kind.to_owned(), Instant::now() + UNSETTLED_FOR);
    }

    /// Kinds of which nobody knows whether jobs were taken.
    pub(super) fn unsettled(&self) -> BTreeSet<String> {
        self.unsettled.keys().cloned().collect()
    }

    /// A job was put into the queue.
    pub(super) fn put(&mut self, kind: &str, id: u64) {
        self.jobs.entry(id).or_insert_with(|| Known::new(kind.to_owned()));
    }

    /// What `nodes` says of jobs.
    fn meet(&mut self, nodes: &BTreeMap<u64, JobNode>) {
        for (id, job) in &mut self.jobs {
            job.node = nodes.get(id).copied();
            if job.node.is_some() && job.joined_since.is_none() {
                job.joined_since = Some(Instant::now());
                self.failed.remove(&job.kind);
            }
        }
    }

    /// Says which jobs run without a node, each once.
    fn say_late(&mut self) {
        for (id, job) in &mut self.jobs {
            let is_late = job.running_since.is_some_and(|since| since.elapsed() > JOINS_WITHIN);
            if is_late && job.joined_since.is_none() && !job.is_said {
                job.is_said = true;
                let kind = &job.kind;
                tracing::warn!(
                    job = id,
                    kind,
                    "runs for more than {JOINS_WITHIN:?} and its node has not joined; it is waited for: see its output, or end it with scancel"
                );
            }
        }
    }

    /// What is known of each kind, for who decides; nothing, if nothing is known.
    pub(super) fn seen(&mut self, nodes: &BTreeMap<u64, JobNode>) -> Option<BTreeMap<String, KindSeen>> {
        self.meet(nodes);
        self.is_known.then(|| self.kinds.values().map(|kind| (kind.clone(), self.kind(kind))).collect())
    }

    fn kind(&self, kind: &str) -> KindSeen {
        let jobs = || self.jobs.values().filter(|job| job.kind == kind);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let more = self.more.get(kind).copied().unwrap_or_default();
        KindSeen {
            queued: count(jobs().count()).saturating_add(more),
            coming: count(jobs().filter(|job| job.is_coming()).count()),
            paused: self.paused(kind),
        }
    }

    fn paused(&self, kind: &str) -> Option<String> {
        let now = Instant::now();
        if self.unsettled.contains_key(kind) {
            return Some("it is not known whether the last one was taken".to_owned());
        }
        let failed = self.failed.get(kind).filter(|failed| failed.until > now)?;
        Some(format!("{}; tried again in {} s", failed.why, (failed.until - now).as_secs() + 1))
    }

    /// How many jobs of each kind are how far; the last number is of those whose node is there.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&String, [i64; 3])> {
        self.kinds.values().map(|kind| {
            let mut counts = [0; 3];
            for job in self.jobs.values().filter(|job| job.kind == *kind) {
                let is_present = job.node.is_some_and(|node| node.is_present);
                counts[if is_present { 2 } else { usize::from(job.state != Stage::Pending) }] += 1;
            }
            (kind, counts)
        })
    }
}

impl Known {
    fn new(kind: String) -> Self {
        Self { kind, state: Stage::Pending, running_since: None, joined_since: None, node: None, is_said: false }
    }

    fn is_at(&mut self, stage: Stage) {
        self.state = stage;
        self.running_since =
            if stage == Stage::Pending { None } else { self.running_since.or_else(|| Some(Instant::now())) };
    }

    /// Whether its node is still to come. A node that has been there and is gone does not come again, unless its job is put
    /// back into the queue.
    fn is_coming(&self) -> bool {
        let is_present = self.node.is_some_and(|node| node.is_present);
        let has_cards = self.node.is_some_and(|node| node.has_cards);
        let is_new = self.joined_since.is_some_and(|since| since.elapsed() < CARDS_WITHIN);
        match self.state {
            Stage::Pending | Stage::Running if is_present => is_new && !has_cards,
            Stage::Pending => true,
            Stage::Running => self.joined_since.is_none(),
            Stage::Ending => false,
        }
    }
}

#[cfg(test)]
mod tests;
