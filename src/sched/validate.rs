//! `otela sched validate`: the cost model against measurements.

use super::{measured, percent};
use crate::{
    cli::ValidateArgs,
    exit::CommandError,
    look::{columns, print},
};
use otela_sched::calibrate::{
    Basis, Errors, Evidence, Predicted, Row, Table, Timeline, by_subject, errors, predict, sort, speeds,
};
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;

/// Errors of one recorded run's steps.
#[derive(Debug, Serialize)]
struct Run {
    path: String,
    accelerator: String,
    engine: String,
    version: String,
    model: String,
    basis: Basis,
    #[serde(flatten)]
    errors: Errors,
}

pub(super) fn run(args: &ValidateArgs) -> Result<ExitCode, CommandError> {
    let table = match &args.factors {
        None => Table::builtin(),
        Some(path) => {
            Table::read(&path.display().to_string(), &measured::text(path)?).map_err(super::SchedError::from)?
        }
    };
    let measured = measured::read(&args.read)?;
    let mut runs = Vec::new();
    for (path, recording, variant) in measured.runs()? {
        let (factors, basis) = table.factors(variant.accelerator, &recording.engine, &recording.version);
        let timeline = Timeline::new(variant, recording, |_| true);
        if let Some(errors) = Errors::of(timeline.log_errors(&factors).into_iter().map(|error| (error.exp(), 1.0))) {
            runs.push(Run {
                path: path.to_owned(),
                accelerator: variant.accelerator.name.clone(),
                engine: recording.engine.clone(),
                version: recording.version.clone(),
                model: variant.model.name.clone(),
                basis,
                errors,
            });
        }
    }
    let sorted = sort(&measured.catalog, &measured.batches);
    let predicted = predict(&sorted.cases, &table);
    let (rows, totals, left_out) = (by_subject(&predicted), totals(&predicted), measured::left_out(&sorted));
    let answer = json!({
        "batches": rows,
        "totals": totals.iter().map(|(of, errors)| json!({"of": of, "errors": errors})).collect::<Vec<_>>(),
        "runs": runs,
        "left_out": left_out.iter().map(|(reason, rows)| json!({"reason": reason, "rows": rows})).collect::<Vec<_>>(),
    });
    print(args.read.json, &answer, |_| text(&rows, &totals, &runs, &left_out))
}

/// Errors over everything of an engine, and relative speeds.
fn totals(predicted: &[Predicted<'_>]) -> Vec<(String, Errors)> {
    let mut engines: Vec<&str> = predicted.iter().map(|p| p.case.measured.engine.as_str()).collect();
    engines.sort_unstable();
    engines.dedup();
    let mut totals = Vec::new();
    let mut add = |of: String, errors: Option<Errors>| totals.extend(errors.map(|errors| (of, errors)));
    for held_out in [false, true] {
        let of = if held_out { "held out" } else { "fitted" };
        for engine in &engines {
            for (first, what) in [(false, "batches"), (true, "first tokens")] {
                let pick = |p: &Predicted<'_>| {
                    p.held_out == held_out && p.case.measured.engine == *engine && p.case.is_first_token() == first
                };
                add(format!("{engine}, {what}, {of}"), errors(predicted, pick));
            }
        }
        add(format!("relative speed of accelerators, {of}"), speeds(predicted, |p| p.held_out == held_out));
    }
    totals
}

fn text(rows: &[Row], totals: &[(String, Errors)], runs: &[Run], left_out: &[(String, usize)]) -> String {
    let cells = |e: &Errors| {
        [e.count.to_string(), percent(e.mean_ratio), percent(e.median_ratio), percent(e.p90_ratio), percent(e.bias)]
    };
    let line = |place: [String; 4], errors: &Errors| {
        let ([a, b, c, d], [count, mean, median, p90, bias]) = (place, cells(errors));
        [a, b, c, d, count, mean, median, p90, bias]
    };
    let of_row = |row: &Row| {
        let s = &row.subject;
        let what = if s.first_token { "first token" } else { "batch" };
        let what = if s.held_out { format!("{what}, held out") } else { what.to_owned() };
        line([s.accelerator.clone(), s.engine.clone(), s.model.clone(), what], &row.errors)
    };
    let of_run = |run: &Run| {
        let engine = format!("{} {}", run.engine, run.version);
        line([run.accelerator.clone(), engine, run.model.clone(), "steps of a run".to_owned()], &run.errors)
    };
    let of_total =
        |(of, errors): &(String, Errors)| line([of.clone(), String::new(), String::new(), String::new()], errors);
    let head = ["ACCELERATOR", "ENGINE", "MODEL", "WHAT", "COUNT", "MEAN", "MEDIAN", "P90", "BIAS"];
    let mut text = columns(head, rows.iter().map(of_row).chain(runs.iter().map(of_run)));
    if !totals.is_empty() {
        let of = totals
            .iter()
            .map(of_total)
            .map(|[of, _, _, _, count, mean, median, p90, bias]| [of, count, mean, median, p90, bias]);
        text += &format!("\n{}", columns(["ALL", "COUNT", "MEAN", "MEDIAN", "P90", "BIAS"], of));
    }
    for (reason, rows) in left_out {
        text += &format!("left out: {rows} {reason}\n");
    }
    text
}
