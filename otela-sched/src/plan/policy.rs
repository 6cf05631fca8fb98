//! What an operator wants served: a file, TOML.

use super::kinds::SlurmPolicy;
use crate::{
    catalog::{Catalog, Unknown},
    text::from_toml,
};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// What is wanted of a mesh.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Models, the most important first: where not all can be served, these are.
    pub models: Vec<ModelPolicy>,
    /// Of each model's load, how much its replicas shall be able to bear. 1.3 leaves three in ten for what comes suddenly.
    #[serde(default = "some_headroom")]
    pub headroom: f64,
    /// What an accelerator costs, in any unit; of several ways the cheapest is taken. Without prices what counts is how
    /// fast its memory is, since that is what models are slow by.
    #[serde(default)]
    pub prices: BTreeMap<String, f64>,
    /// A node where a model has failed is not told to serve that again for this long.
    #[serde(default = "ten_minutes", with = "seconds")]
    pub retry_after: Duration,
    /// Nodes that end sooner than this are not reckoned with any more, so that their successors are ready in time.
    #[serde(default = "half_an_hour", with = "seconds")]
    pub replace_before_end: Duration,
    /// What may be submitted to Slurm.
    #[serde(default)]
    pub slurm: SlurmPolicy,
}

/// What is wanted of one model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPolicy {
    /// The model, as launch templates and clients name it.
    pub model: String,
    /// The model of the catalog that it is; by its own name, if not given.
    #[serde(default)]
    pub like: Option<String>,
    /// Requests a second that are expected at least. If ingresses measure more, that counts.
    #[serde(default)]
    pub rate: f64,
    /// Tokens of a usual prompt, until ingresses have measured them.
    #[serde(default = "usual_prompt")]
    pub prompt: f64,
    /// Tokens of a usual answer, until ingresses have measured them.
    #[serde(default = "usual_answer")]
    pub answer: f64,
    /// Nodes that serve it at least, whatever the load.
    #[serde(default = "one")]
    pub nodes_min: u32,
}

fn some_headroom() -> f64 {
    1.3
}

fn ten_minutes() -> Duration {
    Duration::from_mins(10)
}

fn half_an_hour() -> Duration {
    Duration::from_mins(30)
}

fn usual_prompt() -> f64 {
    512.0
}

fn usual_answer() -> f64 {
    256.0
}

fn one() -> u32 {
    1
}

mod seconds {
    use serde::{Deserialize, Deserializer, de::Error};
    use std::time::Duration;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| D::Error::custom("a number of seconds from 0 on"))
    }
}

/// A policy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text is not what it should be.
    #[error("{file}: {what}")]
    Wrong {
        /// The file.
        file: String,
        /// What is wrong, on one line.
        what: String,
    },
    /// It names what the catalog does not have.
    #[error("{file}: {place}: {unknown}")]
    Unknown {
        /// The file.
        file: String,
        /// Where.
        place: String,
        /// What, and what is near to it.
        unknown: Unknown,
    },
}

impl Policy {
    /// Reads `text` of the file called `file`, by the names of `catalog`.
    ///
    /// # Errors
    /// [`PolicyError`], with what to do.
    pub fn read(file: &str, text: &str, catalog: &Catalog) -> Result<Self, PolicyError> {
        let wrong = |what: String| PolicyError::Wrong { file: file.to_owned(), what };
        let policy: Self = from_toml(text).map_err(wrong)?;
        policy.check().map_err(wrong)?;
        let unknown = |place: String| move |unknown| PolicyError::Unknown { file: file.to_owned(), place, unknown };
        for model in &policy.models {
            catalog.model(model.catalog_name()).map_err(unknown(format!(
                "models, {}: give `like`, a model of the catalog, or the model itself with --catalog",
                model.model
            )))?;
        }
        for name in policy.prices.keys() {
            catalog.accelerator(name).map_err(unknown("prices".to_owned()))?;
        }
        if let Some((place, what)) = policy.slurm.unknown(catalog) {
            return Err(unknown(place)(what));
        }
        Ok(policy)
    }

    fn check(&self) -> Result<(), String> {
        let is_amount = |number: f64| number >= 0.0 && number.is_finite();
        if self.models.is_empty() {
            return Err("no [[models]]: name one at least".to_owned());
        }
        if !(self.headroom >= 1.0 && self.headroom.is_finite()) {
            return Err(format!("headroom = {}: from 1 on", self.headroom));
        }
        if let Some((name, price)) = self.prices.iter().find(|(_, price)| !is_amount(**price)) {
            return Err(format!("prices.{name} = {price}: from 0 on"));
        }
        for (nth, of) in self.models.iter().enumerate() {
            if self.models[..nth].iter().any(|before| before.model == of.model) {
                return Err(format!("{} is there twice", of.model));
            }
            let is_length = |tokens: f64| tokens >= 1.0 && tokens.is_finite();
            if !is_amount(of.rate) {
                return Err(format!("{}: rate = {}: from 0 on", of.model, of.rate));
            }
            if !(is_length(of.prompt) && is_length(of.answer)) {
                return Err(format!("{}: prompt and answer are from 1 on", of.model));
            }
        }
        self.slurm.check()
    }
}

impl ModelPolicy {
    /// Its name in the catalog.
    pub fn catalog_name(&self) -> &str {
        self.like.as_deref().unwrap_or(&self.model)
    }
}
