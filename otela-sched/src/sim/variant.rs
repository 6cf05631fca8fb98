//! One way to serve a model: on which accelerator, over how many of them. And whether that fits into memory.

use crate::catalog::{Accelerator, Model};

/// Of an accelerator's memory, what weights may take (`theta` in Autopoiesis' Eq. 7): the rest is for keys and values.
pub const WEIGHTS_RATIO: f64 = 0.8;
/// Of an accelerator's memory, what weights, keys and values may take together; engines' own default.
pub const MEMORY_RATIO: f64 = 0.9;

/// Why there is no such variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    /// Over none.
    #[error("a model needs at least one accelerator: give tp from 1 on")]
    NoAccelerators,
}

/// A model on accelerators of one type, with tensor parallelism.
#[derive(Debug, Clone, Copy)]
pub struct Variant<'a> {
    /// The model.
    pub model: &'a Model,
    /// The accelerator.
    pub accelerator: &'a Accelerator,
    tp: u32,
}

impl<'a> Variant<'a> {
    /// The variant over `tp` accelerators.
    pub fn new(model: &'a Model, accelerator: &'a Accelerator, tp: u32) -> Result<Self, VariantError> {
        if tp == 0 {
            return Err(VariantError::NoAccelerators);
        }
        Ok(Self { model, accelerator, tp })
    }

    /// Over how many accelerators.
    pub fn tp(&self) -> u32 {
        self.tp
    }

    /// Whether engines can split it so: the heads must divide evenly, and so must those of keys and values or else the
    /// accelerators among them.
    pub fn divides(&self) -> bool {
        let attention = self.model.attention;
        attention.heads.is_multiple_of(self.tp)
            && (attention.kv_heads.is_multiple_of(self.tp) || self.tp.is_multiple_of(attention.kv_heads))
    }

    /// Whether all its accelerators are in one node of the usual shape.
    pub fn within_node(&self) -> bool {
        self.tp <= self.accelerator.per_node
    }

    /// Bytes of the weights on all accelerators together: as in Eq. 2, or what an engine holds where that is more, since
    /// embedding and output matrix of quantized models stay at 16 bits.
    fn weight_bytes(&self) -> f64 {
        self.model.weight_bytes_eq2().max(self.model.weight_bytes())
    }

    /// Autopoiesis' Eq. 7: whether each shard of the weights fits into `ratio` of an accelerator ([`WEIGHTS_RATIO`] there).
    pub fn weights_fit(&self, ratio: f64) -> bool {
        self.weight_bytes() / f64::from(self.tp) <= ratio * self.accelerator.memory_bytes
    }

    /// Bytes for keys and values on all accelerators together, once the weights are there; none if they do not fit.
    /// `ratio` is of the memory ([`MEMORY_RATIO`] by default in engines).
    pub fn kv_bytes(&self, ratio: f64) -> f64 {
        let memory = ratio * f64::from(self.tp) * self.accelerator.memory_bytes;
        (memory - self.weight_bytes()).max(0.0)
    }

    /// How many tokens' keys and values fit at once.
    pub fn kv_tokens_max(&self, ratio: f64) -> f64 {
        (self.kv_bytes(ratio) / self.model.kv_bytes_per_token(self.tp)).floor()
    }

    /// How many sequences of `tokens` (prompt and answer) fit at once.
    pub fn batch_max(&self, tokens: f64, ratio: f64) -> f64 {
        (self.kv_bytes(ratio) / (self.model.kv_bytes_per_token(self.tp) * tokens)).floor()
    }

    /// The link that all-reduces take, in bytes a second, and whether that is both directions together: inside a node the
    /// accelerators' own, between nodes the network.
    pub(super) fn link(&self) -> Link {
        if self.within_node() {
            Link { sold: self.accelerator.link_bytes_per_s, one_way: self.accelerator.link_bytes_per_s / 2.0 }
        } else {
            let network = self.accelerator.network_bytes_per_s;
            Link { sold: network, one_way: network }
        }
    }
}

/// What connects accelerators, in bytes a second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// As it is sold, which Autopoiesis computes with (`R`).
    pub(super) sold: f64,
    /// In one direction.
    pub(super) one_way: f64,
}
