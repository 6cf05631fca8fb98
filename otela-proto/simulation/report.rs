//! What the benchmarks print: rows of a quantity and its reach, as a table or as JSON; and their command line.

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Value, json};
use std::process::ExitCode;

/// What the command line asks for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Worlds for each row that is a distribution.
    pub(crate) seeds: u64,
    /// Fewer and smaller worlds: to see that it runs.
    pub(crate) is_quick: bool,
    /// Only the parts whose name contains this.
    only: Option<String>,
    is_json: bool,
    is_check: bool,
}

/// How the flags read.
pub(crate) const USAGE: &str = "[--seeds N] [--quick] [--only PART] [--json] [--check]";

impl Options {
    /// Reads the arguments.
    ///
    /// # Errors
    /// The argument that cannot be read, and what can be.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>, seeds: u64) -> Result<Self, String> {
        let mut options = Self { seeds, is_quick: false, only: None, is_json: false, is_check: false };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => (options.is_quick, options.seeds) = (true, options.seeds.min(5)),
                "--json" => options.is_json = true,
                "--check" => options.is_check = true,
                "--only" => options.only = arguments.next(),
                "--seeds" => {
                    let number = arguments.next().and_then(|text| text.parse().ok()).filter(|seeds| *seeds > 0);
                    options.seeds = number.ok_or_else(|| format!("--seeds wants a number above 0; flags: {USAGE}"))?;
                }
                // Cargo's own.
                "--bench" => {}
                other => return Err(format!("{other:?} is not known; flags: {USAGE}")),
            }
        }
        Ok(options)
    }

    /// Whether a part is to run.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| part.contains(only.as_str()))
    }
}

/// One quantity.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    what: String,
    measured: Option<f64>,
    unit: &'static str,
    reach: Option<f64>,
    how: String,
}

impl Row {
    /// A quantity; `None` if what was waited for did not happen. `how` says of what the number is.
    pub(crate) fn new(
        what: impl Into<String>,
        measured: impl Into<Option<f64>>,
        unit: &'static str,
        how: impl Into<String>,
    ) -> Self {
        Self { what: what.into(), measured: measured.into(), unit, reach: None, how: how.into() }
    }

    /// The most that it may be.
    pub(crate) fn at_most(self, reach: f64) -> Self {
        Self { reach: Some(reach), ..self }
    }

    fn is_reached(&self) -> bool {
        self.reach.is_none_or(|most| self.measured.is_some_and(|measured| measured <= most))
    }

    fn verdict(&self) -> &'static str {
        match self.reach {
            None => "",
            Some(_) if self.is_reached() => "reached",
            Some(_) => "MISSED",
        }
    }
}

/// A part of a benchmark: its name, and what measures it.
pub(crate) type Part = (&'static str, fn(&Options) -> Vec<Row>);

/// Prints the rows and decides how the program ends.
pub(crate) fn finish(rows: &[Row], options: &Options) -> ExitCode {
    if options.is_json {
        println!("{}", as_json(rows));
    } else {
        println!("{}", as_table(rows));
    }
    let missed: Vec<_> = rows.iter().filter(|row| !row.is_reached()).collect();
    for row in &missed {
        eprintln!("missed: {}", row.what);
    }
    if options.is_check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn as_table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "measured", "reach", "", "of what"]);
    for row in rows {
        let number = |value: f64| format!("{} {}", rounded(value), row.unit);
        table.add_row([
            row.what.clone(),
            row.measured.map_or_else(|| "did not happen".to_owned(), number),
            row.reach.map_or_else(String::new, |most| format!("<= {}", number(most))),
            row.verdict().to_owned(),
            row.how.clone(),
        ]);
    }
    for column in 1..3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn as_json(rows: &[Row]) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "what": row.what,
            "measured": row.measured,
            "unit": row.unit,
            "reach": row.reach,
            "reached": row.is_reached(),
            "how": row.how,
        })
    });
    json!({"rows": rows.collect::<Vec<_>>()})
}

/// Three digits that count.
fn rounded(value: f64) -> String {
    let decimals = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
