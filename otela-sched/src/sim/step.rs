//! One step of an engine, per operator: OpenTela's first stage (section 3.5), with factors from measurements.
//!
//! More careful than [`super::Roofline`]: the causal mask halves a prompt's scores, softmax costs five FLOP a score, norms
//! and residual sums read and write the residual stream (eight passes a layer), the MLP's activation its inside (three),
//! and links carry what they carry in one direction.

use super::{
    Factors,
    affine::{Affine, sum_of_larger},
    operators::{ACTIVATION_BYTES, Operators, Rates},
    variant::Variant,
};

/// Passes over the residual stream in a layer: two norms and two sums, each read and written.
const RESIDUAL_PASSES: f64 = 8.0;
/// FLOP of softmax for one score.
const SOFTMAX_FLOPS: f64 = 5.0;
const LOGIT_BYTES: f64 = 4.0;

/// What one step of an engine works on: any mix of parts of prompts and of decoding sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Step {
    /// Tokens that pass through the layers.
    pub tokens: f64,
    /// Of these, how many differ from each other; equal ones pass through the same experts.
    pub tokens_distinct: f64,
    /// Sequences that get a token at its end.
    pub sequences: f64,
    /// Pairs of a query's and a key's position that attention scores.
    pub scores: f64,
    /// Keys that attention reads.
    pub keys: f64,
    /// Those of them that decoding sequences read.
    pub keys_decode: f64,
}

impl Step {
    /// Adds `tokens` of a prompt of which `before` are done already.
    #[must_use]
    pub fn prefill(mut self, tokens: f64, before: f64) -> Self {
        self.tokens += tokens;
        self.tokens_distinct += tokens;
        self.sequences += 1.0;
        self.scores += tokens * before + tokens * (tokens + 1.0) / 2.0;
        self.keys += before + tokens;
        self
    }

    /// Adds `count` sequences that get one more token, with `keys` keys together.
    #[must_use]
    pub fn decode(mut self, count: f64, keys: f64) -> Self {
        self.tokens += count;
        self.tokens_distinct += count;
        self.sequences += count;
        self.scores += keys;
        self.keys += keys;
        self.keys_decode += keys;
        self
    }

    /// The same with `count` equal prompts of `tokens`.
    fn prompts(count: f64, tokens: f64) -> Self {
        let one = Self::default().prefill(tokens, 0.0);
        Self {
            tokens: count * one.tokens,
            tokens_distinct: count * one.tokens_distinct,
            sequences: count,
            scores: count * one.scores,
            keys: count * one.keys,
            keys_decode: 0.0,
        }
    }
}

/// Times of a variant's steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepCosts {
    operators: Operators,
    factors: Factors,
    rates: Rates,
    /// The memory's bandwidth, in bytes a second.
    bandwidth: f64,
    /// Seconds of one layer's two all-reduces: of each step, and of each token.
    all_reduce: Affine,
}

impl StepCosts {
    /// The costs of a variant under an engine with these factors.
    pub fn new(variant: &Variant<'_>, factors: Factors) -> Self {
        let operators = Operators::new(variant);
        let tp = f64::from(variant.tp());
        let bandwidth = variant.accelerator.bandwidth_bytes_per_s;
        let bytes = 2.0 * (tp - 1.0) / tp * operators.hidden * ACTIVATION_BYTES;
        let all_reduce = Affine {
            at_0: if variant.tp() > 1 { 2.0 * factors.all_reduce_seconds } else { 0.0 },
            slope: 2.0 * bytes / (variant.link().one_way * factors.link_ratio),
        };
        Self {
            operators,
            factors,
            rates: Rates {
                flops: variant.accelerator.peak_flops(variant.model.bits.compute) * factors.compute_ratio,
                bytes: bandwidth * factors.bandwidth_ratio,
            },
            bandwidth,
            all_reduce,
        }
    }

    /// One step, in seconds; none for one without tokens.
    pub fn step_seconds(&self, step: &Step) -> f64 {
        if step.tokens <= 0.0 {
            return 0.0;
        }
        let moved = step.tokens * self.query_seconds()
            + step.keys * self.key_seconds()
            + step.keys_decode * self.key_again_seconds();
        let attention = moved.max(step.scores * self.score_seconds());
        self.but_attention_seconds(step) + self.operators.layers * attention
    }

    /// The prompts of a batch in one step, `prompt` tokens each, in seconds: the time to first token of an idle engine.
    pub fn prefill_seconds(&self, batch: f64, prompt: f64) -> f64 {
        self.step_seconds(&Step::prompts(batch, prompt))
    }

    /// `steps` steps in which each sequence of a batch gets a token, the first with `context` keys, in seconds.
    pub fn decode_seconds(&self, batch: f64, context: f64, steps: f64) -> f64 {
        self.decode_distinct_seconds(batch, batch, context, steps)
    }

    /// As [`StepCosts::decode_seconds`], with only `distinct` of the sequences different from each other. Benchmarks that
    /// repeat one prompt pass through the experts of one token.
    pub fn decode_distinct_seconds(&self, batch: f64, distinct: f64, context: f64, steps: f64) -> f64 {
        let step = Step { tokens_distinct: distinct, ..Step::default().decode(batch, 0.0) };
        let compute = Affine { at_0: 0.0, slope: batch * self.score_seconds() };
        let memory = Affine {
            at_0: batch * self.query_seconds(),
            slope: batch * (self.key_seconds() + self.key_again_seconds()),
        };
        steps * self.but_attention_seconds(&step)
            + self.operators.layers * sum_of_larger(compute, memory, context, steps)
    }

    /// All of a step but the attention.
    fn but_attention_seconds(&self, step: &Step) -> f64 {
        let (o, f) = (&self.operators, &self.factors);
        let passes = RESIDUAL_PASSES * o.hidden + o.mlp_matrices * o.mlp_width_active;
        let written = 2.0 * o.kv_width * o.kv_number_bytes * f.kv_write_passes / self.bandwidth;
        let token = passes * ACTIVATION_BYTES / self.rates.bytes + written;
        let layer = o.layer_seconds(step.tokens, step.tokens_distinct, self.rates)
            + step.tokens * token
            + f.layer_seconds
            + self.all_reduce.at(step.tokens);
        let choice = f.logit_passes * o.vocab * LOGIT_BYTES / self.rates.bytes + f.sequence_seconds;
        o.layers * layer + o.head_seconds(step.sequences, self.rates) + f.step_seconds + step.sequences * choice
    }

    /// One layer's computing for one score.
    fn score_seconds(&self) -> f64 {
        let o = &self.operators;
        (4.0 * o.query_width + SOFTMAX_FLOPS * o.heads) / self.rates.flops
    }

    /// One layer's moving of a token's query and output.
    fn query_seconds(&self) -> f64 {
        2.0 * self.operators.query_width * ACTIVATION_BYTES / (self.bandwidth * self.factors.attention_ratio)
    }

    /// One layer's moving of a key and its value.
    fn key_seconds(&self) -> f64 {
        let o = &self.operators;
        2.0 * o.kv_width * o.kv_number_bytes / (self.bandwidth * self.factors.attention_ratio)
    }

    /// What kernels take besides, by the query heads that look at a key.
    fn key_again_seconds(&self) -> f64 {
        let o = &self.operators;
        2.0 * o.query_width * o.kv_number_bytes * self.factors.regroup_passes / self.bandwidth
    }
}
