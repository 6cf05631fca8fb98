//! What was refused at the door: counted by reason, said in the log now and then, kept for `otela status`.

use crate::{peer::defaults::REFUSED_LOG_EVERY, telemetry::Metrics};
use libp2p::{Multiaddr, PeerId};
use otela_proto::admission::Refused;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Who refuses whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::peer) enum By {
    /// We refuse a peer.
    Us,
    /// A peer refuses us.
    Them,
}

impl By {
    /// As a metric label.
    pub(in crate::peer) const fn name(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::Them => "them",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    by: &'static str,
    reason: &'static str,
}

#[derive(Debug)]
struct Refusals {
    count: u64,
    last: Instant,
    logged: Option<(Instant, u64)>,
}

/// What was refused. Clones share it.
#[derive(Debug, Clone, Default)]
pub(in crate::peer) struct Tally {
    admitted: Counter,
    refused: Family<Label, Counter>,
    reloads_failed: Counter,
    broken_off: Counter,
    kept: Arc<Mutex<BTreeMap<(By, Refused), Refusals>>>,
}

impl Tally {
    pub(in crate::peer) fn register(metrics: &Metrics) -> Self {
        let tally = Self::default();
        metrics.register(|r| {
            r.register("otela_admission_admitted", "Connections let in", tally.admitted.clone());
            r.register(
                "otela_admission_refused",
                "Connections refused by us, or ours by others, by reason",
                tally.refused.clone(),
            );
            let broken_off = tally.broken_off.clone();
            r.register("otela_admission_broken_off", "Handshakes that ended without a verdict", broken_off);
            let failed = tally.reloads_failed.clone();
            r.register("otela_admission_mesh_file_errors", "Changes of the mesh file that cannot be used", failed);
        });
        tally
    }

    pub(super) fn admitted(&self) {
        self.admitted.inc();
    }

    pub(super) fn broken_off(&self) {
        self.broken_off.inc();
    }

    pub(super) fn reload_failed(&self) {
        self.reloads_failed.inc();
    }

    #[cfg(test)]
    pub(super) fn reloads_failed(&self) -> u64 {
        self.reloads_failed.get()
    }

    /// Counts a refusal. Of each reason one line a minute is logged: whoever knocks without end must not flood the log.
    pub(in crate::peer) fn refused(&self, by: By, refused: Refused, peer: &PeerId, address: Option<&Multiaddr>) {
        self.refused.get_or_create(&Label { by: by.name(), reason: refused.reason() }).inc();
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kept.entry((by, refused)).or_insert(Refusals { count: 0, last: now, logged: None });
        entry.count += 1;
        entry.last = now;
        if entry.logged.is_some_and(|(at, _)| now - at < REFUSED_LOG_EVERY) {
            return;
        }
        let count = entry.count - entry.logged.map_or(0, |(_, count)| count);
        entry.logged = Some((now, entry.count));
        let (reason, address) = (refused.reason(), address.map(ToString::to_string));
        match by {
            By::Us => tracing::warn!(%peer, address, reason, count, "refused a peer: {refused}"),
            By::Them => tracing::warn!(%peer, address, reason, count, "refused by a peer: {refused}"),
        }
    }

    /// What was refused since the start: by whom, why, how often.
    pub(in crate::peer) fn all(&self) -> Vec<(By, Refused, u64)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|((by, refused), refusals)| (*by, *refused, refusals.count)).collect()
    }

    /// Why others have refused us within this time, the latest first.
    pub(in crate::peer) fn refuses_us(&self, within: Duration) -> Vec<Refused> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = kept.iter().filter(|((by, _), refusals)| *by == By::Them && refusals.last.elapsed() <= within);
        let mut recent: Vec<_> = recent.map(|((_, refused), refusals)| (refusals.last, *refused)).collect();
        recent.sort_unstable_by_key(|(last, _)| std::cmp::Reverse(*last));
        recent.into_iter().map(|(_, refused)| refused).collect()
    }
}
