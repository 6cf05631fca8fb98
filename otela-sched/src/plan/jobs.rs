//! What idle nodes cannot give is asked of Slurm: each job is thought of as a node of its kind.
//!
//! No model is decided for a job. Its node is idle when it joins, and is given what then lacks.

use super::{
    give::give,
    kinds::JobKind,
    observation::{KindSeen, Observation},
    policy::Policy,
    record::Submit,
    wanted::Wanted,
};
use crate::{
    catalog::{Accelerator, Catalog},
    place::{Gives, Kind},
};
use otela_proto::assignment::OfferedTemplate;

/// What comes of jobs.
pub(super) struct Asked {
    pub(super) submit: Vec<Submit>,
    /// What is to be said of jobs to whoever lacks something.
    pub(super) remedy: Option<String>,
}

/// A kind of jobs that can be reckoned with.
struct Jobs<'a> {
    kind: &'a JobKind,
    accelerator: &'a Accelerator,
    seen: KindSeen,
}

impl Jobs<'_> {
    /// How many more there may be.
    fn room(&self) -> u32 {
        if self.seen.paused.is_some() { 0 } else { self.kind.max.saturating_sub(self.seen.queued) }
    }

    /// What one job's node can do for a model.
    fn rate(&self, of: &Wanted<'_>) -> Option<f64> {
        let allowed = OfferedTemplate { name: String::new(), models: self.kind.models.clone() };
        let capacity = || of.capacity(self.accelerator, self.kind.count);
        allowed.allows(&of.policy.model).then(capacity).flatten().map(|can| can.rate)
    }

    fn cost(&self, policy: &Policy) -> f64 {
        let price = policy.prices.get(&self.accelerator.name).copied();
        f64::from(self.kind.count) * price.unwrap_or(self.accelerator.bandwidth_bytes_per_s / 1e12)
    }

    fn says(&self, submitted: u32) -> Option<String> {
        let Self { kind: JobKind { name, max, .. }, seen, .. } = self;
        let coming = (seen.coming > 0).then(|| format!("{} jobs of kind {name} wait or start", seen.coming));
        let submitted = (submitted > 0).then(|| format!("{submitted} more jobs of kind {name} are submitted"));
        let queued = seen.queued;
        let full =
            (queued >= *max).then(|| format!("no more of kind {name}: {queued} of at most {max} are in the queue"));
        let paused = seen.paused.as_ref().map(|why| format!("no jobs of kind {name} for now: {why}"));
        let all: Vec<_> = [coming, submitted, paused.or(full)].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }
}

/// Which jobs are to be submitted for what is still lacking. Those that are in the queue and whose node is still to join count
/// first and cost nothing; beside them there are never more of a kind than its most.
pub(super) fn ask<'p>(wanted: &[Wanted<'_>], policy: &'p Policy, catalog: &'p Catalog, seen: &Observation) -> Asked {
    let mut asked = Asked { submit: Vec::new(), remedy: None };
    if policy.slurm.jobs.is_empty() || !wanted.iter().any(Wanted::lacks) {
        return asked;
    }
    let Some(queue) = &seen.queue else {
        asked.remedy = Some("Slurm's queue is not known, so nothing is submitted".to_owned());
        return asked;
    };
    let known = |kind: &'p JobKind| {
        // Names were checked when the policy was read.
        let accelerator = catalog.accelerator(&kind.accelerator).ok()?;
        Some(Jobs { kind, accelerator, seen: queue.get(&kind.name).cloned().unwrap_or_default() })
    };
    let jobs: Vec<Jobs<'_>> = policy.slurm.jobs.iter().filter_map(known).collect();
    let things = things(&jobs, policy);
    let kinds: Vec<Kind> = things.iter().map(|thing| thing.as_kind).collect();
    let gives_to = |of: &Wanted<'_>| {
        let can = |(kind, thing): (usize, &Thing<'_>)| Some(Gives { kind, of: vec![thing.jobs.rate(of)?, 1.0] });
        things.iter().enumerate().filter_map(can).collect()
    };
    let given = give(wanted, &kinds, &wanted.iter().map(gives_to).collect::<Vec<_>>());
    let mut says = Vec::new();
    for of in &jobs {
        let new = things.iter().position(|thing| thing.is_new && thing.jobs.kind.name == of.kind.name);
        let by_model: Vec<u32> = given.of.iter().map(|counts| new.map_or(0, |new| counts[new])).collect();
        let count = by_model.iter().sum();
        says.extend(of.says(count));
        if count > 0 {
            let lacking = wanted.iter().zip(&by_model).filter(|(_, count)| **count > 0);
            let lacking: Vec<_> = lacking.map(|(of, _)| of.policy.model.as_str()).collect();
            asked.submit.push(Submit { kind: of.kind.name.clone(), count, why: why(&lacking, of) });
        }
    }
    says.extend(given.trouble.map(|trouble| trouble.to_string()));
    asked.remedy = (!says.is_empty()).then(|| says.join("; "));
    asked
}

/// Jobs that are there anyway, or that would be submitted.
struct Thing<'a> {
    jobs: &'a Jobs<'a>,
    is_new: bool,
    as_kind: Kind,
}

fn things<'a>(jobs: &'a [Jobs<'a>], policy: &Policy) -> Vec<Thing<'a>> {
    let of = jobs.iter().flat_map(|jobs| {
        let thing = |is_new, count, cost| Thing { jobs, is_new, as_kind: Kind { count, cost } };
        [thing(false, jobs.seen.coming, 0.0), thing(true, jobs.room(), jobs.cost(policy))]
    });
    of.filter(|thing| thing.as_kind.count > 0).collect()
}

fn why(lacking: &[&str], of: &Jobs<'_>) -> String {
    format!(
        "{} would lack what idle nodes and the {} jobs of this kind that are still to join can do; {} of at most {} are in \
         the queue",
        lacking.join(", "),
        of.seen.coming,
        of.seen.queued,
        of.kind.max
    )
}

#[cfg(test)]
mod tests;
