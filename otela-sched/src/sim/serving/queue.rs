//! Who waits for a replica.

use super::{Arrival, Prefix, Served};

/// One that waits, or waits again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Waiting {
    pub(super) request: usize,
    pub(super) arrived: f64,
    /// Tokens whose keys and values it needs before its next token: its prompt, and what of its answer is there already.
    pub(super) tokens: u32,
    /// Tokens of its answer that are missing.
    pub(super) missing: u32,
    pub(super) answer: u32,
    /// When its first token was there, if it was.
    pub(super) first: Option<f64>,
    pub(super) prefix: Option<Prefix>,
    /// Its keys and values have come from another replica.
    pub(super) is_computed: bool,
    pub(super) restarts: u32,
}

impl Waiting {
    pub(super) fn new(request: usize, arrival: &Arrival) -> Self {
        Self {
            request,
            arrived: arrival.at,
            tokens: arrival.prompt,
            missing: arrival.answer,
            answer: arrival.answer,
            first: None,
            prefix: arrival.prefix,
            is_computed: false,
            restarts: 0,
        }
    }

    /// Once more from the beginning, but for the `given` further tokens of its answer that its client has. If its keys and
    /// values had come from elsewhere, they lacked the last token of those that it had before.
    pub(super) fn again(self, first: f64, given: u32) -> Self {
        let (tokens, missing) = (self.tokens + u32::from(self.is_computed) + given, self.missing - given);
        Self { tokens, missing, first: Some(first), is_computed: false, restarts: self.restarts + 1, ..self }
    }

    /// The same without what had been computed elsewhere, which is lost.
    pub(super) fn uncomputed(self) -> Self {
        Self { tokens: self.tokens + u32::from(self.is_computed), is_computed: false, ..self }
    }

    pub(super) fn served(&self, first: f64, last: f64) -> Served {
        Served {
            request: self.request,
            arrived: self.arrived,
            first,
            last,
            answer: self.answer,
            restarts: self.restarts,
        }
    }
}
