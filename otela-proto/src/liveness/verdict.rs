//! Accusing: when this peer signs against another one, and when it looks for itself.

use super::{Ctx, Liveness, Suspicion, site, watch};
use crate::{
    accusation::{Accusation, Charge, Verdict},
    entry::Entry,
    id::Place,
    lifecycle::Lifecycle,
};
use libp2p_identity::PeerId;
use rand::RngExt;
use std::time::Duration;

/// So many peers nearest to an accused one on the ring look for themselves at once; as many more after each grace
/// period, until there is a quorum or a refutation.
const JURY: u32 = 5;
/// Positions beyond this are as far as any.
const JURY_MAX: u32 = 8 * JURY;
/// Jurors spread their questions over this time.
const JURY_SPREAD_MS: u64 = 50;
/// Undecided cases that are taken up again in each round.
const LOOKS_AGAIN: usize = 4;
/// In doubt a vote is put off by this much.
const PUT_OFF: Duration = Duration::from_secs(1);

impl Liveness {
    /// `subject` has answered nobody since `began`.
    pub(super) fn is_silent(&mut self, subject: PeerId, began: Duration, ctx: &mut Ctx<'_>) {
        self.cannot_reach(subject, Duration::ZERO, ctx);
        let Some(entry) = ctx.registry.get(&subject) else { return };
        let rank = entry.rank();
        let charge = Charge { subject, epoch: rank.epoch, version: rank.version, verdict: Verdict::Suspect };
        let stands = self.suspicions.get(&subject).is_some_and(|s| s.charge == charge);
        if rank.lifecycle == Lifecycle::Left || stands || self.doubt.doubts(ctx.now.mono) {
            return;
        }
        // The grace counts from the first question in vain: ours, or that of the accuser who made us look.
        let accused = self.accused_at.get(&subject).filter(|(e, v, _)| (*e, *v) == (rank.epoch, rank.version));
        let asked = accused.map_or(began, |(_, _, at)| began.min(at.saturating_sub(watch::WAITED)));
        let vote_at = asked + grace(entry, ctx);
        self.suspicions.insert(subject, Suspicion { charge, since: ctx.now.mono, vote_at, voted: false });
        ctx.charges.push(charge);
    }

    /// Votes to evict whom we suspect and who stayed silent for the grace period.
    pub(super) fn vote_due(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        let doubts = self.doubt.doubts(now);
        for suspicion in self.suspicions.values_mut().filter(|s| !s.voted && s.vote_at <= now) {
            if doubts {
                suspicion.vote_at = now + PUT_OFF;
                continue;
            }
            suspicion.voted = true;
            ctx.charges.push(Charge { verdict: Verdict::Evict, ..suspicion.charge });
        }
    }

    /// Others accuse a peer: we may have to look for ourselves.
    pub(crate) fn on_accusation(&mut self, accusation: &Accusation, ctx: &mut Ctx<'_>) {
        let Charge { subject, epoch, version, .. } = *accusation.charge();
        let now = ctx.now.mono;
        let (known_epoch, known_version, _) = *self.accused_at.entry(subject).or_insert((epoch, version, now));
        if (known_epoch, known_version) != (epoch, version) {
            self.accused_at.insert(subject, (epoch, version, now));
        }
        let already = self.suspicions.contains_key(&subject) || self.checks.contains_key(&subject);
        if subject == ctx.me || accusation.accuser() == ctx.me || already || self.probes.is_probing(&subject) {
            return;
        }
        self.summon(subject, ctx);
    }

    /// Notes when it is our turn to look at `subject`.
    fn summon(&mut self, subject: PeerId, ctx: &mut Ctx<'_>) {
        let Some(entry) = ctx.registry.get(&subject) else { return };
        let turn = self.jury_position(&subject, ctx) / JURY;
        let spread = Duration::from_millis(ctx.rng.random_range(0..JURY_SPREAD_MS));
        self.checks.insert(subject, ctx.now.mono + spread + grace(entry, ctx) * turn);
    }

    /// Some of `accused`, of whom nothing is decided though their grace is over, are looked at once more: who has
    /// looked already may be gone, or have looked when the case seemed decided.
    pub(super) fn look_again(&mut self, accused: &[PeerId], ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        let overdue = accused.iter().filter(|subject| {
            let since = self.accused_at.get(*subject).map_or(now, |(_, _, since)| *since);
            let grace = ctx.registry.get(subject).map_or(Duration::MAX, |entry| grace(entry, ctx));
            let idle = !self.suspicions.contains_key(*subject)
                && !self.checks.contains_key(*subject)
                && !self.probes.is_probing(subject);
            let believed = self.beliefs.contains_key(*subject);
            **subject != ctx.me && idle && believed && since.saturating_add(grace) <= now
        });
        let overdue: Vec<_> = overdue.copied().take(LOOKS_AGAIN).collect();
        for subject in overdue {
            self.summon(subject, ctx);
        }
    }

    /// Looks at whom others accuse.
    pub(super) fn check_due(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        let due: Vec<_> = self.checks.iter().filter(|(_, at)| **at <= now).map(|(peer, _)| *peer).collect();
        for subject in due {
            self.checks.remove(&subject);
            let decided = self.is_decided(&subject, ctx.registry);
            let accused = !ctx.registry.accusations(&subject).is_empty();
            if accused && !decided && !self.suspicions.contains_key(&subject) && !self.probes.is_probing(&subject) {
                self.begin_watch(subject, ctx);
            }
        }
    }

    /// How many living peers stand nearer to `subject` on the ring than we do.
    fn jury_position(&self, subject: &PeerId, ctx: &Ctx<'_>) -> u32 {
        let (ring, place) = (ctx.registry.ring(), Place::of(subject));
        let lives = |peer: &&PeerId| {
            let present = ctx.registry.rank(peer).is_some_and(|rank| rank.lifecycle != Lifecycle::Left);
            **peer != *subject && present && !self.beliefs.contains_key(*peer)
        };
        let mut after = ring.range(place..).chain(ring.range(..place)).map(|(_, peer)| peer).filter(lives);
        let mut before = ring.range(..place).rev().chain(ring.range(place..).rev()).map(|(_, peer)| peer).filter(lives);
        for position in (0..JURY_MAX).step_by(2) {
            for (nearer, side) in [(0, after.next()), (1, before.next())] {
                if side == Some(&ctx.me) {
                    return position + nearer;
                }
            }
        }
        JURY_MAX
    }

    /// The owner of `before` has published `after`: what was said against it is refuted.
    pub(crate) fn refuted(&mut self, accusations: &[Accusation], before: &Entry, after: &Entry, now: Duration) {
        let owner = after.owner();
        self.suspicions.remove(&owner);
        self.checks.remove(&owner);
        self.accused_at.remove(&owner);
        let lives = after.rank().lifecycle != Lifecycle::Left && after.rank().epoch == before.rank().epoch;
        for accusation in accusations.iter().filter(|_| lives) {
            self.credit.refuted(accusation.accuser(), now);
        }
        if after.rank().epoch > before.rank().epoch {
            // Another run, perhaps at another place: what we found out of the old one says nothing of it.
            self.unreachable.remove(&owner);
        }
    }
}

/// How long `entry`'s owner has to answer before we vote against it.
fn grace(entry: &Entry, ctx: &Ctx<'_>) -> Duration {
    let ours = ctx.registry.get(&ctx.me).map(site::of);
    let near = ours == Some(site::of(entry));
    if near { ctx.settings.grace_near } else { ctx.settings.grace_far }
}
