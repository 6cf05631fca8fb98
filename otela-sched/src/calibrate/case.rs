//! Measurements that the cost model can be held against, and why the others cannot.

use super::{Measurement, fit::Evidence};
use crate::{
    catalog::{Catalog, Unknown},
    sim::{Factors, MEMORY_RATIO, StepCosts, Variant},
};

/// Engines whose own benchmark sends one prompt to all sequences of a batch. They pass through the same experts then:
/// measured batches of mixtures are faster than the experts of different prompts can be read.
const ONE_PROMPT: [&str; 1] = ["TensorRT-LLM"];

/// A measurement with what it was measured on.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    /// What was measured.
    pub measured: &'a Measurement,
    /// On what.
    pub variant: Variant<'a>,
}

/// Why a measurement says nothing about the cost model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LeftOut {
    /// A name that the catalog does not have.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The engine must have refused or cut it.
    #[error("longer than the model's context of {0} tokens")]
    Context(u32),
    /// The engine must have served it in parts.
    #[error("does not fit into memory at once")]
    Memory,
    /// Less than the data sheet allows.
    #[error("faster than possible: {0:.3} s at the roofline")]
    Impossible(f64),
}

/// Measurements, sorted.
#[derive(Debug, Clone, Default)]
pub struct Sorted<'a> {
    /// To be used.
    pub cases: Vec<Case<'a>>,
    /// Left out, each with its reason.
    pub left_out: Vec<(&'a Measurement, LeftOut)>,
}

/// Sorts measurements into those that can be used and those that cannot.
pub fn sort<'a>(catalog: &'a Catalog, measurements: &'a [Measurement]) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for measured in measurements {
        match Case::new(catalog, measured) {
            Ok(case) => sorted.cases.push(case),
            Err(reason) => sorted.left_out.push((measured, reason)),
        }
    }
    sorted
}

impl<'a> Case<'a> {
    fn new(catalog: &'a Catalog, measured: &'a Measurement) -> Result<Self, LeftOut> {
        let model = catalog.model(&measured.model)?;
        let accelerator = catalog.accelerator(&measured.accelerator)?;
        let variant = Variant::new(model, accelerator, measured.tp).expect("a table's tp is read from 1 on");
        let case = Self { measured, variant };
        let tokens = measured.prompt.saturating_add(measured.answer);
        if tokens > model.context_max {
            return Err(LeftOut::Context(model.context_max));
        }
        let possible = case.seconds(&Factors::IDEAL);
        if measured.seconds < possible {
            return Err(LeftOut::Impossible(possible));
        }
        if f64::from(measured.batch) > variant.batch_max(f64::from(tokens), MEMORY_RATIO) {
            return Err(LeftOut::Memory);
        }
        Ok(case)
    }

    /// What the cost model says with these factors, in seconds.
    pub fn seconds(&self, factors: &Factors) -> f64 {
        let (costs, m) = (StepCosts::new(&self.variant, *factors), self.measured);
        let (batch, prompt, steps) = (f64::from(m.batch), f64::from(m.prompt), f64::from(m.answer - 1));
        let distinct = if ONE_PROMPT.contains(&m.engine.as_str()) { 1.0 } else { batch };
        // The first token comes with the prompt; the step after it sees the prompt and that token.
        costs.prefill_seconds(batch, prompt) + costs.decode_distinct_seconds(batch, distinct, prompt + 1.0, steps)
    }

    /// Whether the time is one to the first token.
    pub fn is_first_token(&self) -> bool {
        self.measured.answer == 1
    }
}

impl Evidence for [Case<'_>] {
    fn log_errors(&self, factors: &Factors) -> Vec<f64> {
        self.iter().map(|case| (case.seconds(factors) / case.measured.seconds).ln()).collect()
    }

    fn is_trusted(&self, index: usize) -> bool {
        self[index].is_first_token()
    }
}
