//! Fitted factors as a file: the one that comes with the program, or a user's own.

use super::Errors;
use crate::{catalog::Accelerator, sim::Factors, text::from_toml};
use serde::{Deserialize, Serialize};

/// What a written file begins with.
const HEAD: &str =
    "# How far engines stay behind the roofline; written by `otela sched calibrate`. docs/simulator.md tells what the
# factors mean. Errors are means of absolute ones; held_out is what was not fitted on.
";
const BUILTIN: &str = include_str!("factors.toml");

/// Why a file of factors cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct TableError {
    /// The file.
    pub file: String,
    /// What is wrong with it, on one line.
    pub what: String,
}

/// Factors of one accelerator with one engine, and what they stand on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// The accelerator's name in the catalog.
    pub accelerator: String,
    /// The engine.
    pub engine: String,
    /// The engine's version; empty if it is not known.
    #[serde(default)]
    pub version: String,
    /// Models that they were fitted on.
    pub models: Vec<String>,
    /// How well they do on what they were fitted on.
    pub fit: Quality,
    /// How well they do on what they have not seen, if there was any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Quality>,
    /// The same of times to first token alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_first_tokens: Option<Quality>,
    /// The factors.
    pub factors: Factors,
}

/// How well factors do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Measurements.
    pub count: usize,
    /// Mean absolute error, as a share.
    pub mean_ratio: f64,
}

impl From<Errors> for Quality {
    fn from(errors: Errors) -> Self {
        Self { count: errors.count, mean_ratio: rounded(errors.mean_ratio, 3) }
    }
}

/// What factors stand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measurements of this accelerator with this engine.
    Fitted,
    /// Of this accelerator with another version of the engine.
    OtherVersion,
    /// Of another form of the accelerator with this engine.
    OtherForm,
    /// Medians over other accelerators with this engine.
    OtherAccelerators,
    /// Medians over all that was measured.
    OtherEngines,
}

/// Fitted factors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// One for each accelerator, engine and version.
    #[serde(default)]
    pub fitted: Vec<Fitted>,
}

impl Table {
    /// What comes with the program.
    pub fn builtin() -> Self {
        Self::read("factors.toml", BUILTIN).expect("what is compiled in is read by a test")
    }

    /// Reads `text` of the file called `file`.
    pub fn read(file: &str, text: &str) -> Result<Self, TableError> {
        let wrong = |what: String| TableError { file: file.to_owned(), what };
        let table: Self = from_toml(text).map_err(wrong)?;
        for fitted in &table.fitted {
            let f = fitted.factors;
            let ratios = [f.compute_ratio, f.bandwidth_ratio, f.attention_ratio, f.link_ratio];
            let others = [
                f.regroup_passes,
                f.kv_write_passes,
                f.logit_passes,
                f.layer_seconds,
                f.step_seconds,
                f.sequence_seconds,
                f.all_reduce_seconds,
            ];
            if !ratios.iter().all(|ratio| *ratio > 0.0 && *ratio <= 1.0)
                || !others.iter().all(|o| (0.0..1e3).contains(o))
            {
                let whose = format!("{} with {}", fitted.accelerator, fitted.engine);
                return Err(wrong(format!(
                    "factors of {whose}: ratios of speeds are above 0 and at most 1, others from 0 on"
                )));
            }
        }
        Ok(table)
    }

    /// The file.
    pub fn text(&self) -> String {
        let fitted = toml::to_string(self).expect("a table of texts and numbers can be written");
        format!("{HEAD}\n{fitted}")
    }

    /// Adds factors in place of those of the same accelerator, engine and version, rounded to four digits.
    pub fn put(&mut self, mut fitted: Fitted) {
        fitted.factors = rounded_factors(fitted.factors);
        self.fitted.retain(|old| {
            (&old.accelerator, &old.engine, &old.version) != (&fitted.accelerator, &fitted.engine, &fitted.version)
        });
        self.fitted.push(fitted);
        self.fitted
            .sort_by(|a, b| (&a.accelerator, &a.engine, &a.version).cmp(&(&b.accelerator, &b.engine, &b.version)));
    }

    /// Exactly these.
    pub fn get(&self, accelerator: &str, engine: &str, version: &str) -> Option<&Fitted> {
        self.fitted
            .iter()
            .find(|fitted| fitted.accelerator == accelerator && fitted.is_of(engine) && fitted.version == version)
    }

    /// The best that is known for an accelerator and an engine, and what that stands on. Without any measurement of the
    /// accelerator or another form of it these are medians over others.
    pub fn factors(&self, accelerator: &Accelerator, engine: &str, version: &str) -> (Factors, Basis) {
        if let Some(fitted) = self.get(&accelerator.name, engine, version) {
            return (fitted.factors, Basis::Fitted);
        }
        // The last one has the newest version.
        let any =
            |name: &str| self.fitted.iter().rev().find(|fitted| fitted.accelerator == name && fitted.is_of(engine));
        if let Some(fitted) = any(&accelerator.name) {
            return (fitted.factors, Basis::OtherVersion);
        }
        if let Some(fitted) = accelerator.like.as_deref().and_then(any) {
            return (fitted.factors, Basis::OtherForm);
        }
        match medians(self.fitted.iter().filter(|fitted| fitted.is_of(engine))) {
            Some(factors) => (factors, Basis::OtherAccelerators),
            None => (medians(self.fitted.iter()).unwrap_or(Factors::IDEAL), Basis::OtherEngines),
        }
    }
}

impl Fitted {
    fn is_of(&self, engine: &str) -> bool {
        self.engine.eq_ignore_ascii_case(engine)
    }
}

/// All places of a factor.
const PLACES: [fn(&mut Factors) -> &mut f64; 11] = [
    |f| &mut f.compute_ratio,
    |f| &mut f.bandwidth_ratio,
    |f| &mut f.attention_ratio,
    |f| &mut f.regroup_passes,
    |f| &mut f.kv_write_passes,
    |f| &mut f.logit_passes,
    |f| &mut f.layer_seconds,
    |f| &mut f.step_seconds,
    |f| &mut f.sequence_seconds,
    |f| &mut f.all_reduce_seconds,
    |f| &mut f.link_ratio,
];

fn medians<'a>(fitted: impl Iterator<Item = &'a Fitted>) -> Option<Factors> {
    let mut all: Vec<Factors> = fitted.map(|fitted| fitted.factors).collect();
    let mut medians = *all.first()?;
    for place in PLACES {
        let mut values: Vec<f64> = all.iter_mut().map(|factors| *place(factors)).collect();
        values.sort_by(f64::total_cmp);
        let half = values.len() / 2;
        let even = values.len().is_multiple_of(2);
        *place(&mut medians) = if even { f64::midpoint(values[half - 1], values[half]) } else { values[half] };
    }
    Some(medians)
}

fn rounded_factors(mut factors: Factors) -> Factors {
    for place in PLACES {
        let value = place(&mut factors);
        *value = rounded(*value, 4);
    }
    factors
}

/// To so many digits that count.
fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.*e}", digits - 1).parse().expect("a number is written as one")
}
