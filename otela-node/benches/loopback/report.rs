//! The rows of the result, as a table and as JSON.

use crate::namespace::Place;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Value, json};

/// One quantity, and the most it may be if there is a reach.
pub(crate) struct Row {
    pub(crate) what: String,
    /// Or why there is none.
    value: Result<f64, String>,
    unit: &'static str,
    samples: usize,
    at_most: Option<f64>,
}

impl Row {
    pub(crate) fn new(what: &str, value: f64, unit: &'static str) -> Self {
        Self { what: what.to_owned(), value: Ok(value), unit, samples: 1, at_most: None }
    }

    /// What this machine cannot measure.
    pub(crate) fn unmeasured(what: &str, cause: &str) -> Self {
        Self { what: what.to_owned(), value: Err(cause.to_owned()), unit: "", samples: 0, at_most: None }
    }

    pub(crate) fn reach(mut self, at_most: f64) -> Self {
        self.at_most = Some(at_most);
        self
    }

    pub(crate) fn samples(mut self, samples: usize) -> Self {
        self.samples = samples;
        self
    }

    /// What was not measured has not been reached.
    pub(crate) fn is_missed(&self) -> bool {
        match (&self.value, self.at_most) {
            (Err(_), _) => true,
            (Ok(value), Some(most)) => *value > most,
            (Ok(_), None) => false,
        }
    }
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
        let reach = row.at_most.map_or_else(String::new, |most| format!("<= {most:.0} {}", row.unit));
        let verdict = match (row.is_missed(), row.at_most) {
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

pub(crate) fn json(rows: &[Row], place: Place) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "what": row.what,
            "measured": row.value.as_ref().ok(),
            "unit": row.unit,
            "reach": row.at_most,
            "reached": !row.is_missed(),
            "samples": row.samples,
            "not_measured": row.value.as_ref().err(),
        })
    });
    json!({"rows": rows.collect::<Vec<_>>(), "wire": place.name()})
}
