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
/// After a sleep of the shortest grace or more, whatever is said against us is what was agreed meanwhile, and not all of
/// it may be here: it is waited for this long, and then one vote to evict us is as good as a quorum.
const NEWS_WITHIN: Duration = Duration::from_secs(3);
/// So long after waking an accusation counts as what came of the sleep.
const NEWS_FOR: Duration = Duration::from_secs(30);
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
    /// When we woke from a sleep that was long enough to be evicted in.
    woke_at: Option<Duration>,
}

impl Defence {
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.next
    }

    /// We have just woken from a long sleep.
    pub(super) fn woke(&mut self, now: Duration) {
        self.woke_at = Some(now);
    }

    /// After a long sleep: until when nothing new is said of ourselves. It would count as an answer to what we have not
    /// heard yet, and keep a session that everybody has given up.
    pub(super) fn is_silent_until(&self, now: Duration) -> Option<Duration> {
        // The answer itself, which may be a new session, comes first.
        let after = Duration::from_millis(100);
        self.woke_at.map(|woke| woke + NEWS_WITHIN + after).filter(|until| *until > now)
    }

    /// Until when more is waited for that is said against us, before an answer.
    fn wait(&mut self, has_votes: bool, now: Duration) -> Option<Duration> {
        let news = self.woke_at.map(|woke| woke + NEWS_WITHIN);
        let votes = has_votes.then(|| *self.voted_since.get_or_insert(now) + VOTES_WITHIN);
        news.max(votes).filter(|until| *until > now)
    }

    fn has_slept(&self, now: Duration) -> bool {
        self.woke_at.is_some_and(|woke| woke + NEWS_FOR > now)
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
        let has_votes = accusations.iter().any(|a| a.charge().verdict == Verdict::Evict);
        if case != Case::Evicted
            && let Some(until) = self.defence.wait(has_votes, now.mono)
        {
            self.defence.next = Some(until);
            return;
        }
        let case = if has_votes && self.defence.has_slept(now.mono) { Case::Evicted } else { case };
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
            self.defence.woke_at = None;
            let seen = self.own.session().epoch;
            self.own.renew_session(seen, now.wall_ms);
            out.push(Output::NewSession(NewSession::Evicted));
        }
        self.publish(now, out);
    }

    /// Whether `entry`, which is ours by its signature, is not of this run. The first time it may be from an earlier
    /// life, which our clock now lies behind; so this run goes above it. Again, and somebody answers: another process
    /// uses our key. The run of the lower epoch is overtaken first, which as a rule is the older one; it stops.
    pub(super) fn overtaken_by(&mut self, entry: &Entry, now: Now, out: &mut Vec<Output>) -> bool {
        let (theirs, ours) = (entry.rank(), self.own.rank());
        let known = self.registry.get(&self.me).map(Entry::id);
        if theirs < ours || theirs == ours && known == Some(entry.id()) || self.stopped {
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
