//! What a relay allows one circuit, and when so much of it is used that the next request had better take another.

use std::time::Duration;

/// What a relay allows one circuit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::peer) struct CircuitLimit {
    /// Bytes both ways together.
    pub(in crate::peer) bytes: Option<u64>,
    /// From its beginning to its end.
    pub(in crate::peer) lasts: Option<Duration>,
}

impl CircuitLimit {
    /// Whether half of the bytes or four fifths of the time are used up. `bytes` are those of substreams; the relay
    /// counts what encryption and muxer add as well.
    pub(super) fn is_near(&self, bytes: u64, age: Duration) -> bool {
        self.bytes.is_some_and(|most| bytes > most / 2) || self.lasts.is_some_and(|most| age > most.mul_f64(0.8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p44_a_circuit_is_worn_before_its_limit_and_never_without_one() {
        let limit = CircuitLimit { bytes: Some(131_072), lasts: Some(Duration::from_secs(120)) };
        assert!(!limit.is_near(65_536, Duration::from_secs(96)));
        assert!(limit.is_near(65_537, Duration::ZERO) && limit.is_near(0, Duration::from_secs(97)));
        assert!(!CircuitLimit::default().is_near(u64::MAX, Duration::MAX));
    }
}
