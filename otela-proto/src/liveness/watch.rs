//! Asking: whom this peer probes and when, and what follows where no answer comes.

use super::{
    Ctx, Liveness,
    probes::{Purpose, Stage, Waiting},
    site,
};
use crate::{
    gossip::{say, successor},
    id::Place,
    lifecycle::Lifecycle,
    payload::Role,
    registry::Belief,
    step::Output,
    wire::{Ask, Probe, Report, Say},
};
use libp2p_identity::PeerId;
use rand::seq::IteratorRandom;
use std::time::Duration;

/// The ring successor is probed this often.
pub(super) const ROUND: Duration = Duration::from_secs(1);
/// An answer to a probe is waited for this long, or three round trips.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// The longest that a measured round trip stretches it to.
const ANSWER_WITHIN_MAX: Duration = Duration::from_secs(3);
/// A subject without a link has to be dialled first: four round trips or so.
const REACH_WITHIN: Duration = Duration::from_millis(500);
/// Helpers have this long to say what they have found out within [`REACH_WITHIN`].
const HELP_WITHIN: Duration = Duration::from_millis(150);
/// So long has an accuser waited in vain, at least, before it says so.
pub(super) const WAITED: Duration = ANSWER_WITHIN.saturating_add(REACH_WITHIN).saturating_add(HELP_WITHIN);
/// Helpers that are asked.
const HELPERS: usize = 3;
/// A neighbour that was heard within this time need not be asked.
const FRESH: Duration = Duration::from_secs(1);
/// Of so many links one is probed each second, beside the ring successor.
const LINKS_PER_PROBE: usize = 32;
/// With fewer links a plain node probes one in so many seconds; relays and ingresses, on which others hang, each
/// second. Every contact costs about five packets.
const ROUNDS_PER_PROBE: u64 = 4;
/// Probes in a row that only helpers' answers made up for, after which our connection is taken for dead.
const DETOURS_MAX: u32 = 3;
/// Peers without a link that could not be reached are asked after, so many in each round.
const STRAYS: usize = 2;
/// Own suspects that are asked again in each round.
const RECHECKS: usize = 4;
/// Questions of one peer that are worked on at once.
const ASKED_MAX: usize = 32;

impl Liveness {
    /// One round of probes.
    pub(super) fn watch(&mut self, ctx: &mut Ctx<'_>) {
        let lives = |peer: &PeerId| !matches!(self.beliefs.get(peer), Some(Belief::Suspect(_) | Belief::Evicted(_)));
        let next = successor(ctx.links.ring(), Place::of(&ctx.me), lives);
        let now = ctx.now.mono;
        let last_heard = |peer: &PeerId| {
            let since = ctx.links.get(peer).map_or(now, |link| link.since);
            self.heard.get(peer).copied().unwrap_or(since)
        };
        // Any traffic is an answer, so only the silent ones are asked; those that were silent longest first.
        let mut silent: Vec<(Duration, PeerId)> = ctx
            .links
            .peers()
            .filter(|peer| Some(**peer) != next && lives(peer))
            .map(|peer| (last_heard(peer), *peer))
            .filter(|(heard, _)| *heard + FRESH <= now)
            .collect();
        silent.sort_unstable();
        let many = ctx.links.len() / LINKS_PER_PROBE;
        let plain = ctx.settings.roles == [Role::Node];
        let turn = !plain || self.round.is_multiple_of(ROUNDS_PER_PROBE);
        let others = many.max(usize::from(turn));
        let chosen: Vec<_> = next.into_iter().chain(silent.into_iter().take(others).map(|(_, peer)| peer)).collect();
        for peer in chosen {
            if !self.probes.is_probing(&peer) {
                self.begin_watch(peer, ctx);
            }
        }
        let suspects: Vec<_> =
            self.suspicions.keys().filter(|peer| ctx.links.contains(peer)).take(RECHECKS).copied().collect();
        for peer in suspects {
            if !self.probes.is_probing(&peer) {
                self.begin(peer, Purpose::Recheck, ctx);
            }
        }
    }

    /// Asks after peers that could not be reached and that nobody here is linked to: nobody else may be watching them.
    pub(super) fn ask_after_strays(&mut self, ctx: &mut Ctx<'_>) {
        let strays = self.unreachable.keys().filter(|peer| {
            let present = ctx.registry.rank(peer).is_some_and(|rank| rank.lifecycle != Lifecycle::Left);
            let open = !matches!(self.beliefs.get(*peer), Some(Belief::Suspect(_) | Belief::Evicted(_)));
            present && open && !ctx.links.contains(peer) && !self.probes.is_probing(peer)
        });
        for peer in strays.copied().sample(ctx.rng, STRAYS) {
            self.begin_watch(peer, ctx);
        }
    }

    /// Probes `peer` to know whether it lives.
    pub(super) fn begin_watch(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        self.begin(peer, Purpose::Watch, ctx);
    }

    fn begin(&mut self, peer: PeerId, purpose: Purpose, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        let stretch = self.doubt.stretch(now);
        if ctx.links.contains(&peer) {
            let number = self.probes.begin(peer, purpose, now, answer_within(&peer, ctx) * stretch);
            ctx.out.push(say(peer, Say::Probe(Probe { number })));
        } else {
            self.probes.begin(peer, purpose, now, REACH_WITHIN * stretch);
            ctx.out.push(Output::Reach(peer));
        }
    }

    /// The time for a question is over.
    pub(super) fn expired(&mut self, number: u32, ctx: &mut Ctx<'_>) {
        let Some(waiting) = self.probes.end(number) else { return };
        match (&waiting.purpose, &waiting.stage) {
            (Purpose::Recheck, _) => {}
            (Purpose::Asked { by, number }, _) => {
                let report = Report { number: *number, alive: false };
                ctx.out.push(say(*by, Say::Report(report)));
            }
            (Purpose::Watch, Stage::Direct) => self.ask_helpers(&waiting, ctx),
            // That nobody answered at all says more of us than of the subject.
            (Purpose::Watch, Stage::Helpers { denied: 0, .. }) => {
                self.doubt.note(false);
                self.cannot_reach(waiting.subject, Duration::ZERO, ctx);
            }
            (Purpose::Watch, Stage::Helpers { .. }) => self.is_silent(waiting.subject, waiting.began, ctx),
        }
    }

    fn ask_helpers(&mut self, waiting: &Waiting, ctx: &mut Ctx<'_>) {
        let subject = waiting.subject;
        let helpers = self.helpers(&subject, ctx);
        if helpers.is_empty() {
            // With nobody else in the mesh, our word is all there is; otherwise it may be we who are cut off.
            if self.others_live(&subject, ctx) {
                self.doubt.note(false);
                self.cannot_reach(subject, Duration::ZERO, ctx);
            } else {
                self.is_silent(subject, waiting.began, ctx);
            }
            return;
        }
        let now = ctx.now.mono;
        let slowest = helpers.iter().map(|helper| answer_within(helper, ctx)).max().unwrap_or_default();
        let within = (slowest.max(REACH_WITHIN) + HELP_WITHIN) * self.doubt.stretch(now);
        let number = self.probes.begin(subject, Purpose::Watch, now, within);
        for helper in &helpers {
            ctx.out.push(say(*helper, Say::Ask(Ask { number, subject: subject.to_bytes() })));
        }
        if let Some(asked) = self.probes.get_mut(number) {
            asked.stage = Stage::Helpers { asked: helpers, denied: 0 };
            asked.began = waiting.began;
        }
    }

    /// Helpers on paths that fail apart: at the subject's site, at another one, and a relay. Where a kind is missing,
    /// any other neighbour stands in.
    fn helpers(&mut self, subject: &PeerId, ctx: &mut Ctx<'_>) -> Vec<PeerId> {
        let subjects_site = ctx.registry.get(subject).map(site::of);
        let candidates: Vec<PeerId> = ctx
            .links
            .peers()
            .filter(|peer| *peer != subject && !self.beliefs.contains_key(*peer) && !self.probes.is_probing(peer))
            .copied()
            .collect();
        let entry = |peer: &PeerId| ctx.registry.get(peer);
        let near = |peer: &&PeerId| entry(peer).map(site::of) == subjects_site;
        let far = |peer: &&PeerId| !near(peer);
        let relay = |peer: &&PeerId| entry(peer).is_some_and(|e| e.payload().has_role(Role::Relay));
        let mut helpers: Vec<PeerId> = Vec::with_capacity(HELPERS);
        let kinds: [&dyn Fn(&&PeerId) -> bool; 3] = [&near, &far, &relay];
        for kind in kinds {
            let fitting = candidates.iter().filter(|peer| !helpers.contains(peer)).filter(kind);
            // Of two, the one that was heard last: the more likely to be there.
            let pair = fitting.sample(ctx.rng, 2);
            helpers.extend(pair.into_iter().max_by_key(|peer| self.heard.get(*peer)));
        }
        let rest = candidates.iter().filter(|peer| !helpers.contains(peer)).sample(ctx.rng, HELPERS - helpers.len());
        helpers.extend(rest);
        helpers
    }

    /// Whether there is anybody beside us and `subject` who should be there.
    fn others_live(&self, subject: &PeerId, ctx: &Ctx<'_>) -> bool {
        ctx.registry.entries().any(|entry| {
            let peer = entry.owner();
            peer != *subject
                && peer != ctx.me
                && entry.rank().lifecycle != Lifecycle::Left
                && !matches!(self.beliefs.get(&peer), Some(Belief::Suspect(_) | Belief::Evicted(_)))
        })
    }

    /// Another peer wants to know whether `subject` answers us.
    pub(super) fn on_ask(&mut self, by: PeerId, number: u32, subject: PeerId, ctx: &mut Ctx<'_>) {
        if subject == ctx.me {
            ctx.out.push(say(by, Say::Report(Report { number, alive: true })));
        } else if self.probes.asked_by(&by) >= ASKED_MAX {
            ctx.out.push(Output::Refused { from: Some(by), reason: "too_many_questions" });
        } else if ctx.registry.buried(&subject).is_some() {
            ctx.out.push(say(by, Say::Report(Report { number, alive: false })));
        } else if ctx.registry.get(&subject).is_none() {
            // To say that it does not answer would be a testimony, and we have none to give.
            ctx.out.push(Output::Refused { from: Some(by), reason: "unknown_subject" });
        } else {
            self.begin(subject, Purpose::Asked { by, number }, ctx);
        }
    }

    /// A helper's answer.
    pub(super) fn on_report(&mut self, from: PeerId, report: Report, ctx: &mut Ctx<'_>) {
        let Some(waiting) = self.probes.get_mut(report.number) else { return };
        let (subject, began) = (waiting.subject, waiting.began);
        let Stage::Helpers { asked, denied } = &mut waiting.stage else { return };
        let Some(at) = asked.iter().position(|helper| *helper == from) else { return };
        if report.alive {
            // The subject lives; what failed is our path to it.
            self.probes.end(report.number);
            self.doubt.note(false);
            let detours = self.detours.entry(subject).or_insert(0);
            *detours += 1;
            if *detours >= DETOURS_MAX && ctx.links.contains(&subject) {
                self.detours.remove(&subject);
                ctx.out.push(Output::Close(subject));
            }
            return;
        }
        asked.swap_remove(at);
        *denied += 1;
        if asked.is_empty() {
            self.probes.end(report.number);
            self.is_silent(subject, began, ctx);
        }
    }
}

fn answer_within(peer: &PeerId, ctx: &Ctx<'_>) -> Duration {
    let rtt = ctx.links.get(peer).and_then(|link| link.rtt).unwrap_or_default();
    (rtt * 3).clamp(ANSWER_WITHIN, ANSWER_WITHIN_MAX)
}
