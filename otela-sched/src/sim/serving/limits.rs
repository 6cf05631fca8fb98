//! How an engine batches, and what it has room for.

use crate::sim::{MEMORY_RATIO, Variant};

/// How prompts and decoding sequences share steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// Prompts go first, whole, in steps of their own; those who decode wait meanwhile. OpenTela, section 3.5.
    WholePrompts,
    /// Each step has a token of everybody who decodes, and parts of prompts up to the budget: vLLM since its version 1,
    /// SGLang with chunked prefill.
    Chunked,
}

/// An engine's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How prompts and decoding sequences share steps.
    pub batching: Batching,
    /// Sequences at once (`--max-num-seqs`).
    pub sequences_max: u32,
    /// Tokens in one step (`--max-num-batched-tokens`). A prompt that is longer alone passes all the same, where prompts
    /// are whole.
    pub step_tokens_max: u32,
    /// Blocks for keys and values.
    pub blocks: u64,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Whether keys and values of shared heads of prompts are kept.
    pub keeps_prefixes: bool,
}

impl Limits {
    /// vLLM's usual ones, with the room that a variant has; none if its weights do not fit.
    pub fn of(variant: &Variant<'_>) -> Option<Self> {
        let usual = Self::unbounded();
        // Room beyond what can be counted is as good as that.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
        let blocks = (variant.kv_tokens_max(MEMORY_RATIO) / f64::from(usual.block_tokens)) as u64;
        (blocks > 0).then_some(Self { blocks, ..usual })
    }

    /// The same without an end to the room.
    pub fn unbounded() -> Self {
        Self {
            batching: Batching::Chunked,
            sequences_max: 256,
            step_tokens_max: 8192,
            blocks: u64::from(u32::MAX),
            block_tokens: 16,
            keeps_prefixes: true,
        }
    }

    /// Blocks for so many tokens.
    pub(super) fn blocks_for(&self, tokens: u32) -> u64 {
        u64::from(tokens.div_ceil(self.block_tokens))
    }
}
