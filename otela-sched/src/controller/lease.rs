//! Which of several schedulers acts: a lease that is kept in the registry of the mesh.
//!
//! Only schedulers that the same nodes name have anything to do with each other. One that sees no living claim makes one, under a generation above all that it has heard of, waits until that
//! has gone round, and acts if it is still the first. One whose claim is behind another's stops at once. Two that do not see
//! each other may both act for a while; nodes tell them apart by their generations, and never go back to the lower one.

use otela_proto::{
    PeerId,
    assignment::{Standing, standing},
    registry::{Belief, Node, View},
};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

/// By then everybody has heard of a claim, and whoever has a higher one has been heard.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Generations grow by one with each takeover; whoever tells of more than this lies.
const GENERATION_MAX: u64 = u64::MAX >> 16;

/// The claim of one scheduler.
#[derive(Debug)]
pub(super) struct Lease {
    me: PeerId,
    /// Its generation, and since when.
    mine: Option<(u64, Instant)>,
}

/// What a scheduler may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Act, under this generation.
    Act(u64),
    /// Wait until its claim has gone round.
    Settle(u64),
    /// Leave it to this one.
    Watch(PeerId),
}

impl Lease {
    pub(super) fn new(me: PeerId) -> Self {
        Self { me, mine: None }
    }

    /// Whose turn it is, as `view` shows it. `kept` is the generation of the last plan that is on the disk.
    pub(super) fn look(&mut self, view: &View, kept: u64) -> Turn {
        let rivals = self.rivals(view);
        let nodes = || view.nodes().filter(|(peer, _)| **peer != self.me);
        let alive = nodes().filter(|(_, node)| node.is_listed() && node.belief == Belief::Alive);
        let claim = |(peer, node): (&PeerId, &Node)| Some((*peer, node.entry.payload().claim?.generation));
        let is_rival = |(peer, _): &(PeerId, u64)| rivals.contains(peer);
        let others: Vec<_> = alive.filter_map(claim).filter(is_rival).collect();
        let claimed = nodes().filter_map(claim).filter(is_rival).map(|(_, generation)| generation);
        let told = nodes()
            .filter(|(_, node)| self.is_named(node))
            .filter_map(|(_, node)| Some(node.entry.payload().assigned.as_ref()?.generation));
        let highest = claimed.chain(told).filter(|generation| *generation <= GENERATION_MAX).fold(kept, u64::max);
        let now = Instant::now();
        match standing(self.me, self.mine.map(|(generation, _)| generation), &others, highest) {
            Standing::Behind(peer) => {
                self.mine = None;
                Turn::Watch(peer)
            }
            Standing::Free(generation) => {
                self.mine = Some((generation, now));
                Turn::Settle(generation)
            }
            Standing::First => match self.mine {
                Some((generation, since)) if now.duration_since(since) >= SETTLED_AFTER => Turn::Act(generation),
                Some((generation, _)) => Turn::Settle(generation),
                None => unreachable!("only a claim is first"),
            },
        }
    }

    fn is_named(&self, node: &Node) -> bool {
        let offer = node.entry.payload().offer.as_ref();
        offer.is_some_and(|offer| offer.schedulers.contains(&self.me.to_bytes()))
    }

    /// Schedulers that some node would follow as well: claims of others are none of ours, and nobody who is not named
    /// anywhere can keep a scheduler from acting.
    fn rivals(&self, view: &View) -> BTreeSet<PeerId> {
        let ours = view.nodes().filter(|(_, node)| node.is_listed() && self.is_named(node));
        let named = ours.filter_map(|(_, node)| node.entry.payload().offer.as_ref());
        named.flat_map(|offer| &offer.schedulers).filter_map(|key| PeerId::from_bytes(key).ok()).collect()
    }

    /// Nodes have heard a higher generation: the next claim goes above what the registry then shows.
    pub(super) fn give_up(&mut self) {
        self.mine = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_proto::{
        Keypair,
        assignment::{Assigned, Claim, Offer},
        clock::Now,
        entry::{Draft, Entry, Rank},
        id::MeshName,
        lifecycle::Lifecycle,
        payload::Payload,
        provider::ProviderRules,
        registry::Registry,
    };
    use std::collections::HashMap;

    const ME: u8 = 1;

    fn key(n: u8) -> Keypair {
        Keypair::ed25519_from_bytes([n; 32]).unwrap()
    }

    fn peer(n: u8) -> PeerId {
        key(n).public().to_peer_id()
    }

    fn entry(n: u8, lifecycle: Lifecycle, payload: Payload) -> Entry {
        let mesh: MeshName = "lab".parse().unwrap();
        let rank = Rank { epoch: otela_proto::id::Epoch(1), lifecycle, version: 1 };
        Entry::sign(&key(n), &mesh, Draft { rank, issued_at_ms: 1_000, payload }).unwrap()
    }

    fn claims(n: u8, generation: u64) -> Entry {
        let claim = Some(Claim { generation, plan: 0 });
        entry(n, Lifecycle::Join, Payload { claim, ..Payload::default() })
    }

    fn offers(schedulers: &[u8]) -> Option<Offer> {
        Some(Offer { schedulers: schedulers.iter().map(|n| peer(*n).to_bytes()).collect(), templates: Vec::new() })
    }

    /// What is seen where a node names both schedulers, and these are there.
    fn view(entries: &[Entry], suspects: &[u8]) -> View {
        let node = entry(9, Lifecycle::Join, Payload { offer: offers(&[1, 2]), ..Payload::default() });
        seen(&[&[node], entries].concat(), suspects)
    }

    fn seen(entries: &[Entry], suspects: &[u8]) -> View {
        let mut registry = Registry::default();
        for entry in entries {
            registry.learn(entry.clone(), Duration::ZERO);
        }
        let beliefs: HashMap<_, _> = suspects.iter().map(|n| (peer(*n), Belief::Suspect(Duration::ZERO))).collect();
        let rules = ProviderRules::new("lab".parse().unwrap());
        let clock = Now { mono: Duration::ZERO, wall_ms: 1_000 };
        View::build(&registry, &beliefs, &rules, clock, Duration::from_hours(1), 1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_nobody_is_above_counts_once_it_has_gone_round() {
        let mut lease = Lease::new(peer(ME));
        let alone = view(&[], &[]);
        assert_eq!(lease.look(&alone, 6), Turn::Settle(7), "above the plans that are kept");
        assert_eq!(lease.look(&alone, 6), Turn::Settle(7));
        tokio::time::advance(SETTLED_AFTER).await;
        assert_eq!(lease.look(&alone, 6), Turn::Act(7));
        assert_eq!(lease.look(&view(&[claims(2, 6)], &[]), 6), Turn::Act(7), "somebody who was cut off");
        assert_eq!(lease.look(&view(&[claims(2, 8)], &[]), 6), Turn::Watch(peer(2)));
        // It is gone, or suspected of being so: what it claimed stays heard.
        assert_eq!(lease.look(&view(&[claims(2, 8)], &[2]), 6), Turn::Settle(9));
        tokio::time::advance(SETTLED_AFTER).await;
        let left =
            entry(2, Lifecycle::Left, Payload { claim: Some(Claim { generation: 9, plan: 0 }), ..Payload::default() });
        assert_eq!(lease.look(&view(&[left], &[]), 6), Turn::Act(9));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nodes_have_heard_is_never_claimed_again() {
        let assigned = Some(Assigned { generation: 40, ..Assigned::default() });
        let offer = offers(&[ME]);
        let told = entry(3, Lifecycle::Serving, Payload { assigned, offer, ..Payload::default() });
        let mut lease = Lease::new(peer(ME));
        assert_eq!(lease.look(&view(std::slice::from_ref(&told), &[]), 0), Turn::Settle(41));
        lease.give_up();
        assert_eq!(lease.look(&view(&[told], &[]), 41), Turn::Settle(42));
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_that_claim_at_once_one_acts() {
        let mut acting = 0;
        for (me, other) in [(1, 2), (2, 1)] {
            let mut lease = Lease::new(peer(me));
            assert_eq!(lease.look(&view(&[], &[]), 0), Turn::Settle(1));
            tokio::time::advance(SETTLED_AFTER).await;
            acting += u32::from(lease.look(&view(&[claims(other, 1)], &[]), 0) == Turn::Act(1));
        }
        assert_eq!(acting, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_no_node_names_beside_it_keeps_no_scheduler_from_acting() {
        let mut lease = Lease::new(peer(ME));
        let stranger = claims(5, u64::MAX);
        assert_eq!(lease.look(&view(std::slice::from_ref(&stranger), &[]), 0), Turn::Settle(1));
        tokio::time::advance(SETTLED_AFTER).await;
        assert_eq!(lease.look(&view(&[stranger], &[]), 0), Turn::Act(1));
        // Somebody else's nodes, and somebody else's scheduler.
        let elsewhere = entry(8, Lifecycle::Join, Payload { offer: offers(&[2]), ..Payload::default() });
        assert_eq!(lease.look(&seen(&[elsewhere, claims(2, 4)], &[]), 0), Turn::Act(1));
        let liar = Some(Assigned { generation: u64::MAX, ..Assigned::default() });
        let lies = entry(7, Lifecycle::Join, Payload { assigned: liar, offer: offers(&[ME]), ..Payload::default() });
        lease.give_up();
        assert_eq!(lease.look(&view(&[lies], &[]), 1), Turn::Settle(2));
    }
}
