//! The cost model of Autopoiesis, appendix B, as printed: the roofline of a static batch.

use super::{
    affine::{Affine, sum_of_larger},
    operators::{ACTIVATION_BYTES, Operators, Rates},
    variant::Variant,
};
use crate::catalog::Accelerator;

/// Eq. 3 and 4: the time of one operator of so much work in 16 bits on an accelerator, in seconds.
pub fn operator_seconds(accelerator: &Accelerator, flops: f64, bytes: f64) -> f64 {
    Rates { flops: accelerator.peaks.bf16, bytes: accelerator.bandwidth_bytes_per_s }.seconds(flops, bytes)
}

/// The roofline of one variant.
///
/// Where the paper is silent, this is what it does: attention is fused, its mask is not used to save work (`s * s`
/// scores), the output matrix computes the last position alone, and norms and activations cost nothing.
#[derive(Debug, Clone, Copy)]
pub struct Roofline {
    operators: Operators,
    rates: Rates,
    /// Seconds of all all-reduces for one token.
    all_reduce_token_seconds: f64,
}

impl Roofline {
    /// The roofline of a variant.
    pub fn new(variant: &Variant<'_>) -> Self {
        let operators = Operators::new(variant);
        let tp = f64::from(variant.tp());
        let bytes = 2.0 * (tp - 1.0) / tp * 2.0 * operators.layers * operators.hidden * ACTIVATION_BYTES;
        Self {
            operators,
            rates: Rates {
                flops: variant.accelerator.peak_flops(variant.model.bits.compute),
                bytes: variant.accelerator.bandwidth_bytes_per_s,
            },
            all_reduce_token_seconds: bytes / variant.link().sold,
        }
    }

    /// Eq. 6: the all-reduces of all layers for a batch of which each sequence has `tokens`, in seconds.
    pub fn all_reduce_seconds(&self, batch: f64, tokens: f64) -> f64 {
        self.all_reduce_token_seconds * batch * tokens
    }

    /// The prompts of a batch, `prompt` tokens each, in seconds.
    pub fn prefill_seconds(&self, batch: f64, prompt: f64) -> f64 {
        let (compute, memory) = self.attention(batch, prompt);
        self.phase_seconds(batch, prompt) + self.operators.layers * compute.at(prompt).max(memory.at(prompt))
    }

    /// One token for each sequence of a batch, each with `context` keys, in seconds.
    pub fn decode_step_seconds(&self, batch: f64, context: f64) -> f64 {
        let (compute, memory) = self.attention(batch, 1.0);
        self.phase_seconds(batch, 1.0) + self.operators.layers * compute.at(context).max(memory.at(context))
    }

    /// Eq. 5: a batch from its prompts to the last of `answer` tokens, in seconds.
    pub fn latency_seconds(&self, batch: f64, prompt: f64, answer: f64) -> f64 {
        let (compute, memory) = self.attention(batch, 1.0);
        self.prefill_seconds(batch, prompt)
            + answer * self.phase_seconds(batch, 1.0)
            + self.operators.layers * sum_of_larger(compute, memory, prompt, answer)
    }

    /// All but the attention.
    fn phase_seconds(&self, batch: f64, tokens: f64) -> f64 {
        let n = batch * tokens;
        self.operators.layers * self.operators.layer_seconds(n, n, self.rates)
            + self.operators.head_seconds(batch, self.rates)
            + self.all_reduce_seconds(batch, tokens)
    }

    /// One layer's attention of `tokens` for each sequence, in seconds by the context: computing and moving.
    fn attention(&self, batch: f64, tokens: f64) -> (Affine, Affine) {
        let o = &self.operators;
        let compute = 4.0 * batch * o.query_width * tokens / self.rates.flops;
        let queries = 2.0 * batch * tokens * o.query_width * ACTIVATION_BYTES / self.rates.bytes;
        let keys = 2.0 * batch * o.kv_width * o.kv_number_bytes / self.rates.bytes;
        (Affine { at_0: 0.0, slope: compute }, Affine { at_0: queries, slope: keys })
    }
}
