//! The two clocks of a peer, as arguments.

use std::time::Duration;

/// What a peer's clocks read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Monotonic time since the peer's start: every time-out and every judgement of liveness.
    pub mono: Duration,
    /// Wall time in milliseconds since the Unix epoch: the age of signed bytes, and nothing else.
    pub wall_ms: u64,
}

/// `duration` in whole milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
