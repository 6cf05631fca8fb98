//! How many requests may be given to a second engine after a first one had them.
//!
//! A count for each request is not enough: when every engine is overloaded or every request is poison, the second
//! tries alone double the load. So they are also bounded by a share of all requests.

use std::sync::atomic::{AtomicI64, Ordering};

/// One second try for each ten requests.
const SHARE: i64 = 10;
/// Second tries that may be saved up: enough for the requests that a node has in hand when it dies.
const SAVED_MAX: i64 = 64;

/// The budget of one ingress, in tenths of a try.
#[derive(Debug)]
pub(crate) struct Budget(AtomicI64);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicI64::new(SAVED_MAX * SHARE))
    }
}

impl Budget {
    /// A request has come: it pays in its share.
    pub(crate) fn deposit(&self) {
        let add = |saved: i64| (saved < SAVED_MAX * SHARE).then_some(saved + 1);
        // Full is as good.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether a second try can be paid for; if so, it is.
    pub(crate) fn withdraw(&self) -> bool {
        let take = |saved: i64| (saved >= SHARE).then_some(saved - SHARE);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p20_second_tries_are_a_tenth_of_all_requests_at_last() {
        let budget = Budget::default();
        let mut granted = 0;
        for _ in 0..10_000 {
            budget.deposit();
            granted += i64::from(budget.withdraw());
        }
        assert!(granted <= 10_000 / SHARE + SAVED_MAX, "{granted}");
        assert!(granted >= 10_000 / SHARE, "{granted}");
    }
}
