//! Which of several schedulers acts: a lease that is kept in the registry of the mesh.
//!
//! A scheduler that sees no living claim makes one, under a generation above all that it has heard of, waits until that
//! has gone round, and acts if it is still the first. One whose claim is behind another's stops at once. Two that do not see
//! each other may both act for a while; nodes tell them apart by their generations, and never go back to the lower one.

use otela_proto::{
    PeerId,
    assignment::{Standing, standing},
    registry::{Belief, View},
};
use std::time::Duration;
use tokio::time::Instant;

/// By then everybody has heard of a claim, and whoever has a higher one has been heard.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

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
        let nodes = || view.nodes().filter(|(peer, _)| **peer != self.me);
        let alive = nodes().filter(|(_, node)| node.is_listed() && node.belief == Belief::Alive);
        let others: Vec<_> =
            alive.filter_map(|(peer, node)| Some((*peer, node.entry.payload().claim?.generation))).collect();
        let heard = nodes().flat_map(|(_, node)| {
            let payload = node.entry.payload();
            let claimed = payload.claim.map(|claim| claim.generation);
            [claimed, payload.assigned.as_ref().map(|told| told.generation)]
        });
        let highest = heard.flatten().fold(kept, u64::max);
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

    /// Nodes have heard a higher generation: the next claim goes above what the registry then shows.
    pub(super) fn give_up(&mut self) {
        self.mine = None;
    }
}
