//! The rows of the result, as a table and as JSON.

use crate::measure::{Latencies, Ways};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Value, json};

/// What a row is to come to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
}

/// One line: what was measured each way where there are three, the result, and the reach if there is one.
pub(crate) struct Row {
    what: String,
    /// A quantile, or whatever else the number is.
    of: &'static str,
    ways: Option<Ways<f64>>,
    result: f64,
    /// Of what was measured each way, and of the result.
    units: (&'static str, &'static str),
    samples: u64,
    reach: Option<Reach>,
}

impl Row {
    /// What the mesh adds to the median and to the 99th percentile, in milliseconds, and how much it may add.
    pub(crate) fn latency(what: &str, seen: &Latencies, most: [Option<f64>; 2]) -> Vec<Self> {
        let row = |(of, quantile, most): (_, _, Option<f64>)| {
            let ways = seen.map(|histogram| histogram.value_at_quantile(quantile) as f64 / 1e6);
            Self {
                what: what.to_owned(),
                of,
                result: ways.mesh - ways.direct,
                ways: Some(ways),
                units: ("ms", "ms added"),
                samples: seen.mesh.len(),
                reach: most.map(Reach::AtMost),
            }
        };
        [("p50", 0.5, most[0]), ("p99", 0.99, most[1])].into_iter().map(row).collect()
    }

    /// Requests per second, and the least share of the direct ones, in per cent.
    pub(crate) fn rate(what: &str, rates: &Ways<f64>, least: f64) -> Self {
        Self {
            what: what.to_owned(),
            of: "rate",
            ways: Some(rates.clone()),
            result: rates.mesh / rates.direct * 100.0,
            units: ("/s", "% of direct"),
            samples: 0,
            reach: Some(Reach::AtLeast(least)),
        }
    }

    /// One number.
    pub(crate) fn number(what: &str, of: &'static str, result: f64, unit: &'static str) -> Self {
        Self { what: what.to_owned(), of, ways: None, result, units: ("", unit), samples: 0, reach: None }
    }

    pub(crate) fn at_most(mut self, most: f64) -> Self {
        self.reach = Some(Reach::AtMost(most));
        self
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.what, self.of)
    }

    pub(crate) fn is_reached(&self) -> bool {
        match self.reach {
            None => true,
            Some(Reach::AtMost(most)) => self.result <= most,
            Some(Reach::AtLeast(least)) => self.result >= least,
        }
    }
}

/// With as many digits as say something.
fn number(value: f64, unit: &str) -> String {
    let digits = if value.abs() >= 100.0 { 0 } else { 3 };
    format!("{value:.digits$} {unit}")
}

pub(crate) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "", "direct", "two plain relays", "mesh", "result", "reach", ""]);
    for row in rows {
        let way = |of: fn(&Ways<f64>) -> f64| {
            row.ways.as_ref().map_or_else(String::new, |ways| number(of(ways), row.units.0))
        };
        let reach = match row.reach {
            None => String::new(),
            Some(Reach::AtMost(most)) => format!("<= {most}"),
            Some(Reach::AtLeast(least)) => format!(">= {least}"),
        };
        let verdict = match row.reach {
            None => "",
            Some(_) if row.is_reached() => "reached",
            Some(_) => "MISSED",
        };
        table.add_row([
            row.what.clone(),
            row.of.to_owned(),
            way(|ways| ways.direct),
            way(|ways| ways.relays),
            way(|ways| ways.mesh),
            number(row.result, row.units.1),
            reach,
            verdict.to_owned(),
        ]);
    }
    for column in 2..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(crate) fn json(rows: &[Row]) -> Value {
    let rows = rows.iter().map(|row| {
        let (at_most, at_least) = match row.reach {
            Some(Reach::AtMost(most)) => (Some(most), None),
            Some(Reach::AtLeast(least)) => (None, Some(least)),
            None => (None, None),
        };
        json!({
            "what": row.what,
            "of": row.of,
            "direct": row.ways.as_ref().map(|ways| ways.direct),
            "two_plain_relays": row.ways.as_ref().map(|ways| ways.relays),
            "mesh": row.ways.as_ref().map(|ways| ways.mesh),
            "unit": row.units.0,
            "result": row.result,
            "result_unit": row.units.1,
            "at_most": at_most,
            "at_least": at_least,
            "reached": row.is_reached(),
            "samples": row.samples,
        })
    });
    json!({"rows": rows.collect::<Vec<_>>()})
}
