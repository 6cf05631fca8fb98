//! The file of a problem, TOML or JSON.

use super::problem::{Demand, Load, Options, Pool, Problem};
use crate::{catalog::Catalog, text::from_toml};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A problem as a file has it: names in place of what the catalog knows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemFile {
    /// Accelerators by type.
    pub accelerators: BTreeMap<String, u32>,
    /// Models and their loads.
    pub models: Vec<ModelLoad>,
    /// Over how many accelerators a replica may be.
    #[serde(default = "usual_tps")]
    pub tps: Vec<u32>,
    /// Most requests of a replica at once.
    #[serde(default)]
    pub batch_max: Option<u64>,
    /// Whether keys and values of all requests must fit at once.
    #[serde(default = "yes")]
    pub holds_kv: bool,
    /// Whether heads must divide evenly.
    #[serde(default = "yes")]
    pub divides: bool,
    /// Whether a replica must fit into one node of the usual shape.
    #[serde(default = "yes")]
    pub within_nodes: bool,
}

fn usual_tps() -> Vec<u32> {
    Options::default().tps
}

fn yes() -> bool {
    true
}

/// A model and its load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelLoad {
    /// Its name in the catalog.
    pub model: String,
    /// Requests at once.
    pub requests: u64,
    /// Tokens of each prompt.
    pub prompt: u32,
    /// Tokens of each answer.
    pub answer: u32,
}

/// A problem that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct ProblemError {
    /// The file.
    pub file: String,
    /// What is wrong with it, on one line.
    pub what: String,
}

impl ProblemFile {
    /// Reads `text` of the file called `file`, which is JSON if its name says so, and TOML otherwise.
    ///
    /// # Errors
    /// [`ProblemError`] with the line.
    pub fn read(file: &str, text: &str) -> Result<Self, ProblemError> {
        let wrong = |what: String| ProblemError { file: file.to_owned(), what };
        let is_json = file.rsplit_once('.').is_some_and(|(_, ending)| ending.eq_ignore_ascii_case("json"));
        let problem: Self = if is_json {
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?
        } else {
            from_toml(text).map_err(wrong)?
        };
        if problem.models.is_empty() || problem.accelerators.is_empty() {
            return Err(wrong("models and accelerators are needed, one of each at least".to_owned()));
        }
        if problem.tps.is_empty() || problem.tps.contains(&0) || problem.batch_max == Some(0) {
            return Err(wrong("tps are numbers from 1 on, and so is batch_max".to_owned()));
        }
        if problem.models.iter().any(|model| model.answer == 0 || model.prompt == 0) {
            return Err(wrong("prompts and answers have one token at least".to_owned()));
        }
        Ok(problem)
    }

    /// The problem with what the catalog knows; `file` is what it calls this.
    ///
    /// # Errors
    /// [`ProblemError`]: a name that is not known.
    pub fn problem<'a>(&self, file: &str, catalog: &'a Catalog) -> Result<Problem<'a>, ProblemError> {
        let wrong = |what: String| ProblemError { file: file.to_owned(), what };
        let demands = self.models.iter().map(|model| {
            let known = catalog.model(&model.model).map_err(|error| wrong(error.to_string()))?;
            let (prompt, answer) = (f64::from(model.prompt), f64::from(model.answer));
            Ok(Demand { model: known, load: Load { requests: model.requests, prompt, answer } })
        });
        let pools = self.accelerators.iter().map(|(name, count)| {
            let accelerator = catalog.accelerator(name).map_err(|error| wrong(error.to_string()))?;
            Ok(Pool { accelerator, count: *count })
        });
        Ok(Problem {
            demands: demands.collect::<Result<_, _>>()?,
            pools: pools.collect::<Result<_, _>>()?,
            options: Options {
                tps: self.tps.clone(),
                batch_max: self.batch_max,
                holds_kv: self.holds_kv,
                divides: self.divides,
                within_nodes: self.within_nodes,
            },
        })
    }
}
