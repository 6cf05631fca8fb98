//! The operators of a transformer on one of `tp` accelerators: sizes of the matrices, and what depends on a batch.
//!
//! Sizes follow the equations' reading in both papers: projections of queries, keys, values and outputs, the MLP's
//! matrices, fused attention, and the output matrix for the last position of each sequence. A linear operator over `n`
//! tokens does `2 n i o` FLOP, and moves its weights, `n i` numbers in and `n o` out.

use super::variant::Variant;

/// Activations have 16 bits.
pub(super) const ACTIVATION_BYTES: f64 = 2.0;

/// What an accelerator can do, in FLOP/s and bytes/s, as far as an operator gets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rates {
    pub(super) flops: f64,
    pub(super) bytes: f64,
}

impl Rates {
    /// The roofline, Autopoiesis Eq. 3 and 4: the slower of computing and moving.
    pub(super) fn seconds(self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bytes)
    }
}

/// Equal matrices of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Linear {
    /// How many of this size follow each other.
    times: f64,
    inputs: f64,
    outputs: f64,
    weight_bytes: f64,
}

impl Linear {
    /// For `n` tokens, with `copies` of the weights read (experts), once for each of `times`.
    fn seconds(self, n: f64, copies: f64, rates: Rates) -> f64 {
        let flops = 2.0 * n * self.inputs * self.outputs;
        let bytes = copies * self.weight_bytes + n * (self.inputs + self.outputs) * ACTIVATION_BYTES;
        self.times * rates.seconds(flops, bytes)
    }
}

/// Sizes of a variant's operators, per accelerator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Operators {
    pub(super) layers: f64,
    pub(super) hidden: f64,
    pub(super) vocab: f64,
    /// Query heads times their width.
    pub(super) query_width: f64,
    /// Heads of keys and values times their width; at least one head.
    pub(super) kv_width: f64,
    pub(super) heads: f64,
    pub(super) kv_number_bytes: f64,
    /// Width of the MLP's inside that one token passes through.
    pub(super) mlp_width_active: f64,
    pub(super) mlp_matrices: f64,
    projections: [Linear; 3],
    mlp: [Linear; 2],
    head: Linear,
    experts: Option<Experts>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Experts {
    count: f64,
    active: f64,
    /// ln(1 - active / count).
    ln_missed: f64,
}

impl Operators {
    pub(super) fn new(variant: &Variant<'_>) -> Self {
        let (model, tp) = (variant.model, f64::from(variant.tp()));
        let hidden = f64::from(model.hidden);
        let head_dim = f64::from(model.attention.head_dim);
        let heads = f64::from(model.attention.heads) / tp;
        let kv_width = (f64::from(model.attention.kv_heads) / tp).max(1.0) * head_dim;
        let query_width = heads * head_dim;
        let width = f64::from(model.mlp.width()) / tp;
        let vocab = f64::from(model.vocab);
        let linear = |times: f64, inputs: f64, outputs: f64, bits: f64| Linear {
            times,
            inputs,
            outputs,
            weight_bytes: inputs * outputs * bits / 8.0,
        };
        let bits = model.bits;
        let mlp_bits = if model.mlp.experts.is_some() { bits.experts } else { bits.weights };
        let mlp_matrices = f64::from(model.mlp.matrices());
        Self {
            layers: f64::from(model.layers),
            hidden,
            vocab,
            query_width,
            kv_width,
            heads,
            kv_number_bytes: bits.kv / 8.0,
            mlp_width_active: width * f64::from(model.mlp.active()),
            mlp_matrices,
            projections: [
                linear(1.0, hidden, query_width, bits.weights),
                linear(2.0, hidden, kv_width, bits.weights),
                linear(1.0, query_width, hidden, bits.weights),
            ],
            mlp: [linear(mlp_matrices - 1.0, hidden, width, mlp_bits), linear(1.0, width, hidden, mlp_bits)],
            head: linear(1.0, hidden, vocab / tp, 16.0),
            experts: model.mlp.experts.map(|experts| {
                let (count, active) = (f64::from(experts.count), f64::from(experts.active));
                // Where all are active, the smallest number is as good as none and keeps 0 tokens from being no number.
                Experts { count, active, ln_missed: (1.0 - active / count).max(f64::MIN_POSITIVE).ln() }
            }),
        }
    }

    /// The linear operators of one layer for `n` tokens, of which `distinct` differ from each other (equal ones pass
    /// through the same experts), in seconds.
    pub(super) fn layer_seconds(&self, n: f64, distinct: f64, rates: Rates) -> f64 {
        let projections: f64 = self.projections.iter().map(|linear| linear.seconds(n, 1.0, rates)).sum();
        let (n, copies) = match self.experts {
            None => (n, 1.0),
            // Of E experts, n tokens that choose a each miss one with probability (1 - a/E)^n.
            Some(experts) => (n * experts.active, experts.count * -(distinct * experts.ln_missed).exp_m1()),
        };
        let [up, down] = self.mlp;
        projections + up.seconds(n, copies, rates) + down.seconds(n, copies, rates)
    }

    /// The output matrix for `n` positions, in seconds.
    pub(super) fn head_seconds(&self, n: f64, rates: Rates) -> f64 {
        self.head.seconds(n, 1.0, rates)
    }
}
