//! The file of a problem, TOML or JSON.

use super::{
    problem::{Load, Options, Spare},
    simulated::Requests,
    tokens::Tokens,
};
use crate::text::from_toml;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A problem as a file has it: names in place of what the catalog knows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemFile {
    /// What is to be best.
    #[serde(default)]
    pub objective: Objective,
    /// Accelerators by type.
    pub accelerators: BTreeMap<String, Stock>,
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
    /// What becomes of accelerators of which the least makespan has no need.
    #[serde(default)]
    pub spare: Option<Spare>,
    /// What placements are judged by, where requests come one by one.
    #[serde(default)]
    pub judge: Judge,
    /// Whose factors a simulation takes, in place of vLLM's.
    #[serde(default)]
    pub engine: Option<String>,
    /// What a simulation draws requests from.
    #[serde(default)]
    pub seed: Option<u64>,
    /// For how many seconds requests come, where their mean time is to be least.
    #[serde(default = "five_minutes")]
    pub load_seconds: f64,
    /// In how many seconds all is to be done, where the cost is to be least.
    #[serde(default)]
    pub done_within: Option<f64>,
    /// What runs already.
    #[serde(default)]
    pub running: Vec<RunningReplicas>,
    /// Running models that may be placed anew. The others stay as they are.
    #[serde(default)]
    pub may_move: Vec<String>,
    /// Other workloads that the placement is to be good for, by name.
    #[serde(default)]
    pub also: BTreeMap<String, Workload>,
}

/// What is to be best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// All requests, there at once, done as early as can be.
    #[default]
    Makespan,
    /// The mean time of requests that come one by one.
    Latency,
    /// What the accelerators cost, with all requests done within a time.
    Cost,
    /// What the model that bears the smallest share of its load bears.
    LargestShare,
}

/// What placements are judged by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judge {
    /// A formula, from the cost model without factors and from mean lengths.
    #[default]
    Formula,
    /// The simulator, with an engine's factors and lengths as they are drawn.
    Simulate,
}

/// Accelerators of one type.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Stock {
    /// So many, in nodes of the usual shape.
    Count(u32),
    /// With nodes as they are, or a price.
    Known(KnownStock),
}

/// Accelerators of one type of which more is known than their number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownStock {
    /// How many there are, in nodes of the usual shape.
    #[serde(default)]
    pub count: u32,
    /// In place of that: how many of each node can be used.
    #[serde(default)]
    pub nodes: Vec<u32>,
    /// What one costs, an hour.
    #[serde(default)]
    pub price: Option<f64>,
}

/// Replicas that run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningReplicas {
    /// The model.
    pub model: String,
    /// The accelerator.
    pub accelerator: String,
    /// Accelerators of each.
    pub tp: u32,
    /// How many.
    pub count: u32,
}

/// Another workload.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// How much its makespan counts; that of the file's own workload counts 1.
    #[serde(default = "one")]
    pub weight: f64,
    /// Loads. Models that are not named have none.
    pub models: Vec<ModelLoad>,
}

fn one() -> f64 {
    1.0
}

fn five_minutes() -> f64 {
    300.0
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
    #[serde(default)]
    pub requests: u64,
    /// Requests that come in a second.
    #[serde(default)]
    pub rate: f64,
    /// How unevenly they come, where they are simulated: 1 is a Poisson process.
    #[serde(default)]
    pub burstiness: Option<f64>,
    /// Tokens of each prompt.
    pub prompt: Tokens,
    /// Tokens of each answer.
    pub answer: Tokens,
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
        let loads = problem.models.iter().chain(problem.also.values().flat_map(|also| &also.models));
        for load in loads {
            for tokens in [&load.prompt, &load.answer] {
                tokens.check().map_err(|what| wrong(format!("{}: {what}", load.model)))?;
            }
            if !(load.rate >= 0.0 && load.rate.is_finite()) {
                return Err(wrong(format!("{}: a rate cannot be {}", load.model, load.rate)));
            }
        }
        problem.check().map_err(wrong)?;
        Ok(problem)
    }

    /// What the objective asks for is there, and numbers are what they can be.
    fn check(&self) -> Result<(), String> {
        let is_positive = |number: f64| number > 0.0 && number.is_finite();
        if let Some(named) = self.may_move.iter().find(|named| !self.models.iter().any(|load| load.model == **named)) {
            return Err(format!("may_move names {named}, and no model is called so"));
        }
        for (name, stock) in &self.accelerators {
            if stock.price().is_some_and(|price| !(price >= 0.0 && price.is_finite())) {
                return Err(format!("accelerators.{name}: a price is a number from 0 on"));
            }
        }
        if let Some(name) = self.also.iter().find(|(_, also)| !is_positive(also.weight)).map(|(name, _)| name) {
            return Err(format!("also.{name}: a weight is a number above 0"));
        }
        if self.objective != Objective::Makespan && !(self.running.is_empty() && self.also.is_empty()) {
            return Err("running and also are for the makespan: leave them out, or the objective".to_owned());
        }
        self.check_judge()?;
        if !self.running.is_empty() && !self.also.is_empty() {
            return Err("running and also do not go together: leave one of them out".to_owned());
        }
        match self.objective {
            Objective::Makespan => Ok(()),
            Objective::Latency if !is_positive(self.load_seconds) => {
                Err(format!("load_seconds cannot be {}", self.load_seconds))
            }
            Objective::Latency | Objective::LargestShare if self.models.iter().all(|load| load.rate == 0.0) => {
                Err("no model has a rate: that is what this objective depends on".to_owned())
            }
            Objective::Latency | Objective::LargestShare => Ok(()),
            Objective::Cost => match self.accelerators.iter().find(|(_, stock)| stock.price().is_none()) {
                Some((name, _)) => {
                    Err(format!("accelerators.{name}: give a price, as in {{ count = 8, price = 2.5 }}"))
                }
                None if self.done_within.is_some_and(is_positive) => Ok(()),
                None => Err("done_within is missing: in how many seconds is all to be done?".to_owned()),
            },
        }
    }
}

impl ProblemFile {
    /// Keys that only a simulation or only the makespan has a use for.
    fn check_judge(&self) -> Result<(), String> {
        let comes_one_by_one = matches!(self.objective, Objective::Latency | Objective::LargestShare);
        let of_simulation = [
            ("engine", self.engine.is_some()),
            ("seed", self.seed.is_some()),
            ("burstiness", self.models.iter().any(|load| load.burstiness.is_some())),
        ];
        match of_simulation.into_iter().find(|(_, is_there)| *is_there) {
            _ if self.judge == Judge::Simulate && !comes_one_by_one => {
                return Err("judge = \"simulate\" is for the objectives latency and largest-share".to_owned());
            }
            Some((key, _)) if self.judge == Judge::Formula => {
                return Err(format!("{key} is for a simulation: add judge = \"simulate\", or leave it out"));
            }
            _ => {}
        }
        if let Some(load) =
            self.models.iter().find(|load| load.burstiness.is_some_and(|b| !(b >= 0.0 && b.is_finite())))
        {
            return Err(format!("{}: burstiness is a number from 0 on", load.model));
        }
        if self.spare.is_some() && (self.objective != Objective::Makespan || !self.also.is_empty()) {
            return Err("spare is for the makespan of one workload: leave it out".to_owned());
        }
        Ok(())
    }

    /// How each model's requests come, and how long they are.
    pub fn requests(&self) -> Vec<Requests> {
        let of = |load: &ModelLoad| Requests {
            prompt: load.prompt.length(),
            answer: load.answer.length(),
            burstiness: load.burstiness.unwrap_or(1.0),
        };
        self.models.iter().map(of).collect()
    }
}

impl Stock {
    pub(super) fn price(&self) -> Option<f64> {
        match self {
            Self::Count(_) => None,
            Self::Known(known) => known.price,
        }
    }
}

impl ModelLoad {
    pub(super) fn load(&self) -> Load {
        Load { requests: self.requests, prompt: self.prompt.mean(), answer: self.answer.mean() }
    }
}
