//! What is said now and then: of bootstraps that do not answer, with what stood in every way that was tried, and of
//! what happens without end.

use crate::peer::defaults::COMPLAIN_EVERY;
use std::collections::HashMap;
use tokio::time::Instant;

/// What is said once in a while, however often it happens.
#[derive(Debug, Default)]
pub(super) struct Said(HashMap<&'static str, Instant>);

impl Said {
    /// Whether it is time to say `what`.
    pub(super) fn is_due(&mut self, what: &'static str, now: Instant) -> bool {
        let is_due = self.0.get(what).is_none_or(|said| now - *said >= COMPLAIN_EVERY);
        if is_due {
            self.0.insert(what, now);
        }
        is_due
    }
}

/// Complaints of bootstraps, by their number.
#[derive(Debug, Default)]
pub(super) struct Complaints(HashMap<usize, Complaint>);

#[derive(Debug, Default)]
struct Complaint {
    /// What has failed since the bootstrap was last given up or reached.
    errors: Vec<String>,
    said: Option<Instant>,
}

impl Complaints {
    /// One way to a bootstrap has failed, and perhaps that was all. Returns what stands in all of them, and whether it is
    /// time to say so.
    pub(super) fn failed(&mut self, n: usize, error: String, all: bool, now: Instant) -> Option<(String, bool)> {
        let complaint = self.0.entry(n).or_default();
        if !complaint.errors.contains(&error) {
            complaint.errors.push(error);
        }
        if !all {
            return None;
        }
        let errors = std::mem::take(&mut complaint.errors).join("; ");
        let is_due = complaint.said.is_none_or(|said| now - said >= COMPLAIN_EVERY);
        if is_due {
            complaint.said = Some(now);
        }
        Some((errors, is_due))
    }

    /// It was reached.
    pub(super) fn reached(&mut self, n: usize) {
        if let Some(complaint) = self.0.get_mut(&n) {
            complaint.errors.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_all_the_time_is_said_now_and_then() {
        let (mut said, now) = (Said::default(), Instant::now());
        assert!(said.is_due("a", now) && !said.is_due("a", now + COMPLAIN_EVERY / 2) && said.is_due("b", now));
        assert!(said.is_due("a", now + COMPLAIN_EVERY));
    }

    #[test]
    fn every_way_is_told_and_not_all_the_time() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let mut failed = |n, error: &str, all, at| complaints.failed(n, error.to_owned(), all, at);
        assert_eq!(failed(0, "tcp", false, now), None);
        assert_eq!(failed(1, "other", true, now), Some(("other".to_owned(), true)));
        assert_eq!(failed(0, "proxy", true, now), Some(("tcp; proxy".to_owned(), true)));
        assert_eq!(failed(0, "again", true, now + COMPLAIN_EVERY / 2), Some(("again".to_owned(), false)));
        assert_eq!(failed(0, "later", false, now + COMPLAIN_EVERY), None);
        complaints.reached(0);
        let last = complaints.failed(0, "last".into(), true, now + COMPLAIN_EVERY);
        assert_eq!(last, Some(("last".to_owned(), true)));
    }
}
