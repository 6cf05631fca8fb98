//! How fast the simulated engine computes: as it is told, or as the cost model says of a real one.

use crate::{
    calibrate::Table,
    catalog::{Catalog, Unknown},
    sim::{MEMORY_RATIO, Step, StepCosts, Variant, VariantError},
};
use std::time::Duration;

/// How fast the model computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// From admission to the first token, besides the prefill rate.
    pub ttft: Duration,
    /// Between two tokens of one sequence.
    pub itl: Duration,
    /// Prompt tokens per second; `None` means that prompts of any length take `ttft`.
    pub prefill_rate: Option<f64>,
}

/// A model on accelerators, as the cost model knows it: `Llama-3.1-8B@H100`, or over four `Llama-3.3-70B@4xH100`.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Times of steps.
    costs: StepCosts,
    /// Tokens for whose keys and values there is room.
    pub kv_tokens: u32,
    /// The most tokens that the model reads.
    pub context_max: u32,
}

/// A profile that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// It is written otherwise.
    #[error(
        "a profile is MODEL@ACCELERATOR or MODEL@NxACCELERATOR, for example Llama-3.1-8B@H100 or Llama-3.3-70B@4xH100"
    )]
    Form,
    /// A name that the catalog does not have.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// Over none.
    #[error(transparent)]
    Variant(#[from] VariantError),
    /// Weights alone are too much.
    #[error("{0} does not fit there: give more accelerators, as in MODEL@8xH100")]
    DoesNotFit(String),
}

impl Profile {
    /// The profile of that name, with vLLM's factors.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn named(text: &str) -> Result<Self, ProfileError> {
        let (model, accelerator) = text.split_once('@').ok_or(ProfileError::Form)?;
        let (tp, accelerator) = match accelerator.split_once('x') {
            Some((count, name)) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                (count.parse().map_err(|_| ProfileError::Form)?, name)
            }
            _ => (1, accelerator),
        };
        let catalog = Catalog::builtin();
        let (model, accelerator) = (catalog.model(model)?, catalog.accelerator(accelerator)?);
        let variant = Variant::new(model, accelerator, tp)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and saturates")]
        let kv_tokens = variant.kv_tokens_max(MEMORY_RATIO) as u32;
        if kv_tokens == 0 {
            return Err(ProfileError::DoesNotFit(model.name.clone()));
        }
        let (factors, _) = Table::builtin().factors(accelerator, "vLLM", "");
        Ok(Self { costs: StepCosts::new(&variant, factors), kv_tokens, context_max: model.context_max })
    }
}

/// Sequences that are being computed: how many, and how many tokens they have together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    pub(crate) sequences: u32,
    pub(crate) tokens: u64,
}

impl Busy {
    #[expect(clippy::cast_precision_loss, reason = "far fewer tokens than a float can count")]
    fn step(self) -> Step {
        Step::default().decode(f64::from(self.sequences), self.tokens as f64)
    }
}

/// How long things take.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Pace {
    Told(Timing),
    Profile(Box<Profile>),
}

impl Pace {
    /// To compute this many tokens at once and give the next one, beside what else is computed.
    pub(crate) fn prefill(&self, tokens: u32, beside: Busy) -> Duration {
        match self {
            Self::Told(timing) => {
                let by_rate = timing.prefill_rate.map_or(0.0, |rate| f64::from(tokens) / rate);
                timing.ttft + duration(by_rate)
            }
            Self::Profile(profile) => {
                duration(profile.costs.step_seconds(&beside.step().prefill(f64::from(tokens), 0.0)))
            }
        }
    }

    /// Until each of those that are computed has its next token.
    pub(crate) fn next_token(&self, busy: Busy) -> Duration {
        match self {
            Self::Told(timing) => timing.itl,
            Self::Profile(profile) => duration(profile.costs.step_seconds(&busy.step())),
        }
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_named_and_what_is_not_one_is_told() {
        let one = Profile::named("Llama-3.1-8B@H100").unwrap();
        assert!(one.kv_tokens > 100_000 && one.context_max >= 8192);
        let four = Profile::named("Llama-3.3-70B@4xH100").unwrap();
        let token =
            |profile: &Profile| Pace::Profile(Box::new(profile.clone())).next_token(Busy { sequences: 1, tokens: 100 });
        assert!(token(&four) > token(&one) && token(&one) > Duration::from_millis(4), "{:?}", token(&one));
        for (text, told) in [
            ("Llama-3.1-8B", "MODEL@ACCELERATOR"),
            ("Llama-3.1-9B@H100", "the catalog has no model"),
            ("Llama-3.1-8B@H101", "H100"),
            ("Llama-3.1-8B@0xH100", "at least one accelerator"),
            ("Llama-3.1-405B@H100", "does not fit there"),
        ] {
            let error = Profile::named(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn a_fuller_engine_is_slower_for_each_and_faster_in_all() {
        let pace = Pace::Profile(Box::new(Profile::named("Llama-3.1-8B@H100").unwrap()));
        let token =
            |sequences: u32| pace.next_token(Busy { sequences, tokens: u64::from(sequences) * 1000 }).as_secs_f64();
        assert!(token(64) > token(1) && token(64) / 64.0 < token(1) / 8.0, "{} {}", token(1), token(64));
        let alone = pace.prefill(1000, Busy::default());
        assert!(pace.prefill(2000, Busy::default()) > alone);
        assert!(pace.prefill(1000, Busy { sequences: 64, tokens: 64_000 }) > alone);
    }
}
