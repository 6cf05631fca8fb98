//! A scenario, simulated.

use super::{
    file::{Part, Policy, Replicas, Scenario, ScenarioError, Served},
    timeline::{Moment, part_seconds, running, timeline},
};
use crate::{
    calibrate::{Basis, Table},
    catalog::{Accelerator, Catalog, Model},
    sim::{
        Factors, StepCosts, Variant,
        serving::{
            Dispatch, LeastLoaded, Limits, Member, Outcome, Random, Role, RoundRobin, Rules, Served as Request, Slo,
            Summary, TwoChoices, Weighted, serve,
        },
    },
};
use serde::Serialize;

/// What a scenario has come to.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One for each model, in the order of the file.
    pub models: Vec<ModelReport>,
}

/// What has come of one model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport {
    /// Its name in the catalog.
    pub model: String,
    /// All in a few numbers.
    pub summary: Summary,
    /// Requests that were longer than any replica's room.
    pub too_long: usize,
    /// Requests that failed with their replica.
    pub failed: usize,
    /// Requests for which nobody was there till the end.
    pub unserved: usize,
    /// Each kind of replica.
    pub replicas: Vec<ReplicaReport>,
    /// How it went over time, in equal parts.
    pub timeline: Vec<Moment>,
    /// Latencies, sorted, in seconds; at most a thousand of them, evenly drawn.
    pub latencies: Vec<f64>,
}

impl ModelReport {
    /// How long a part of the timeline is, in seconds.
    pub fn part_seconds(&self) -> f64 {
        self.timeline.get(1).map_or(0.0, |moment| moment.from)
    }
}

/// Equal replicas of a report.
#[derive(Debug, Clone, Serialize)]
pub struct ReplicaReport {
    /// The accelerator.
    pub accelerator: String,
    /// Over how many.
    pub tp: u32,
    /// How many replicas.
    pub count: u32,
    /// How many of them were lost.
    pub lost: u32,
    /// Of the time in which they were there, the share in which they worked.
    pub busy_ratio: f64,
    /// In each part of the timeline, the sequences that one of them worked on, on average; none where none was there.
    pub running: Vec<Option<f64>>,
    /// What their accelerators drew while they worked, in joules, if the catalog knows it.
    pub energy_joules: Option<f64>,
    /// What the factors of their engine stand on.
    pub basis: Basis,
}

/// A kind of replica with what the catalog knows of it.
struct Group<'a> {
    replicas: &'a Replicas,
    variant: Variant<'a>,
    basis: Basis,
    costs: StepCosts,
    limits: Limits,
}

/// One replica of a scenario: which of its model's groups, and when it is lost.
#[derive(Debug, Clone, Copy)]
struct Unit {
    model: usize,
    group: usize,
    lost: f64,
}

impl Scenario {
    /// Simulates it with what is known of models, accelerators and engines.
    ///
    /// # Errors
    /// [`ScenarioError`]: a name that is not known, a model that does not fit, a workload that cannot be. `file` is what it
    /// calls the scenario.
    pub fn run(&self, file: &str, catalog: &Catalog, table: &Table) -> Result<Report, ScenarioError> {
        let wrong = |what: String| ScenarioError { file: file.to_owned(), what };
        let mut groups = Vec::new();
        for served in &self.models {
            let model = catalog.model(&served.model).map_err(|error| wrong(error.to_string()))?;
            let of = |replicas| group(replicas, model, catalog, table).map_err(wrong);
            groups.push(served.replicas.iter().map(of).collect::<Result<Vec<_>, _>>()?);
        }
        let units = self.units(catalog, &groups).map_err(wrong)?;
        let models = self.models.iter().enumerate().map(|(nth, served)| {
            let mine: Vec<Unit> = units.iter().filter(|unit| unit.model == nth).copied().collect();
            let name = |what: String| wrong(format!("models, {}: {what}", served.model));
            self.model(served, nth, &groups[nth], &mine).map_err(name)
        });
        Ok(Report { models: models.collect::<Result<_, _>>()? })
    }

    /// All replicas, with those that are lost.
    fn units(&self, catalog: &Catalog, groups: &[Vec<Group<'_>>]) -> Result<Vec<Unit>, String> {
        let mut units = Vec::new();
        for (model, groups) in groups.iter().enumerate() {
            for (group, of) in groups.iter().enumerate() {
                let unit = Unit { model, group, lost: f64::INFINITY };
                units.extend((0..of.replicas.count).map(|_| unit));
            }
        }
        let mut losses: Vec<_> = self.losses.iter().collect();
        losses.sort_by(|one, other| one.at.total_cmp(&other.at));
        for loss in losses {
            let accelerator = &catalog.accelerator(&loss.accelerator).map_err(|error| error.to_string())?.name;
            let mut left = loss.count;
            for unit in units.iter_mut().rev() {
                let variant = &groups[unit.model][unit.group].variant;
                if left == 0 || unit.lost < f64::INFINITY || variant.accelerator.name != *accelerator {
                    continue;
                }
                unit.lost = loss.at;
                left = left.saturating_sub(variant.tp());
            }
            if left > 0 {
                let there = loss.count - left;
                return Err(format!("losses: {} {accelerator} cannot be lost, there are {there} then", loss.count));
            }
        }
        Ok(units)
    }

    fn model(&self, served: &Served, nth: usize, groups: &[Group<'_>], units: &[Unit]) -> Result<ModelReport, String> {
        let members: Vec<Member> = units.iter().map(|unit| member(&groups[unit.group], unit.lost)).collect();
        if members.is_empty() {
            return Err("it has no replicas".to_owned());
        }
        // A model's requests do not change with the others.
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(nth as u64);
        let arrivals = served.workload.requests(self.seconds, seed).map_err(|error| error.to_string())?;
        let mut dispatch = dispatch(served.policy, &members, seed);
        let rules = Rules { part_seconds: part_seconds(self.seconds), ..rules(served, groups) };
        let outcome = serve(&members, arrivals, dispatch.as_mut(), rules);
        let slo: Option<Slo> = served.slo.map(Slo::from);
        let end = outcome.served.iter().map(|served| served.last).fold(self.seconds, f64::max);
        let replicas = groups.iter().enumerate();
        Ok(ModelReport {
            model: groups.first().map_or_else(|| served.model.clone(), |group| group.variant.model.name.clone()),
            summary: outcome.summary(slo),
            too_long: outcome.too_long,
            failed: outcome.failed,
            unserved: outcome.unserved,
            replicas: replicas
                .map(|(nth, group)| {
                    report(&Of { nth, group, units, members: &members, outcome: &outcome, end, seconds: self.seconds })
                })
                .collect(),
            timeline: timeline(&outcome, self.seconds),
            latencies: latencies(&outcome),
        })
    }
}

fn group<'a>(
    replicas: &'a Replicas,
    model: &'a Model,
    catalog: &'a Catalog,
    table: &Table,
) -> Result<Group<'a>, String> {
    let accelerator: &Accelerator = catalog.accelerator(&replicas.accelerator).map_err(|error| error.to_string())?;
    let variant = Variant::new(model, accelerator, replicas.tp).map_err(|error| error.to_string())?;
    let (factors, basis): (Factors, Basis) = table.factors(accelerator, &replicas.engine, &replicas.version);
    let usual = Limits::of(&variant).ok_or_else(|| {
        let (model, accelerator) = (&model.name, &accelerator.name);
        format!("{model} does not fit on {} {accelerator}: give more of them with tp", replicas.tp)
    })?;
    let limits = Limits {
        batching: replicas.batching.into(),
        sequences_max: replicas.sequences_max.unwrap_or(usual.sequences_max).max(1),
        step_tokens_max: replicas.step_tokens_max.unwrap_or(usual.step_tokens_max).max(1),
        keeps_prefixes: replicas.keeps_prefixes,
        ..usual
    };
    Ok(Group { replicas, variant, basis, costs: StepCosts::new(&variant, factors), limits })
}

fn member(group: &Group<'_>, lost: f64) -> Member {
    Member {
        costs: group.costs,
        limits: group.limits,
        role: match group.replicas.role {
            Part::Whole => Role::Whole,
            Part::Prefill => Role::Prefill,
            Part::Decode => Role::Decode,
        },
        from: group.replicas.from,
        drains: group.replicas.drains.unwrap_or(f64::INFINITY),
        lost,
    }
}

fn dispatch(policy: Policy, members: &[Member], seed: u64) -> Box<dyn Dispatch> {
    match policy {
        Policy::Random => Box::new(Random::new(seed)),
        Policy::RoundRobin => Box::new(RoundRobin::default()),
        Policy::LeastLoaded => Box::new(LeastLoaded),
        Policy::P2c => Box::new(TwoChoices::new(seed)),
        Policy::Weighted => {
            // What each decodes in a second, 32 sequences of a thousand tokens at once.
            let speed = |member: &Member| 1.0 / member.costs.decode_seconds(32.0, 1000.0, 1.0);
            Box::new(Weighted::new(members.iter().map(speed).collect(), seed))
        }
    }
}

/// Keys and values go over the slower of the networks of those that do prompts.
fn rules(served: &Served, groups: &[Group<'_>]) -> Rules {
    let prefill = groups.iter().filter(|group| group.replicas.role == Part::Prefill);
    let per_token = prefill.map(|group| {
        let tp = group.variant.tp();
        group.variant.model.kv_bytes_per_token(tp) / group.variant.accelerator.network_bytes_per_s
    });
    Rules { continues: served.continues, transfer_token_seconds: per_token.fold(0.0, f64::max), ..Rules::default() }
}

/// A group of replicas after a simulation.
struct Of<'a> {
    nth: usize,
    group: &'a Group<'a>,
    units: &'a [Unit],
    members: &'a [Member],
    outcome: &'a Outcome,
    /// When requests no longer came, and when the last one was served.
    seconds: f64,
    end: f64,
}

fn report(of: &Of<'_>) -> ReplicaReport {
    let Of { group, end, .. } = of;
    let mine = || (0..of.units.len()).filter(|at| of.units[*at].group == of.nth);
    let (mut there, mut worked, mut lost) = (0.0, 0.0, 0);
    for at in mine() {
        let member = &of.members[at];
        there += (member.lost.min(*end) - member.from).max(0.0);
        worked += of.outcome.busy_seconds[at];
        lost += u32::from(member.lost < *end);
    }
    let parts = mine().map(|at| (&of.outcome.work_parts[at][..], of.members[at].from, of.members[at].lost));
    let parts: Vec<_> = parts.collect();
    let (tp, accelerator) = (group.variant.tp(), group.variant.accelerator);
    ReplicaReport {
        accelerator: accelerator.name.clone(),
        tp,
        count: group.replicas.count,
        lost,
        busy_ratio: if there > 0.0 { worked / there } else { 0.0 },
        running: running(&parts, of.seconds),
        energy_joules: accelerator.power_w.map(|watts| watts * f64::from(tp) * worked),
        basis: group.basis,
    }
}

fn latencies(outcome: &Outcome) -> Vec<f64> {
    const MOST: usize = 1000;
    let mut all: Vec<f64> = outcome.served.iter().map(Request::latency_seconds).collect();
    all.sort_unstable_by(f64::total_cmp);
    match all.len() {
        0..=MOST => all,
        count => (0..MOST).map(|nth| all[nth * (count - 1) / (MOST - 1)]).collect(),
    }
}
