//! `otela sched simulate`: what a scenario comes to.

use super::{SchedError, catalog, percent, picture};
use crate::{
    cli::SimulateArgs,
    exit::CommandError,
    look::{columns, print},
};
use otela_sched::{
    calibrate::{Basis, Table},
    scenario::{ModelReport, Report, Scenario},
    sim::serving::Spread,
};
use serde_json::json;
use std::{fs, path::Path, process::ExitCode};

pub(super) fn run(args: &SimulateArgs) -> Result<ExitCode, CommandError> {
    let catalog = catalog(&args.known)?;
    let table = match &args.factors {
        Some(path) => Table::read(&path.display().to_string(), &text(path)?).map_err(SchedError::from)?,
        None => Table::builtin(),
    };
    let name = args.scenario.display().to_string();
    let scenario = Scenario::read(&name, &text(&args.scenario)?).map_err(SchedError::from)?;
    let report = scenario.run(&name, &catalog, &table).map_err(SchedError::from)?;
    if let Some(path) = &args.plot {
        picture::write(path, &picture::Simulation { report: &report, losses: &scenario.losses })?;
    }
    print(args.json, &json!(report), |_| tables(&report))
}

pub(super) fn text(path: &Path) -> Result<String, SchedError> {
    fs::read_to_string(path).map_err(|source| SchedError::Open { path: path.to_owned(), source })
}

fn tables(report: &Report) -> String {
    let mut text = String::new();
    for model in &report.models {
        text += &of_model(model);
    }
    let is_guess = |basis: Basis| matches!(basis, Basis::OtherAccelerators | Basis::OtherEngines);
    let guessed = report.models.iter().flat_map(|model| &model.replicas).filter(|replicas| is_guess(replicas.basis));
    let mut names: Vec<_> = guessed.map(|replicas| replicas.accelerator.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        text += &format!("nobody has measured {name} with this engine: its factors are those of others\n");
    }
    text
}

fn of_model(model: &ModelReport) -> String {
    let s = &model.summary;
    let mut text = format!(
        "{}: {} requests served in {:.0} s, {:.2} a second, {:.0} tokens a second\n",
        model.model, s.served, s.span_seconds, s.requests_per_second, s.tokens_per_second
    );
    for (count, what) in [
        (model.too_long, "are longer than the room of a replica"),
        (model.failed, "failed with their replica"),
        (model.unserved, "found no replica till the end"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    if s.restarts > 0 {
        text += &format!("{} times keys and values were computed again\n", s.restarts);
    }
    if let (Some(attained), Some(goodput)) = (s.attained_ratio, s.goodput_per_second) {
        text += &format!("{} within the objective, {goodput:.2} a second\n", percent(attained));
    }
    let row = |what: &str, spread: &Spread, scale: f64, unit: &str| {
        let value = |seconds: f64| format!("{:.3} {unit}", seconds * scale);
        [
            what.to_owned(),
            value(spread.mean),
            value(spread.p50),
            value(spread.p95),
            value(spread.p99),
            value(spread.max),
        ]
    };
    let rows = [
        row("to first token", &s.ttft, 1.0, "s"),
        row("between tokens", &s.itl, 1e3, "ms"),
        row("to last token", &s.latency, 1.0, "s"),
    ];
    text += &columns(["", "MEAN", "P50", "P95", "P99", "MAX"], rows);
    let replicas = model.replicas.iter().map(|replicas| {
        [
            replicas.accelerator.clone(),
            replicas.tp.to_string(),
            replicas.count.to_string(),
            replicas.lost.to_string(),
            percent(replicas.busy_ratio),
            replicas.energy_joules.map_or_else(String::new, |joules| format!("{:.2} kWh", joules / 3.6e6)),
        ]
    });
    text += &columns(["ACCELERATOR", "TP", "REPLICAS", "LOST", "BUSY", "ENERGY"], replicas);
    text + "\n"
}
