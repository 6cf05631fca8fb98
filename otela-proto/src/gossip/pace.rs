//! How often one peer's word is passed on: one that publishes or accuses without end costs others a bounded rate.

use libp2p_identity::PeerId;
use std::{collections::BTreeMap, time::Duration};

/// Publications of one owner that are passed on at once.
pub(super) const ENTRIES: u32 = 8;
/// Accusations by one peer that are passed on at once; when half of a mesh is cut off, one jury has this many cases.
pub(super) const ACCUSATIONS: u32 = 64;
/// Beyond the burst, the newest one is passed on this often; so long is also the time until one more may come at once.
const EVERY: Duration = Duration::from_millis(500);

/// The pace of each peer that has said something lately.
#[derive(Debug)]
pub(super) struct Pace {
    burst: u32,
    /// Up to when each peer has used its allowance: a virtual time that each publication moves on.
    used: BTreeMap<PeerId, Duration>,
    later: BTreeMap<PeerId, Duration>,
}

impl Pace {
    pub(super) fn new(burst: u32) -> Self {
        Self { burst, used: BTreeMap::new(), later: BTreeMap::new() }
    }

    /// Whether a publication of `owner` goes at once. If not it goes when it is due, in its newest form.
    pub(super) fn admit(&mut self, owner: PeerId, now: Duration) -> bool {
        let at_once = self.spend(owner, now);
        if at_once {
            self.later.remove(&owner);
        } else {
            self.later.entry(owner).or_insert(now + EVERY);
        }
        at_once
    }

    /// Whether a word of `peer` goes at once. If not it is left to the comparison of replicas.
    pub(super) fn spend(&mut self, peer: PeerId, now: Duration) -> bool {
        if self.used.len() > 1_024 {
            self.used.retain(|_, used| *used > now);
        }
        let (used, most) = (self.used.entry(peer).or_insert(now), now + EVERY * self.burst);
        *used = (*used).max(now) + EVERY;
        let fits = *used <= most;
        *used = (*used).min(most);
        fits
    }

    /// When something is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.later.values().min().copied()
    }

    /// The owners whose newest entry is due.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<PeerId> {
        let due: Vec<_> = self.later.iter().filter(|(_, at)| **at <= now).map(|(owner, _)| *owner).collect();
        for owner in &due {
            self.later.remove(owner);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_owner_is_thinned_and_its_last_word_goes_out() {
        let (mut pace, owner) = (Pace::new(ENTRIES), PeerId::random());
        let mut passed = 0;
        for n in 0..10_000 {
            let now = Duration::from_millis(n);
            passed += pace.take_due(now).len();
            passed += usize::from(pace.admit(owner, now));
        }
        assert!((20..=8 + 20 + 1).contains(&passed), "{passed} in ten seconds");
        assert_eq!(pace.take_due(Duration::from_secs(11)), [owner]);
        assert!(pace.admit(owner, Duration::from_secs(60)), "forgiven");
    }
}
