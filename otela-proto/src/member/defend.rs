//! Keeping one's own session alive: refuting accusations, coming back after an eviction, noticing a twin.

use super::{Member, NewSession, Output};
use crate::{accusation::Verdict, clock::Now, entry::Entry, lifecycle::Lifecycle, liveness::Case};
use std::time::Duration;

/// An accusation is refuted at once, but not more often than this.
const REFUTE_EVERY: Duration = Duration::from_millis(500);
/// The word of one whom nobody believes is refuted no more often than this.
const REFUTE_SLANDER_EVERY: Duration = Duration::from_mins(10);
/// Where somebody votes to evict us, the other votes are on their way: they are waited for this long, so that we know
/// whether to refute or to begin anew.
const VOTES_WITHIN: Duration = Duration::from_millis(300);
/// A new session after an eviction begins at once, but not more often than this.
const REJOIN_EVERY: Duration = Duration::from_secs(1);
/// For how long it counts that another process used our key.
const TWIN_WITHIN: Duration = Duration::from_mins(10);

/// What has been done to defend this peer's session.
#[derive(Debug, Default)]
pub(super) struct Defence {
    last: Option<Duration>,
    /// When the next answer is due.
    next: Option<Duration>,
    /// Since when there are votes against us, though not enough.
    voted_since: Option<Duration>,
    overtaken_at: Option<Duration>,
}

impl Defence {
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.next
    }
}

impl Member {
    /// Answers what others say against us: by a new version, or by a new session where this one is lost.
    pub(super) fn defend(&mut self, now: Now, out: &mut Vec<Output>) {
        self.defence.next = None;
        if self.stopped || self.own.announced().lifecycle == Lifecycle::Left {
            return;
        }
        let Some(case) = self.detect(now, out, &mut Vec::new(), |liveness, ctx| liveness.case_against_me(ctx)) else {
            self.defence.voted_since = None;
            return;
        };
        let accusations = self.registry.accusations(&self.me);
        if case == Case::Accused && accusations.iter().any(|a| a.charge().verdict == Verdict::Evict) {
            let until = *self.defence.voted_since.get_or_insert(now.mono) + VOTES_WITHIN;
            if until > now.mono {
                self.defence.next = Some(until);
                return;
            }
        }
        let pause = match case {
            Case::Evicted => REJOIN_EVERY,
            Case::Accused => REFUTE_EVERY,
            Case::Slandered => REFUTE_SLANDER_EVERY,
        };
        if let Some(next) = self.defence.last.map(|last| last + pause).filter(|next| *next > now.mono) {
            self.defence.next = Some(next);
            return;
        }
        self.defence.last = Some(now.mono);
        if case == Case::Evicted {
            let seen = self.own.session().epoch;
            self.own.renew_session(seen, now.wall_ms);
            out.push(Output::NewSession(NewSession::Evicted));
        }
        self.publish(now, out);
    }

    /// Whether `entry`, which is ours by its signature, is not of this run. The first time it may be from an earlier
    /// life, which our clock now lies behind; so this run goes above it. Again, and somebody answers: another process
    /// uses our key. The run that was overtaken first is the older one; it stops.
    pub(super) fn overtaken_by(&mut self, entry: &Entry, now: Now, out: &mut Vec<Output>) -> bool {
        let (theirs, ours) = (entry.rank(), self.own.rank());
        let known = self.registry.get(&self.me).map(Entry::hash);
        if theirs < ours || theirs == ours && known == Some(entry.hash()) || self.stopped {
            return false;
        }
        let again = self.defence.overtaken_at.is_some_and(|at| at + TWIN_WITHIN > now.mono);
        self.defence.overtaken_at = Some(now.mono);
        if again {
            self.stopped = true;
            // The twin's word stands from now on.
            self.registry.learn(entry.clone(), now.mono);
            out.extend([Output::Changed(self.me), Output::Twin]);
            return true;
        }
        self.own.renew_session(theirs.epoch, now.wall_ms);
        out.push(Output::NewSession(NewSession::Overtaken));
        self.publish(now, out);
        true
    }
}
