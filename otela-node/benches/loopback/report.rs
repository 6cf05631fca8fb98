//! The rows of the result, as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What a quantity is to reach.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// One quantity, and what it is to reach if there is a reach.
pub(crate) struct Row {
    pub(crate) what: String,
    /// Or why there is none.
    value: Result<f64, String>,
    unit: &'static str,
    samples: usize,
    bound: Option<Bound>,
}

impl Row {
    pub(crate) fn new(what: &str, value: f64, unit: &'static str) -> Self {
        Self { what: what.to_owned(), value: Ok(value), unit, samples: 1, bound: None }
    }

    /// What this machine cannot measure.
    pub(crate) fn unmeasured(what: &str, cause: &str) -> Self {
        Self { what: what.to_owned(), value: Err(cause.to_owned()), unit: "", samples: 0, bound: None }
    }

    pub(crate) fn reach(mut self, at_most: f64) -> Self {
        self.bound = Some(Bound::AtMost(at_most));
        self
    }

    #[allow(dead_code, reason = "not every benchmark needs it")]
    pub(crate) fn at_least(mut self, least: f64) -> Self {
        self.bound = Some(Bound::AtLeast(least));
        self
    }

    pub(crate) fn samples(mut self, samples: usize) -> Self {
        self.samples = samples;
        self
    }

    /// What was not measured has not been reached.
    pub(crate) fn is_missed(&self) -> bool {
        match (&self.value, self.bound) {
            (Err(_), _) => true,
            (Ok(value), Some(Bound::AtMost(most))) => *value > most,
            (Ok(value), Some(Bound::AtLeast(least))) => *value < least,
            (Ok(_), None) => false,
        }
    }
}

/// Names the rows that miss their reach; where that is to be checked, they make the program fail.
pub(crate) fn verdict(rows: &[Row], check: bool) -> ExitCode {
    let missed: Vec<_> = rows.iter().filter(|row| row.is_missed()).collect();
    for row in &missed {
        eprintln!("missed: {}", row.what);
    }
    if check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

pub(crate) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "measured", "reach", ""]);
    for row in rows {
        let value = match &row.value {
            Ok(value) => format!("{value:.1} {}", row.unit),
            Err(cause) => format!("not measured: {cause}"),
        };
        let reach = match row.bound {
            Some(Bound::AtMost(most)) => format!("<= {most} {}", row.unit),
            Some(Bound::AtLeast(least)) => format!(">= {least} {}", row.unit),
            None => String::new(),
        };
        let verdict = match (row.is_missed(), row.bound) {
            (true, _) => "MISSED",
            (false, Some(_)) => "reached",
            (false, None) => "",
        };
        table.add_row([row.what.clone(), value, reach, verdict.to_owned()]);
    }
    for column in 1..3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(crate) fn json(rows: &[Row]) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "what": row.what,
            "measured": row.value.as_ref().ok(),
            "unit": row.unit,
            "at_most": match row.bound { Some(Bound::AtMost(most)) => Some(most), _ => None },
            "at_least": match row.bound { Some(Bound::AtLeast(least)) => Some(least), _ => None },
            "reached": !row.is_missed(),
            "samples": row.samples,
            "not_measured": row.value.as_ref().err(),
        })
    });
    json!({"rows": rows.collect::<Vec<_>>()})
}
