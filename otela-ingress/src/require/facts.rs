//! What a replica's node says of itself that requests can require.

use otela_proto::{payload::ModelCard, registry::Replica};
use std::collections::BTreeMap;

/// The label in which a provider says how stable a node is.
const TIER_LABEL: &str = "tier";

/// How long a node is likely to stay (OpenTela section 7.3, "Availability").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Tier {
    /// Owned: its allocation has no end.
    Stable,
    /// Its allocation has an end.
    Limited,
    /// It may be taken away at any moment; only its provider can know.
    Volatile,
}

impl Tier {
    /// As requests name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Limited => "limited",
            Self::Volatile => "volatile",
        }
    }

    /// The tier of this name.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        [Self::Stable, Self::Limited, Self::Volatile].into_iter().find(|tier| tier.name().eq_ignore_ascii_case(name))
    }
}

/// What can be required, read once for each replica. Words are in lower case, but for labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Bits of a weight.
    pub(super) weight_bits: Option<u64>,
    /// Tokens of context.
    pub(super) context_tokens: Option<u64>,
    /// Memory of the accelerator that has the least.
    pub(super) memory_bytes: Option<u64>,
    pub(super) accelerators: u64,
    pub(super) kinds: Vec<String>,
    pub(super) engine: String,
    pub(super) tier: Tier,
    labels: BTreeMap<String, String>,
}

impl Facts {
    /// What is known of a replica.
    pub(crate) fn of(replica: &Replica) -> Self {
        let payload = replica.entry().payload();
        let accelerators = payload.hardware.as_ref().map(|hardware| &hardware.accelerators[..]).unwrap_or_default();
        let tier = payload.labels.get(TIER_LABEL).and_then(|name| Tier::by_name(name));
        let by_end = if payload.ends_at_ms.is_some() { Tier::Limited } else { Tier::Stable };
        Self {
            weight_bits: weight_bits(replica.model(), &payload.labels),
            context_tokens: Some(replica.model().context_length).filter(|tokens| *tokens > 0),
            memory_bytes: accelerators.iter().map(|accelerator| accelerator.memory_bytes).filter(|b| *b > 0).min(),
            accelerators: accelerators.iter().map(|accelerator| u64::from(accelerator.count)).sum(),
            kinds: accelerators.iter().map(|accelerator| accelerator.kind.to_ascii_lowercase()).collect(),
            engine: replica.service().engine.to_ascii_lowercase(),
            tier: tier.unwrap_or(by_end),
            labels: payload.labels.clone(),
        }
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

/// From the model card, or from the provider's labels of these names where the engine does not tell.
fn weight_bits(model: &ModelCard, labels: &BTreeMap<String, String>) -> Option<u64> {
    let told = |card: &str, label: &str| match card {
        "" => labels.get(label).cloned().unwrap_or_default(),
        card => card.to_owned(),
    };
    bits_of(&told(&model.quantization, "quantization")).or_else(|| bits_of(&told(&model.dtype, "dtype")))
}

/// `fp8` is 8, `gptq-int4` and `awq` are 4, `bfloat16` is 16.
pub(super) fn bits_of(name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    // Behind these stands a number of bits: int4, fp8, bfloat16, w4a16, q5_k_m, 8bit comes the other way round.
    let numbers = ["float", "int", "fp", "nf", "mxfp", "w", "q"]
        .iter()
        .flat_map(|before| name.match_indices(before).filter_map(|(at, _)| leading_number(&name[at + before.len()..])));
    let before_bit = name.find("bit").and_then(|at| {
        let digits = name[..at].trim_end_matches(['-', '_', ' ']);
        let start = digits.rfind(|char: char| !char.is_ascii_digit()).map_or(0, |last| last + 1);
        digits[start..].parse().ok()
    });
    let known = [("awq", 4), ("gptq", 4), ("half", 16), ("bitsandbytes", 8)];
    let by_name = || known.iter().find(|(known, _)| name.contains(known)).map(|(_, bits)| *bits);
    numbers.chain(before_bit).filter(|bits| (1..=64).contains(bits)).min().or_else(by_name)
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}
