//! Requests: what comes, and what has become of it.

/// Text at the head of a prompt that other prompts share, such as a system message or the turns before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Which text: the same number is the same text.
    pub id: u64,
    /// Its tokens.
    pub tokens: u32,
}

/// A request before anybody has served it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// When it comes, in seconds.
    pub at: f64,
    /// Tokens of its prompt; at least one.
    pub prompt: u32,
    /// Tokens of its answer; at least one.
    pub answer: u32,
    /// What its prompt shares with others.
    pub prefix: Option<Prefix>,
}

impl Arrival {
    /// A request whose prompt is like no other. Lengths of 0 count as 1: there is no empty prompt, and no answer without a
    /// token.
    pub fn new(at: f64, prompt: u32, answer: u32) -> Self {
        Self { at, prompt: prompt.max(1), answer: answer.max(1), prefix: None }
    }
}

/// A request that has its whole answer. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// Which one, by its place among those that came.
    pub request: usize,
    /// When it came.
    pub arrived: f64,
    /// When its first token was there.
    pub first: f64,
    /// When its last token was there.
    pub last: f64,
    /// Tokens of its answer.
    pub answer: u32,
    /// How often its keys and values had to be computed again, for lack of room or because its replica was lost.
    pub restarts: u32,
}

impl Served {
    /// Time to first token.
    pub fn ttft_seconds(&self) -> f64 {
        self.first - self.arrived
    }

    /// From the request to the last token.
    pub fn latency_seconds(&self) -> f64 {
        self.last - self.arrived
    }

    /// Mean time between two tokens; none if there is but one.
    pub fn itl_seconds(&self) -> Option<f64> {
        (self.answer > 1).then(|| (self.last - self.first) / f64::from(self.answer - 1))
    }
}
