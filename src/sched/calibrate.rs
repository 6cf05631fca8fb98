//! `otela sched calibrate`: factors from measurements.

use super::{SchedError, measured, percent};
use crate::{
    cli::CalibrateArgs,
    exit::{CommandError, say},
    look::{columns, print},
};
use otela_sched::{
    calibrate::{Fitted, Quality, Table, learn, learn_run, sort},
    catalog::Catalog,
};
use serde_json::json;
use std::{fs, path::Path, process::ExitCode};

pub(super) fn run(args: &CalibrateArgs) -> Result<ExitCode, CommandError> {
    let measured = measured::read(&args.read)?;
    let fit_on = names(&measured.catalog, &args.fit)?;
    let sorted = sort(&measured.catalog, &measured.batches);
    let mut learned = learn(&sorted.cases, |model| fit_on.is_empty() || fit_on.iter().any(|name| name == model));
    for (path, recording, variant) in measured.runs()? {
        match learn_run(recording, variant) {
            Some(fitted) => learned.push(fitted),
            None => say(&format!("otela: {path} has no answers that are long enough to tell anything")),
        }
    }
    let left_out = measured::left_out(&sorted);
    if let Some(path) = &args.out {
        write(path, &learned)?;
    }
    let answer = json!({
        "fitted": learned,
        "left_out": left_out.iter().map(|(reason, rows)| json!({"reason": reason, "rows": rows})).collect::<Vec<_>>(),
    });
    print(args.read.json, &answer, |_| table(&learned, &left_out))
}

fn names(catalog: &Catalog, asked: &[String]) -> Result<Vec<String>, SchedError> {
    asked.iter().map(|name| Ok(catalog.model(name)?.name.clone())).collect()
}

/// Writes what was learned into the file, beside what it has of other accelerators and engines.
fn write(path: &Path, learned: &[Fitted]) -> Result<(), SchedError> {
    let mut table = Table::default();
    if path.exists() {
        table = Table::read(&path.display().to_string(), &measured::text(path)?)?;
    }
    for fitted in learned {
        table.put(fitted.clone());
    }
    fs::write(path, table.text()).map_err(|source| SchedError::Write { path: path.to_owned(), source })
}

fn table(learned: &[Fitted], left_out: &[(String, usize)]) -> String {
    let told = |quality: Option<Quality>| {
        quality.map_or_else(|| "none".to_owned(), |q| format!("{} of {}", percent(q.mean_ratio), q.count))
    };
    let rows = learned.iter().map(|fitted| {
        let f = fitted.factors;
        [
            fitted.accelerator.clone(),
            format!("{} {}", fitted.engine, fitted.version).trim_end().to_owned(),
            told(Some(fitted.fit)),
            told(fitted.held_out),
            percent(f.compute_ratio),
            percent(f.bandwidth_ratio),
            format!("{:.2} ms", f.step_seconds * 1e3),
            format!("{:.1} us", f.sequence_seconds * 1e6),
        ]
    });
    let head = ["ACCELERATOR", "ENGINE", "ERROR", "HELD OUT", "COMPUTE", "BANDWIDTH", "STEP", "SEQUENCE"];
    let mut text = columns(head, rows);
    for (reason, rows) in left_out {
        text += &format!("left out: {rows} {reason}\n");
    }
    text
}
