//! `otela sched solve` for the cost, for several workloads, and beside what runs already; `judged.rs` has what comes one by
//! one.

use super::{
    SchedError,
    picture::{self, Map, Placed},
};
use crate::{
    exit::CommandError,
    look::{columns, print},
};
use otela_sched::{
    catalog::Catalog,
    place::{
        Effort, NotPlaced, Problem, ProblemFile, Replicas, Stock, USUAL_WORK, changes, least_cost, least_sum, settle,
    },
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path, process::ExitCode};

/// What is asked.
pub(super) struct Asked<'a> {
    pub(super) path: &'a Path,
    pub(super) file: &'a ProblemFile,
    pub(super) problem: &'a Problem<'a>,
    pub(super) catalog: &'a Catalog,
    /// Where a picture of the placement is to be.
    pub(super) plot: Option<&'a Path>,
    pub(super) json: bool,
}

impl Asked<'_> {
    pub(super) fn not_placed(&self, source: impl Into<NotPlaced>) -> SchedError {
        SchedError::NotPlaced { path: self.path.to_owned(), source: source.into() }
    }

    /// Draws a placement, if it is to be drawn.
    pub(super) fn draw(&self, placement: &[Vec<Replicas>], what: &str) -> Result<(), SchedError> {
        let Some(path) = self.plot else { return Ok(()) };
        let models = self.problem.demands.iter().map(|demand| demand.model.name.as_str()).collect();
        picture::write(path, &Map::new(format!("Which model runs where: {what}"), models, &self.placed(placement)))
    }

    /// What is placed of each type, with nodes as the problem tells of them, or else of the usual shape.
    fn placed(&self, placement: &[Vec<Replicas>]) -> Vec<Placed<'_>> {
        let mut all: Vec<Placed<'_>> = Vec::new();
        for (nth, pool) in self.problem.pools.iter().enumerate() {
            let accelerator = pool.accelerator.name.as_str();
            let replicas = placement.iter().enumerate().flat_map(|(model, replicas)| {
                let mine = replicas.iter().filter(move |of| of.pool == nth);
                mine.map(move |of| (model, *of, pool.block))
            });
            if let Some(of) = all.iter_mut().find(|of| of.accelerator == accelerator) {
                of.replicas.extend(replicas);
                continue;
            }
            let mut blocks = self.file.tps.clone();
            blocks.sort_unstable_by(|one, other| other.cmp(one));
            let known = self.nodes(accelerator);
            let usual = if self.file.within_nodes { pool.accelerator.per_node.max(1) } else { pool.count };
            let (nodes, blocks) =
                if known.is_empty() { (shape(pool.count, usual), Vec::new()) } else { (known, blocks) };
            all.push(Placed { accelerator, nodes, blocks, replicas: replicas.collect() });
        }
        all
    }

    /// The nodes that the problem tells of.
    fn nodes(&self, accelerator: &str) -> Vec<u32> {
        let is_it = |name: &str| self.catalog.accelerator(name).is_ok_and(|of| of.name == accelerator);
        let stocks = self.file.accelerators.iter().filter(|(name, _)| is_it(name)).map(|(_, stock)| stock);
        let nodes = stocks.filter_map(|stock| if let Stock::Known(known) = stock { Some(&known.nodes) } else { None });
        nodes.flatten().copied().filter(|size| *size > 0).collect()
    }

    /// A placement's rows: model, replicas, and what it comes to.
    pub(super) fn rows(
        &self,
        placement: &[Vec<Replicas>],
        value_name: &str,
        value: impl Fn(usize) -> String,
    ) -> String {
        let models = self.problem.demands.iter().zip(placement).enumerate();
        let rows = models
            .map(|(nth, (demand, replicas))| [demand.model.name.clone(), told(self.problem, replicas), value(nth)]);
        columns(["MODEL", "REPLICAS", value_name], rows)
    }

    pub(super) fn models(&self, placement: &[Vec<Replicas>]) -> Value {
        let models = self.problem.demands.iter().zip(placement);
        let of = models.map(|(demand, of)| json!({"model": demand.model.name, "replicas": replicas(self.problem, of)}));
        of.collect()
    }
}

/// So many accelerators in nodes of one size.
fn shape(count: u32, node: u32) -> Vec<u32> {
    let full = count.checked_div(node).unwrap_or(0);
    let rest = count - full * node;
    (0..full).map(|_| node).chain((rest > 0).then_some(rest)).collect()
}

/// Replicas by accelerator and size: blocks of several sizes are one to whoever starts them.
fn merged<'p>(problem: &'p Problem<'_>, replicas: &[Replicas]) -> BTreeMap<(&'p str, u32), u32> {
    let mut merged = BTreeMap::new();
    for of in replicas.iter().filter(|of| of.count > 0) {
        let name = problem.pools[of.pool].accelerator.name.as_str();
        *merged.entry((name, of.tp)).or_default() += of.count;
    }
    merged
}

/// The same for people.
pub(super) fn told(problem: &Problem<'_>, replicas: &[Replicas]) -> String {
    let merged = merged(problem, replicas);
    merged.iter().map(|((name, tp), count)| format!("{count} x {name} tp {tp}")).collect::<Vec<_>>().join(", ")
}

/// The same for programs.
pub(super) fn replicas(problem: &Problem<'_>, replicas: &[Replicas]) -> Value {
    let merged = merged(problem, replicas);
    merged.iter().map(|((name, tp), count)| json!({"accelerator": name, "tp": tp, "count": count})).collect()
}

pub(super) fn cost(of: &Asked<'_>) -> Result<ExitCode, CommandError> {
    let prices = of.file.prices(of.problem, of.catalog);
    let within = of.file.done_within.unwrap_or(f64::INFINITY);
    let found = least_cost(of.problem, &prices, within, USUAL_WORK).map_err(|error| of.not_placed(error))?;
    let seconds = otela_sched::place::serve_seconds(of.problem, &found.placement);
    of.draw(&found.placement, &format!("it costs {:.2} an hour", found.cost))?;
    let answer = json!({
        "cost_per_hour": found.cost,
        "bound": found.bound,
        "seconds": seconds,
        "models": of.models(&found.placement),
    });
    print(of.json, &answer, |_| {
        let how = if found.bound < found.cost {
            format!("none costs less than {:.2}", found.bound)
        } else {
            "no placement costs less".to_owned()
        };
        of.rows(&found.placement, "TAKES", |model| format!("{:.3} s", seconds[model]))
            + &format!("cost {:.2} an hour, done within {within} s: {how}\n", found.cost)
    })
}

pub(super) fn several(of: &Asked<'_>) -> Result<ExitCode, CommandError> {
    let name = of.path.display().to_string();
    let workloads = of.file.workloads(&name, of.problem).map_err(SchedError::from)?;
    let problems: Vec<Problem<'_>> = workloads.iter().map(|(_, _, problem)| problem.clone()).collect();
    let weights: Vec<f64> = workloads.iter().map(|(_, weight, _)| *weight).collect();
    let found = least_sum(&problems, &weights, Effort::default()).map_err(|error| of.not_placed(error))?;
    of.draw(&found.placement, &format!("{:.3} s in sum over all workloads", found.sum))?;
    let each = workloads.iter().zip(&found.makespans).zip(&found.alone);
    let each = each.map(|(((name, weight, _), makespan), alone)| (name, weight, makespan, alone));
    let list = each.clone().map(|(name, weight, makespan, alone)| {
        json!({"workload": name, "weight": weight, "makespan": makespan, "alone": alone})
    });
    let answer = json!({
        "sum": found.sum,
        "bound": found.bound,
        "workloads": list.collect::<Vec<_>>(),
        "models": of.models(&found.placement),
    });
    print(of.json, &answer, |_| {
        let rows = of.problem.demands.iter().zip(&found.placement);
        let rows = rows.map(|(demand, replicas)| [demand.model.name.clone(), told(of.problem, replicas)]);
        let of_workload = each.map(|(name, weight, makespan, alone)| {
            [name.clone(), weight.to_string(), format!("{makespan:.3} s"), format!("{alone:.3} s")]
        });
        columns(["MODEL", "REPLICAS"], rows)
            + &columns(["WORKLOAD", "WEIGHT", "TAKES", "ALONE"], of_workload)
            + &format!("in sum {:.3} s; no placement has less than {:.3} s\n", found.sum, found.bound)
    })
}

/// Beside what runs: the change that is allowed, and what others would bring.
pub(super) fn beside(of: &Asked<'_>) -> Result<ExitCode, CommandError> {
    let name = of.path.display().to_string();
    let running = of.file.running(&name, of.catalog).map_err(SchedError::from)?;
    let running =
        settle(of.problem, &running).map_err(|source| SchedError::NoRoom { path: of.path.to_owned(), source })?;
    let may = |model: usize| of.file.may_move.contains(&of.file.models[model].model);
    let found = otela_sched::place::change(of.problem, &running, may).map_err(|error| of.not_placed(error))?;
    of.draw(&found.solution.placement, &format!("all is done in {:.3} s", found.solution.makespan))?;
    let others = changes(of.problem, &running);
    let moved = |moved: &[bool]| {
        let names = of.problem.demands.iter().zip(moved).filter(|(_, moved)| **moved);
        names.map(|(demand, _)| demand.model.name.clone()).collect::<Vec<_>>()
    };
    let list = others.iter().map(|change| {
        json!({
            "placed_anew": moved(&change.moved),
            "makespan": change.solution.makespan,
            "bound": change.solution.bound,
            "reconfiguration_seconds": change.reconfiguration_seconds,
            "models": of.models(&change.solution.placement),
        })
    });
    let answer = json!({
        "makespan": found.solution.makespan,
        "bound": found.solution.bound,
        "placed_anew": moved(&found.moved),
        "reconfiguration_seconds": found.reconfiguration_seconds,
        "seconds": found.solution.seconds,
        "models": of.models(&found.solution.placement),
        "changes": list.collect::<Vec<_>>(),
    });
    print(of.json, &answer, |_| {
        let rows = others.iter().map(|change| {
            let names = moved(&change.moved);
            let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            let (takes, costs) = (change.solution.makespan, change.reconfiguration_seconds);
            [names, format!("{takes:.3} s"), format!("{costs:.1} s")]
        });
        of.rows(&found.solution.placement, "TAKES", |model| {
            let how = if found.moved[model] { "" } else { ", as it was" };
            format!("{:.3} s{how}", found.solution.seconds[model])
        }) + &format!(
            "makespan {:.3} s beside what stays, which takes {:.1} s to change\n\n",
            found.solution.makespan, found.reconfiguration_seconds
        ) + &columns(["PLACED ANEW", "TAKES", "CHANGE"], rows)
    })
}
