//! What this peer concludes from accusations and from what it has seen itself.

use super::{Ctx, Liveness, credit::Alone};
use crate::{
    accusation::{Accusation, Verdict},
    lifecycle::Lifecycle,
    registry::{Belief, Registry},
};
use libp2p_identity::PeerId;
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Most votes that an eviction takes.
const QUORUM_MAX: usize = 3;
/// Where no more than so many live, the quorum may depend on who else is suspected.
const SMALL: usize = 2 * QUORUM_MAX;

impl Liveness {
    /// What is believed of everybody of whom not only good is believed.
    pub(crate) fn beliefs(&self) -> &HashMap<PeerId, Belief> {
        &self.beliefs
    }

    /// What is believed of `peer`.
    pub(crate) fn belief(&self, peer: &PeerId) -> Belief {
        self.beliefs.get(peer).copied().unwrap_or_default()
    }

    /// Draws the conclusions anew where there is reason to. Returns whose belief has changed.
    pub(crate) fn conclude(&mut self, ctx: &Ctx<'_>) -> Vec<PeerId> {
        let mut open = std::mem::take(&mut self.unsettled);
        let mut changed = BTreeSet::new();
        let alone = if open.is_empty() { Alone::default() } else { Alone::count(ctx.registry) };
        while !open.is_empty() {
            let mut moved = false;
            for peer in open.iter().filter(|peer| **peer != ctx.me) {
                let (old, new) = (self.belief(peer), self.conclusion(peer, &alone, ctx));
                if old == new {
                    continue;
                }
                self.believe(*peer, old, new, ctx.registry);
                moved |= old.name() != new.name();
                changed.insert(*peer);
            }
            // In a small mesh a suspect more makes the quorum smaller for the others: on until nothing moves.
            let small = self.living_others(&ctx.me, ctx.registry) <= SMALL;
            open =
                if moved && small { ctx.registry.accused().map(|(peer, _)| *peer).collect() } else { BTreeSet::new() };
        }
        changed.into_iter().collect()
    }

    /// The registry counts those who were evicted by [`Self::conclude`] among the departed now.
    pub(crate) fn concluded(&mut self) {
        self.leaving = 0;
    }

    fn believe(&mut self, peer: PeerId, old: Belief, new: Belief, registry: &Registry) {
        match new {
            Belief::Alive => self.beliefs.remove(&peer),
            _ => self.beliefs.insert(peer, new),
        };
        self.suspects += usize::from(matches!(new, Belief::Suspect(_)));
        self.suspects -= usize::from(matches!(old, Belief::Suspect(_)));
        if let (Belief::Evicted(_), Some(rank)) = (new, registry.rank(&peer)) {
            self.leaving += usize::from(!registry.has_departed(&peer));
            self.evicted.insert(peer, (rank.epoch, rank.version));
        }
    }

    fn conclusion(&self, peer: &PeerId, alone: &Alone, ctx: &Ctx<'_>) -> Belief {
        let Some(rank) = ctx.registry.rank(peer) else { return Belief::Alive };
        let accusations = ctx.registry.accusations(peer);
        let old = self.belief(peer);
        let now = ctx.now.mono;
        if rank.lifecycle == Lifecycle::Left {
            return Belief::Alive;
        }
        if self.votes(&accusations, ctx.registry) >= self.quorum(peer, ctx.registry) {
            return if matches!(old, Belief::Evicted(_)) { old } else { Belief::Evicted(now) };
        }
        // Decided by few when few were left: it stays so when more come back and ask for more votes, until they have
        // voted, or until we hear from the peer itself.
        if let Belief::Evicted(since) = old
            && self.evicted.get(peer) == Some(&(rank.epoch, rank.version))
            && self.heard.get(peer).is_none_or(|at| *at < since)
        {
            return old;
        }
        let suspect_since = self.suspect_since(peer, &accusations, alone, ctx);
        if let Some(since) = suspect_since {
            return if matches!(old, Belief::Suspect(_)) { old } else { Belief::Suspect(since) };
        }
        match self.unreachable.get(peer) {
            Some(unreachable) => Belief::Unreachable(unreachable.since),
            None => Belief::Alive,
        }
    }

    /// Since when `peer` is to be taken for a suspect: by our own finding, or by the word of one who is believed, or
    /// of two. Our own ears count for more than others' words.
    fn suspect_since(
        &self,
        peer: &PeerId,
        accusations: &[Accusation],
        alone: &Alone,
        ctx: &Ctx<'_>,
    ) -> Option<Duration> {
        if let Some(suspicion) = self.suspicions.get(peer) {
            return Some(suspicion.since);
        }
        let (_, _, since) = *self.accused_at.get(peer)?;
        let heard_since = self.heard.get(peer).is_some_and(|at| *at >= since);
        let others = accusations.iter().filter(|a| a.accuser() != ctx.me);
        let (many, good) = others.fold((0, false), |(many, good), accusation| {
            (many + 1, good || self.credit.is_good(&accusation.accuser(), alone, ctx.now.mono))
        });
        (!heard_since && (many >= 2 || good)).then_some(since)
    }

    /// Whether there are votes enough to evict `peer`, as the mesh is now.
    pub(super) fn is_decided(&self, peer: &PeerId, registry: &Registry) -> bool {
        matches!(self.beliefs.get(peer), Some(Belief::Evicted(_)))
            && self.votes(&registry.accusations(peer), registry) >= self.quorum(peer, registry)
    }

    /// Votes to evict by peers that we know of.
    fn votes(&self, accusations: &[Accusation], registry: &Registry) -> usize {
        let votes = accusations.iter().filter(|accusation| accusation.charge().verdict == Verdict::Evict);
        votes.filter(|vote| registry.get(&vote.accuser()).is_some()).count()
    }

    /// How many votes evict `subject`: three, or the majority of the living others where they are fewer than five.
    fn quorum(&self, subject: &PeerId, registry: &Registry) -> usize {
        QUORUM_MAX.min(self.living_others(subject, registry) / 2 + 1)
    }

    /// Number of peers other than `subject` that seem to live.
    fn living_others(&self, subject: &PeerId, registry: &Registry) -> usize {
        let subject_counts = usize::from(!registry.has_departed(subject));
        // Who was evicted a moment ago is not counted among the departed yet.
        let counted = usize::from(match self.beliefs.get(subject) {
            Some(Belief::Suspect(_)) => true,
            Some(Belief::Evicted(_)) => !registry.has_departed(subject),
            _ => false,
        });
        let gone = (self.suspects + self.leaving).saturating_sub(counted);
        (registry.len() - registry.departed()).saturating_sub(gone + subject_counts)
    }

    /// What stands against ourselves.
    pub(crate) fn case_against_me(&self, ctx: &Ctx<'_>) -> Option<Case> {
        let accusations = ctx.registry.accusations(&ctx.me);
        if accusations.is_empty() {
            return None;
        }
        if self.votes(&accusations, ctx.registry) >= self.quorum(&ctx.me, ctx.registry) {
            return Some(Case::Evicted);
        }
        let alone = Alone::count(ctx.registry);
        let good = accusations.iter().any(|a| self.credit.is_good(&a.accuser(), &alone, ctx.now.mono));
        Some(if good || accusations.len() > 1 { Case::Accused } else { Case::Slandered })
    }
}

/// What others say of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// A quorum has evicted this session.
    Evicted,
    /// Accused by somebody whom others believe.
    Accused,
    /// Accused by one whom nobody believes alone.
    Slandered,
}
