//! The rows of the result, as a table and as JSON.

use crate::measure::{Latencies, Ways};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde_json::{Value, json};

/// One line: a quantity each way, what the mesh adds, and the reach if there is one.
pub(crate) struct Row {
    what: String,
    quantile: &'static str,
    ways: Ways<f64>,
    unit: &'static str,
    samples: u64,
    added_max: Option<f64>,
}

impl Row {
    /// The median and the 99th percentile, in milliseconds.
    pub(crate) fn latency(what: &str, seen: &Latencies, reach: Option<(f64, f64)>) -> Vec<Self> {
        let quantiles = [("p50", 0.5, reach.map(|r| r.0)), ("p99", 0.99, reach.map(|r| r.1))];
        let row = |(name, quantile, added_max)| Self {
            what: what.to_owned(),
            quantile: name,
            ways: seen.map(|histogram| histogram.value_at_quantile(quantile) as f64 / 1e6),
            unit: "ms",
            samples: seen.mesh.len(),
            added_max,
        };
        quantiles.into_iter().map(row).collect()
    }

    /// Rates have no reach here: they are for comparing.
    pub(crate) fn rate(what: &str, rates: &Ways<f64>) -> Self {
        Self { what: what.to_owned(), quantile: "rate", ways: rates.clone(), unit: "/s", samples: 0, added_max: None }
    }

    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.what, self.quantile)
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.added_max.is_none_or(|most| self.added() <= most)
    }

    fn added(&self) -> f64 {
        self.ways.mesh - self.ways.direct
    }
}

pub(crate) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "", "direct", "two plain relays", "mesh", "added by the mesh", "reach", ""]);
    for row in rows {
        let number = |value: f64| {
            if row.unit == "ms" { format!("{value:.3} ms") } else { format!("{value:.0} {}", row.unit) }
        };
        let added = if row.unit == "ms" {
            number(row.added())
        } else {
            format!("{:.0} % of direct", row.ways.mesh / row.ways.direct * 100.0)
        };
        let reach = row.added_max.map_or_else(String::new, |most| format!("<= {most} ms"));
        let verdict = match row.added_max {
            None => "",
            Some(_) if row.is_reached() => "reached",
            Some(_) => "MISSED",
        };
        table.add_row([
            row.what.clone(),
            row.quantile.to_owned(),
            number(row.ways.direct),
            number(row.ways.relays),
            number(row.ways.mesh),
            added,
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
        json!({
            "what": row.what,
            "quantile": row.quantile,
            "unit": row.unit,
            "direct": row.ways.direct,
            "two_plain_relays": row.ways.relays,
            "mesh": row.ways.mesh,
            "added": row.added(),
            "reach": row.added_max,
            "reached": row.is_reached(),
            "samples": row.samples,
        })
    });
    json!({"rows": rows.collect::<Vec<_>>()})
}
