//! What is said of bootstraps that do not answer: a line now and then, with what stood in every way that was tried.

use crate::peer::defaults::COMPLAIN_EVERY;
use std::collections::HashMap;
use tokio::time::Instant;

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
    /// One way to a bootstrap has failed, and perhaps that was all. Returns what is to be said, if it is time to.
    pub(super) fn failed(&mut self, n: usize, error: String, all: bool, now: Instant) -> Option<String> {
        let complaint = self.0.entry(n).or_default();
        if !complaint.errors.contains(&error) {
            complaint.errors.push(error);
        }
        if !all {
            return None;
        }
        let errors = std::mem::take(&mut complaint.errors).join("; ");
        let is_due = complaint.said.is_none_or(|said| now - said >= COMPLAIN_EVERY);
        is_due.then(|| {
            complaint.said = Some(now);
            errors
        })
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
    fn every_way_is_told_and_not_all_the_time() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let mut failed = |n, error: &str, all, at| complaints.failed(n, error.to_owned(), all, at);
        assert_eq!(failed(0, "tcp", false, now), None);
        assert_eq!(failed(1, "other", true, now).as_deref(), Some("other"));
        assert_eq!(failed(0, "proxy", true, now).as_deref(), Some("tcp; proxy"));
        assert_eq!(failed(0, "again", true, now + COMPLAIN_EVERY / 2), None);
        assert_eq!(failed(0, "later", false, now + COMPLAIN_EVERY), None);
        complaints.reached(0);
        assert_eq!(complaints.failed(0, "last".into(), true, now + COMPLAIN_EVERY).as_deref(), Some("last"));
    }
}
