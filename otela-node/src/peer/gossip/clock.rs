//! The wall clock of this machine against its neighbours'.

use super::Driver;
use crate::peer::defaults::{SKEW_WARN, SKEW_WARN_EVERY};
use otela_proto::entry::CLOCK_SLACK;
use std::time::Duration;
use tokio::time::Instant;

impl Driver {
    /// With a clock that makes us refuse what others say, we know nothing of them.
    pub(super) fn clock_holds(&self) -> bool {
        self.skew.is_none_or(|skew| skew <= CLOCK_SLACK)
    }

    /// A wall clock that is far off makes others refuse what we say, or us what they say.
    pub(super) fn watch_clock(&mut self) {
        let skew_ms = self.core.links().skew_ms();
        self.published.skew_ms.send_replace(skew_ms);
        self.metrics.skew_s.set(skew_ms.unwrap_or(0) as f64 / 1e3);
        self.skew = skew_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let off = self.skew.is_some_and(|skew| skew > SKEW_WARN);
        if off && self.skew_warned.is_none_or(|at| at.elapsed() > SKEW_WARN_EVERY) {
            self.skew_warned = Some(Instant::now());
            let ahead_s = skew_ms.unwrap_or(0) / -1000;
            tracing::warn!(ahead_s, "this machine's wall clock disagrees with its neighbours': set it (NTP)");
        }
    }
}
