//! Taking what others say: entries and accusations.

use super::{Member, Output};
use crate::{
    accusation::{Accusation, Charge, Verdict},
    admission::Rules,
    clock::Now,
    entry::Entry,
    lifecycle::Lifecycle,
    registry::Learned,
    step::Parcel,
};
use libp2p_identity::PeerId;
use std::time::Duration;

/// One peer is told of one that lies under a tombstone at most this often.
const TESTIFY_EVERY: Duration = Duration::from_secs(10);
/// Such testimonies that are remembered; with more within that time nobody is told.
const TESTIFIED_MAX: usize = 4_096;

impl Member {
    /// Takes an entry, from `from` or from ourselves.
    pub(super) fn learn_entry(&mut self, entry: &Entry, from: Option<PeerId>, now: Now, out: &mut Vec<Output>) {
        let owner = entry.owner();
        if owner == self.me && self.overtaken_by(entry, now, out) {
            return;
        }
        if owner != self.me
            && let Err(refused) = self.rules.judge_owner(&owner, entry, now.wall_ms)
        {
            out.push(Output::Refused { from, reason: refused.reason() });
            return;
        }
        let before = self.registry.get(&owner).cloned();
        let accusations = self.registry.accusations(&owner);
        match self.registry.learn(entry.clone(), now.mono) {
            Learned::New => {
                self.liveness.unsettle(owner);
                if let Some(before) = before.as_ref().filter(|before| entry.refutes(before)) {
                    self.liveness.refuted(&accusations, before, entry, now.mono);
                }
                if before.is_some_and(|before| before.rank().epoch != entry.rank().epoch) && owner != self.me {
                    self.gossip.echo(owner);
                }
                self.gossip.learned_entry(entry, from, now.mono);
                out.push(Output::Changed(owner));
            }
            Learned::Stale | Learned::UnknownSubject | Learned::UnknownAccuser => {}
            Learned::Full => out.push(Output::Refused { from, reason: "registry_full" }),
            Learned::Backwards => out.push(Output::Refused { from, reason: "backwards" }),
            Learned::Buried => {
                out.push(Output::Refused { from, reason: "departed" });
                if let Some(from) = from {
                    self.testify(entry, from, now, out);
                }
            }
        }
    }

    /// Takes whom the mesh admits now, and what shows that it admits this peer.
    pub(super) fn take_rules(&mut self, rules: Rules, membership: Vec<u8>, now: Now, out: &mut Vec<Output>) {
        if self.rules != rules {
            // Whose certificates count is part of what readers see.
            let owners = self.registry.entries().map(|entry| Output::Changed(entry.owner()));
            out.extend(owners.filter(|_| self.rules.revoked_keys != rules.revoked_keys));
            self.rules = rules;
            self.expel(now, out);
        }
        if self.own.membership() != membership {
            match self.own.set_membership(membership) {
                Ok(()) => self.publish_in_time(now, out),
                Err(refusal) => out.push(Output::Refused { from: None, reason: refusal.reason() }),
            }
        }
    }

    /// Lets go of what peers have said that are not admitted any more. They leave no tombstone: what they say counts again
    /// as soon as they are.
    pub(super) fn expel(&mut self, now: Now, out: &mut Vec<Output>) {
        if self.rules.authorities.is_empty() && self.rules.revoked_peers.is_empty() {
            return;
        }
        let is_out = |entry: &&Entry| {
            let owner = entry.owner();
            owner != self.me && self.rules.judge_owner(&owner, entry, now.wall_ms).is_err()
        };
        let expelled: Vec<_> = self.registry.entries().filter(is_out).map(Entry::owner).collect();
        for owner in expelled {
            for subject in self.registry.expel(&owner) {
                self.liveness.unsettle(subject);
                out.push(Output::Changed(subject));
            }
        }
    }

    /// Tells who still holds the entry of a session that has ended that it has: the entry that proves it is no longer
    /// kept, but our own word is a vote.
    fn testify(&mut self, entry: &Entry, to: PeerId, now: Now, out: &mut Vec<Output>) {
        let rank = entry.rank();
        if rank.lifecycle != Lifecycle::Left {
            let (subject, verdict) = (entry.owner(), Verdict::Evict);
            self.vote_towards(to, Charge { subject, epoch: rank.epoch, version: rank.version, verdict }, now, out);
        }
    }

    /// Sends our vote to one peer only, and about one subject not often.
    fn vote_towards(&mut self, to: PeerId, charge: Charge, now: Now, out: &mut Vec<Output>) {
        if self.settings.observes {
            return;
        }
        if self.testified.len() > TESTIFIED_MAX {
            self.testified.retain(|_, at| *at + TESTIFY_EVERY > now.mono);
        }
        let last = self.testified.get(&(to, charge.subject));
        if last.is_some_and(|at| *at + TESTIFY_EVERY > now.mono) || self.testified.len() > TESTIFIED_MAX {
            return;
        }
        self.testified.insert((to, charge.subject), now.mono);
        if let Ok(accusation) = self.own.accuse(charge, now.wall_ms) {
            out.push(Output::Send { to, parcel: Parcel::Accusation(accusation) });
        }
    }

    /// Who accuses one that lies under a tombstone here is right: our word is a vote, though for us the case is closed.
    fn second(&mut self, charge: &Charge, from: Option<PeerId>, now: Now, out: &mut Vec<Output>) {
        let buried = self.registry.buried(&charge.subject);
        let ended = buried.is_some_and(|rank| (charge.epoch, charge.version) <= (rank.epoch, rank.version));
        if let (true, Some(to)) = (ended, from) {
            self.vote_towards(to, Charge { verdict: Verdict::Evict, ..*charge }, now, out);
        }
    }

    /// Takes an accusation, from `from` or from ourselves.
    pub(super) fn learn_accusation(
        &mut self,
        accusation: &Accusation,
        from: Option<PeerId>,
        now: Now,
        out: &mut Vec<Output>,
        charges: &mut Vec<Charge>,
    ) {
        match self.registry.accuse(accusation.clone()) {
            Learned::New => {
                self.liveness.unsettle(accusation.charge().subject);
                self.gossip.learned_accusation(accusation, from, now.mono);
                self.detect(now, out, charges, |liveness, ctx| liveness.on_accusation(accusation, ctx));
                out.push(Output::Changed(accusation.charge().subject));
            }
            Learned::UnknownSubject => {
                out.push(Output::Refused { from, reason: "unknown_subject" });
                self.second(accusation.charge(), from, now, out);
            }
            Learned::UnknownAccuser => out.push(Output::Refused { from, reason: "unknown_accuser" }),
            Learned::Stale | Learned::Full | Learned::Buried | Learned::Backwards => {}
        }
    }
}
