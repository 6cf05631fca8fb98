//! The rows of a benchmark of this crate, as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::json;
use std::process::ExitCode;

/// What a row is to come to.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "each benchmark has rows of one kind")]
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
}

/// One number.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) reach: Option<Reach>,
}

impl Row {
    fn is_reached(&self) -> bool {
        match self.reach {
            None => true,
            Some(Reach::AtMost(most)) => self.value <= most,
            Some(Reach::AtLeast(least)) => self.value >= least,
        }
    }

    fn reach(&self) -> String {
        match self.reach {
            None => String::new(),
            Some(Reach::AtMost(most)) => format!("<= {most}"),
            Some(Reach::AtLeast(least)) => format!(">= {least}"),
        }
    }
}

/// Prints the rows, with `--json` for programs; with `--check` it fails if one is not reached, and names it.
pub(crate) fn report(rows: &[Row]) -> ExitCode {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--json") {
        let of = |row: &Row| json!({"what": row.what, "value": row.value, "unit": row.unit, "reach": row.reach(), "reached": row.is_reached()});
        println!("{:#}", json!(rows.iter().map(of).collect::<Vec<_>>()));
    } else {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["what", "result", "unit", "reach"]);
        for row in rows {
            let digits = if row.value >= 1000.0 { 0 } else { 2 };
            table.add_row([row.what.clone(), format!("{:.digits$}", row.value), row.unit.to_owned(), row.reach()]);
        }
        if let Some(results) = table.column_mut(1) {
            results.set_cell_alignment(CellAlignment::Right);
        }
        println!("{table}");
    }
    let missed: Vec<_> = rows.iter().filter(|row| !row.is_reached()).collect();
    for row in &missed {
        eprintln!("missed: {}", row.what);
    }
    if asked("--check") && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
