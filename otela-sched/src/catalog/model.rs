//! A model as the cost model sees it: the sizes of its matrices and how many bits they have.

use super::{CatalogError, entry::Entry};

/// In which precision products are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// 16 bits, BF16 or FP16.
    Bf16,
    /// FP8.
    Fp8,
    /// INT8.
    Int8,
    /// FP4.
    Fp4,
}

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// The catalog's name.
    pub name: String,
    /// Layers (`L` in the papers).
    pub layers: u32,
    /// Width of the residual stream (`H`).
    pub hidden: u32,
    /// Tokens in the vocabulary (`V`).
    pub vocab: u32,
    /// Whether the embedding is the output matrix too.
    pub tied: bool,
    /// The longest context that the model was made for, in tokens.
    pub context_max: u32,
    /// Attention of each layer.
    pub attention: Attention,
    /// What follows the attention in each layer.
    pub mlp: Mlp,
    /// Sizes of numbers.
    pub bits: Bits,
}

/// Attention with grouped keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Heads of queries (`A`).
    pub heads: u32,
    /// Heads of keys and values (`K`); as many as of queries without grouping.
    pub kv_heads: u32,
    /// Width of a head (`d`).
    pub head_dim: u32,
}

/// The feed-forward part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mlp {
    /// Width (`I`), unless there are experts.
    pub intermediate: u32,
    /// Whether it has a gate, and so three matrices rather than two.
    pub gated: bool,
    /// Experts in its place.
    pub experts: Option<Experts>,
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// How many there are.
    pub count: u32,
    /// How many each token passes through.
    pub active: u32,
    /// Width of each.
    pub intermediate: u32,
}

/// How many bits a number has. Quantized weights count with their scales, so this may be a fraction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bits {
    /// Of the weights in the layers. Embedding and output matrix stay at 16.
    pub weights: f64,
    /// Of the experts' weights.
    pub experts: f64,
    /// Of keys and values.
    pub kv: f64,
    /// What products are computed in.
    pub compute: Precision,
}

impl Mlp {
    /// Matrices of one expert, or of the whole.
    pub fn matrices(&self) -> u32 {
        if self.gated { 3 } else { 2 }
    }

    /// Width of one expert, or of the whole.
    pub fn width(&self) -> u32 {
        self.experts.map_or(self.intermediate, |experts| experts.intermediate)
    }

    /// Experts, or 1.
    pub fn copies(&self) -> u32 {
        self.experts.map_or(1, |experts| experts.count)
    }

    /// Experts that a token passes through, or 1.
    pub fn active(&self) -> u32 {
        self.experts.map_or(1, |experts| experts.active)
    }
}

impl Model {
    /// Parameters of one layer's attention.
    fn attention_parameters(&self) -> f64 {
        let Attention { heads, kv_heads, head_dim } = self.attention;
        2.0 * f64::from(heads + kv_heads) * f64::from(head_dim) * f64::from(self.hidden)
    }

    /// Parameters of one layer's MLP with all its experts.
    fn mlp_parameters(&self) -> f64 {
        let matrices = f64::from(self.mlp.matrices()) * f64::from(self.mlp.copies());
        matrices * f64::from(self.hidden) * f64::from(self.mlp.width())
    }

    fn embedding_parameters(&self) -> f64 {
        f64::from(self.hidden) * f64::from(self.vocab)
    }

    fn layer_bytes(&self) -> f64 {
        let mlp_bits = if self.mlp.experts.is_some() { self.bits.experts } else { self.bits.weights };
        f64::from(self.layers) * (self.attention_parameters() * self.bits.weights + self.mlp_parameters() * mlp_bits)
            / 8.0
    }

    /// How many parameters there are, without norms, biases and routers.
    pub fn parameters(&self) -> f64 {
        let embeddings = if self.tied { 1.0 } else { 2.0 };
        f64::from(self.layers) * (self.attention_parameters() + self.mlp_parameters())
            + embeddings * self.embedding_parameters()
    }

    /// Bytes of the weights that an engine holds: a tied embedding once, embedding and output matrix in 16 bits.
    pub fn weight_bytes(&self) -> f64 {
        self.layer_bytes() + if self.tied { 1.0 } else { 2.0 } * 2.0 * self.embedding_parameters()
    }

    /// Bytes of the weights as Autopoiesis' Eq. 2 has them: embedding and output matrix both count, tied or not, and with
    /// the bits of the other weights.
    pub fn weight_bytes_eq2(&self) -> f64 {
        self.layer_bytes() + 2.0 * self.embedding_parameters() * self.bits.weights / 8.0
    }

    /// Bytes of keys and values that one token takes on all `tp` accelerators together. Where there are more accelerators
    /// than heads of keys and values, engines keep copies.
    pub fn kv_bytes_per_token(&self, tp: u32) -> f64 {
        let heads = f64::from(self.attention.kv_heads.max(tp));
        2.0 * f64::from(self.layers) * heads * f64::from(self.attention.head_dim) * self.bits.kv / 8.0
    }

    /// Reads an entry; `base` has what it leaves open.
    pub(super) fn read(entry: &mut Entry, base: Option<&Self>) -> Result<Self, CatalogError> {
        let of = |pick: fn(&Self) -> u32| base.map(pick);
        let mut count = |key, base| {
            let given = entry.count(key)?;
            entry.needed(key, given, base)
        };
        let layers = count("layers", of(|m| m.layers))?;
        let hidden = count("hidden", of(|m| m.hidden))?;
        let vocab = count("vocab", of(|m| m.vocab))?;
        let context_max = count("context_max", of(|m| m.context_max))?;
        let heads = count("heads", of(|m| m.attention.heads))?;
        let kv_heads = count("kv_heads", of(|m| m.attention.kv_heads))?;
        let intermediate = count("intermediate", of(|m| m.mlp.intermediate))?;
        if kv_heads > heads {
            return Err(entry.wrong("kv_heads", &format!("{kv_heads} are more than the {heads} heads")));
        }
        let head_dim = entry.count("head_dim")?.or(of(|m| m.attention.head_dim)).unwrap_or(hidden / heads);
        let tied = entry.flag("tied")?.unwrap_or(base.is_some_and(|m| m.tied));
        let gated = entry.flag("gated")?.unwrap_or(base.is_none_or(|m| m.mlp.gated));
        let experts = Self::experts(entry)?.or(base.and_then(|m| m.mlp.experts));
        Ok(Self {
            name: entry.name.clone(),
            layers,
            hidden,
            vocab,
            tied,
            context_max,
            attention: Attention { heads, kv_heads, head_dim },
            mlp: Mlp { intermediate, gated, experts },
            bits: Bits::read(entry, base.map(|m| m.bits))?,
        })
    }

    fn experts(entry: &mut Entry) -> Result<Option<Experts>, CatalogError> {
        let Some(mut inner) = entry.inner("experts")? else { return Ok(None) };
        let mut count = |key| {
            let given = inner.count(key)?;
            inner.needed(key, given, None)
        };
        let experts =
            Experts { count: count("count")?, active: count("active")?, intermediate: count("intermediate")? };
        inner.end()?;
        if experts.active > experts.count {
            return Err(inner.wrong("active", &format!("{} are more than there are", experts.active)));
        }
        Ok(Some(experts))
    }
}

impl Bits {
    fn read(entry: &mut Entry, base: Option<Self>) -> Result<Self, CatalogError> {
        let given = entry.number("weight_bits")?;
        let weights = given.or(base.map(|b| b.weights)).unwrap_or(16.0);
        let experts = entry.number("expert_bits")?.or(given).or(base.map(|b| b.experts)).unwrap_or(weights);
        let kv = entry.number("kv_bits")?.or(base.map(|b| b.kv)).unwrap_or(16.0);
        let compute = match entry.text("compute")?.as_deref() {
            None => base.map_or(Precision::Bf16, |b| b.compute),
            Some("bf16" | "fp16") => Precision::Bf16,
            Some("fp8") => Precision::Fp8,
            Some("int8") => Precision::Int8,
            Some("fp4") => Precision::Fp4,
            Some(other) => return Err(entry.wrong("compute", &format!("{other:?} is none of bf16, fp8, int8 and fp4"))),
        };
        Ok(Self { weights, experts, kv, compute })
    }
}
