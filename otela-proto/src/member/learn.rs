//! Taking what others say: entries and accusations.

use super::{Member, Output};
use crate::{
    accusation::{Accusation, Charge, Verdict},
    clock::Now,
    entry::Entry,
    lifecycle::Lifecycle,
    registry::Learned,
    step::Parcel,
};
use libp2p_identity::PeerId;

impl Member {
    /// Takes an entry, from `from` or from ourselves.
    pub(super) fn learn_entry(&mut self, entry: &Entry, from: Option<PeerId>, now: Now, out: &mut Vec<Output>) {
        let owner = entry.owner();
        if owner == self.me && self.overtaken_by(entry, now, out) {
            return;
        }
        let before = self.registry.get(&owner).cloned();
        let accusations = self.registry.accusations(&owner);
        match self.registry.learn(entry.clone(), now.mono) {
            Learned::New => {
                self.liveness.unsettle(owner);
                if let Some(before) = &before {
                    self.liveness.refuted(&accusations, before, entry, now.mono);
                }
                if before.is_some_and(|before| before.rank().epoch != entry.rank().epoch) && owner != self.me {
                    self.gossip.echo(owner);
                }
                self.gossip.learned_entry(owner, from, now.mono);
                out.push(Output::Changed(owner));
            }
            Learned::Stale | Learned::UnknownSubject => {}
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

    /// Tells who still holds the entry of a session that has ended that it has: the entry that proves it is no longer
    /// kept, but our own word is a vote.
    fn testify(&self, entry: &Entry, to: PeerId, now: Now, out: &mut Vec<Output>) {
        let rank = entry.rank();
        let charge =
            Charge { subject: entry.owner(), epoch: rank.epoch, version: rank.version, verdict: Verdict::Evict };
        if rank.lifecycle != Lifecycle::Left
            && let Ok(accusation) = self.own.accuse(charge, now.wall_ms)
        {
            out.push(Output::Send { to, parcel: Parcel::Accusation(accusation) });
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
            Learned::UnknownSubject => out.push(Output::Refused { from, reason: "unknown_subject" }),
            Learned::Stale | Learned::Full | Learned::Buried | Learned::Backwards => {}
        }
    }
}
