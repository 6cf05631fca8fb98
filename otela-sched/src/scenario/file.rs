//! The file of a scenario.

use crate::{
    sim::serving::{Batching, Slo, Workload},
    text::from_toml,
};
use serde::Deserialize;

/// What is to be simulated.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Requests come for so long. What has come by then is finished.
    pub seconds: f64,
    /// What everything is drawn from: the same seed has the same outcome.
    #[serde(default)]
    pub seed: u64,
    /// The models, each with its requests and its replicas.
    pub models: Vec<Served>,
    /// What happens to accelerators on the way.
    #[serde(default)]
    pub losses: Vec<Loss>,
}

/// One model of a scenario.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// Its name in the catalog.
    pub model: String,
    /// What comes.
    pub workload: Workload,
    /// Who gets what.
    #[serde(default)]
    pub policy: Policy,
    /// What a request may take, if there is an objective.
    #[serde(default)]
    pub slo: Option<Objective>,
    /// Its replicas.
    pub replicas: Vec<Replicas>,
    /// Whether requests of a lost replica go on with another; if not, they fail.
    #[serde(default = "yes")]
    pub continues: bool,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// Balancing policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Any replica.
    #[default]
    Random,
    /// One after another.
    RoundRobin,
    /// By what each can do.
    Weighted,
    /// Who has least to do.
    LeastLoaded,
    /// The less busy of two.
    P2c,
}

/// An objective.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Seconds to the first token.
    pub ttft: f64,
    /// Seconds between two tokens on average.
    pub itl: f64,
}

impl From<Objective> for Slo {
    fn from(objective: Objective) -> Self {
        Self { ttft_seconds: objective.ttft, itl_seconds: objective.itl }
    }
}

/// Equal replicas.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replicas {
    /// The accelerator's name in the catalog.
    pub accelerator: String,
    /// Over how many accelerators each of them is.
    #[serde(default = "one")]
    pub tp: u32,
    /// How many there are.
    #[serde(default = "one")]
    pub count: u32,
    /// The engine, whose factors are taken.
    #[serde(default = "vllm")]
    pub engine: String,
    /// Its version; any, if not given.
    #[serde(default)]
    pub version: String,
    /// From which second on they serve.
    #[serde(default)]
    pub from: f64,
    /// From which second on they are given nothing new.
    #[serde(default)]
    pub drains: Option<f64>,
    /// `whole`, `prefill` or `decode`: what of requests they do.
    #[serde(default)]
    pub role: Part,
    /// Sequences at once.
    #[serde(default)]
    pub sequences_max: Option<u32>,
    /// Tokens in one step.
    #[serde(default)]
    pub step_tokens_max: Option<u32>,
    /// `chunked` or `whole-prompts`.
    #[serde(default)]
    pub batching: Steps,
    /// Whether heads that prompts share are kept.
    #[serde(default = "yes")]
    pub keeps_prefixes: bool,
}

fn vllm() -> String {
    "vLLM".to_owned()
}

/// What of requests a replica does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// All.
    #[default]
    Whole,
    /// Prompts.
    Prefill,
    /// Answers.
    Decode,
}

/// How prompts and decoding sequences share steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steps {
    /// Parts of prompts beside those who decode.
    #[default]
    Chunked,
    /// Whole prompts first.
    WholePrompts,
}

impl From<Steps> for Batching {
    fn from(steps: Steps) -> Self {
        match steps {
            Steps::Chunked => Self::Chunked,
            Steps::WholePrompts => Self::WholePrompts,
        }
    }
}

/// Accelerators that are lost, with all replicas on them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// In which second.
    pub at: f64,
    /// The accelerator's name in the catalog.
    pub accelerator: String,
    /// How many. A replica that has but one of them is lost whole; the last ones in the file are lost first.
    pub count: u32,
}

/// A scenario that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct ScenarioError {
    /// The file.
    pub file: String,
    /// What is wrong with it, on one line.
    pub what: String,
}

impl Scenario {
    /// Reads `text` of the file called `file`.
    ///
    /// # Errors
    /// [`ScenarioError`] with the line.
    pub fn read(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let wrong = |what: String| ScenarioError { file: file.to_owned(), what };
        let scenario: Self = from_toml(text).map_err(wrong)?;
        if !(scenario.seconds > 0.0 && scenario.seconds.is_finite()) {
            return Err(wrong(format!("seconds cannot be {}: say for how long requests come", scenario.seconds)));
        }
        if scenario.models.is_empty() {
            return Err(wrong("it has no models: [[models]] with a model, a workload and replicas".to_owned()));
        }
        Ok(scenario)
    }
}
