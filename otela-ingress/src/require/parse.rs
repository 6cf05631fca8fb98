//! Reads requirements from the text of a header or of the body's metadata.

use super::{Compare, Is, Number, Requirement, Requirements, Word, facts::Tier};
use std::str::FromStr;

/// As many as anybody needs; each is checked for each node.
const REQUIREMENTS_MAX: usize = 16;
const TEXT_BYTES_MAX: usize = 1024;

/// A text that is no requirement. It is the message to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a requirement: {why}.")]
pub(crate) struct InvalidRequirement {
    text: String,
    why: &'static str,
}

impl FromStr for Requirements {
    type Err = InvalidRequirement;

    fn from_str(text: &str) -> Result<Self, InvalidRequirement> {
        let invalid = |why| InvalidRequirement { text: text.chars().take(80).collect(), why };
        if text.len() > TEXT_BYTES_MAX {
            return Err(invalid("at most 1,024 bytes are allowed"));
        }
        let parts: Vec<_> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Err(invalid("it is empty"));
        }
        if parts.len() > REQUIREMENTS_MAX {
            return Err(invalid("at most 16 are allowed"));
        }
        parts.into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

/// Longer operators first: `>=` begins with `>`.
const OPERATORS: [(&str, Compare); 7] = [
    (">=", Compare::AtLeast),
    ("<=", Compare::AtMost),
    ("!=", Compare::NotEqual),
    ("==", Compare::Equal),
    ("=", Compare::Equal),
    (">", Compare::More),
    ("<", Compare::Less),
];

fn requirement(text: &str) -> Result<Requirement, InvalidRequirement> {
    let invalid = |why| InvalidRequirement { text: text.to_owned(), why };
    let at = text.find(['>', '<', '!', '=']).ok_or_else(|| invalid("it has none of = != >= <= > <"))?;
    let (key, rest) = text.split_at(at);
    let (operator, compare) = OPERATORS
        .into_iter()
        .find(|(operator, _)| rest.starts_with(operator))
        .ok_or_else(|| invalid("it has none of = != >= <= > <"))?;
    let (key, value) = (key.trim(), rest[operator.len()..].trim());
    if value.is_empty() || value.starts_with(['=', '<', '>']) {
        return Err(invalid("it has no value"));
    }
    let number = |what, value: Option<u64>, why| {
        value.map(|value| Is::Number { what, compare, value }).ok_or_else(|| invalid(why))
    };
    let word = |what: Word, keep_case: bool| {
        let wanted = match compare {
            Compare::Equal => true,
            Compare::NotEqual => false,
            _ => return Err(invalid("a word can only be compared with = and !=")),
        };
        let of = |word: &str| if keep_case { word.trim().to_owned() } else { word.trim().to_ascii_lowercase() };
        Ok(Is::Word { what, wanted, any_of: value.split('|').map(of).collect() })
    };
    let is = match key.to_ascii_lowercase().as_str() {
        "quantization" => number(Number::Quantization, bits(value), "a number of bits is needed, for example 8bit"),
        "context" => number(Number::Context, count(value), "a number of tokens is needed, for example 32768"),
        "memory" => number(Number::Memory, bytes(value), "a size is needed, for example 80GiB"),
        "gpus" | "accelerators" => number(Number::Accelerators, count(value), "a number is needed"),
        "gpu" | "accelerator" => word(Word::Accelerator, false),
        "engine" => word(Word::Engine, false),
        "tier" if value.split('|').all(|tier| Tier::by_name(tier.trim()).is_some()) => word(Word::Tier, false),
        "tier" => Err(invalid("known tiers are stable, limited and volatile")),
        "region" | "site" => word(Word::Label(key.to_ascii_lowercase()), true),
        // The case of a label counts.
        lower if lower.starts_with("label.") && key.len() > 6 => word(Word::Label(key[6..].to_owned()), true),
        _ => Err(invalid(
            "known are quantization, context, gpu, gpus, memory, engine, region, site, tier and label.NAME",
        )),
    }?;
    Ok(Requirement { is, text: text.to_owned() })
}

fn count(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

fn bits(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let number = lower.strip_suffix("bits").or(lower.strip_suffix("bit")).unwrap_or(&lower);
    number.trim_end_matches(['-', ' ']).parse().ok().filter(|bits| (1..=64).contains(bits))
}

fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.')?;
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "gib" => 1_u64 << 30,
        "gb" | "g" => 1_000_000_000,
        "mib" => 1 << 20,
        "mb" | "m" => 1_000_000,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    // No accelerator has as much memory as a float cannot count.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "see above"
    )]
    let bytes = (number * unit as f64) as u64;
    Some(bytes)
}
