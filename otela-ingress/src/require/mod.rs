//! What a request requires of the node that serves it: `X-Otela-Require: quantization>=8bit, gpu=H100, region=ch`
//! (OpenTela section 7.3, "Protocol expressiveness").
//!
//! Requirements are a conjunction. Whatever a node does not tell does not meet a requirement about it.

mod facts;
mod parse;

pub(crate) use facts::Facts;
pub(crate) use parse::InvalidRequirement;

use crate::candidate::{Candidate, NoCandidate};
use std::{fmt, sync::Arc};

/// Requirements, in the order of the request. Two requests that say the same in the same order are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Requirements(Vec<Requirement>);

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requirement {
    is: Is,
    /// As the client wrote it, for what is said when it is not met.
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Is {
    Number {
        what: Number,
        compare: Compare,
        value: u64,
    },
    /// One of these, or none of them. All in lower case, but for labels.
    Word {
        what: Word,
        wanted: bool,
        any_of: Vec<String>,
    },
}

/// What is a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Number {
    /// Bits of a weight.
    Quantization,
    /// Tokens of context.
    Context,
    /// Bytes of one accelerator's memory.
    Memory,
    /// Accelerators of the node.
    Accelerators,
}

/// What is a word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Word {
    /// The kind of an accelerator: `H100` is met by `H100-80GB`.
    Accelerator,
    Engine,
    Tier,
    Label(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Compare {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    More,
    Less,
}

/// How a node stands to a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Unmet,
    /// The node does not say.
    Untold,
}

impl Requirements {
    /// Whether a node meets all of them.
    pub(crate) fn are_met(&self, facts: &Facts) -> bool {
        self.0.iter().all(|requirement| requirement.is.verdict(facts) == Verdict::Met)
    }

    /// Adds those of `other`.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// For each requirement that some of `nodes` do not meet: what it is, and for how many it is unmet or untold.
    pub(crate) fn unmet<'a>(&self, nodes: &(impl Iterator<Item = &'a Facts> + Clone)) -> Vec<Unmet> {
        let count = |is: &Is, verdict| nodes.clone().filter(|facts| is.verdict(facts) == verdict).count();
        let unmet = self.0.iter().map(|requirement| Unmet {
            requirement: requirement.text.clone(),
            unmet: count(&requirement.is, Verdict::Unmet),
            untold: count(&requirement.is, Verdict::Untold),
        });
        unmet.filter(|unmet| unmet.unmet + unmet.untold > 0).collect()
    }
}

/// Of the candidates, those that meet all requirements.
pub(crate) fn filter(
    candidates: &[Arc<Candidate>],
    requirements: &Requirements,
) -> Result<Arc<[Arc<Candidate>]>, NoCandidate> {
    let meets = |candidate: &&Arc<Candidate>| requirements.are_met(candidate.facts());
    let fit: Arc<[_]> = candidates.iter().filter(meets).cloned().collect();
    if fit.is_empty() {
        let unmet = requirements.unmet(&candidates.iter().map(|candidate| candidate.facts()));
        return Err(NoCandidate::Unmet { of: candidates.len(), unmet });
    }
    Ok(fit)
}

/// A requirement that is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unmet {
    pub(crate) requirement: String,
    /// Nodes that say something else.
    pub(crate) unmet: usize,
    /// Nodes that say nothing.
    pub(crate) untold: usize,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` fails for {}", self.requirement, self.unmet + self.untold)?;
        if self.untold > 0 {
            write!(f, " (untold by {} of them)", self.untold)?;
        }
        Ok(())
    }
}

impl Is {
    fn verdict(&self, facts: &Facts) -> Verdict {
        match self {
            Self::Number { what, compare, value } => {
                let told = match what {
                    Number::Quantization => facts.weight_bits,
                    Number::Context => facts.context_tokens,
                    Number::Memory => facts.memory_bytes,
                    Number::Accelerators => Some(facts.accelerators),
                };
                told.map_or(Verdict::Untold, |told| verdict(compare.holds(told, *value)))
            }
            Self::Word { what, wanted, any_of } => {
                let is = |told: &str| any_of.iter().any(|word| word == told);
                let has = match what {
                    Word::Accelerator if facts.kinds.is_empty() => return Verdict::Untold,
                    Word::Accelerator => {
                        facts.kinds.iter().any(|kind| any_of.iter().any(|word| is_of_kind(kind, word)))
                    }
                    Word::Engine if facts.engine.is_empty() => return Verdict::Untold,
                    Word::Engine => is(&facts.engine),
                    Word::Tier => is(facts.tier.name()),
                    Word::Label(key) => match facts.label(key) {
                        Some(told) => is(told),
                        None => return Verdict::Untold,
                    },
                };
                verdict(has == *wanted)
            }
        }
    }
}

fn verdict(met: bool) -> Verdict {
    if met { Verdict::Met } else { Verdict::Unmet }
}

/// `h100-80gb` is an `h100`; `h1000` is none.
fn is_of_kind(kind: &str, word: &str) -> bool {
    kind.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
}

impl Compare {
    fn holds(self, told: u64, value: u64) -> bool {
        match self {
            Self::Equal => told == value,
            Self::NotEqual => told != value,
            Self::AtLeast => told >= value,
            Self::AtMost => told <= value,
            Self::More => told > value,
            Self::Less => told < value,
        }
    }
}

#[cfg(test)]
mod tests;
