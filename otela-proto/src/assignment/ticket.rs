//! Which scheduler counts, and which of its plans is the newest.
//!
//! A scheduler claims the mesh in its own entry, under a generation above all that it has seen. Where two claim at once,
//! or a partition has had two, the higher claim counts as soon as both are seen; and whatever the lower one still says is
//! refused by every node that has heard the higher one.

use libp2p_identity::PeerId;

/// A scheduler's claim to be the one that acts.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Claim {
    /// Its generation; from 1 on.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// The number of its last plan; 0 when it has none.
    #[prost(uint64, tag = "2")]
    pub plan: u64,
}

/// The place of a directive in the order of all: of two, the higher counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// The scheduler's generation.
    pub generation: u64,
    /// The scheduler, which decides between two of one generation.
    pub scheduler: PeerId,
    /// The number of its plan.
    pub plan: u64,
}

/// What a scheduler is to do, by the claims that it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nobody's claim counts but its own: it acts, or will as soon as its claim has gone round.
    First,
    /// Somebody else's claim counts.
    Behind(PeerId),
    /// Nobody claims: it may, under this generation.
    Free(u64),
}

/// The standing of `me` with `mine`, given the claims of the other schedulers that are alive, and the highest generation
/// that was ever heard of.
#[must_use]
pub fn standing(me: PeerId, mine: Option<u64>, others: &[(PeerId, u64)], highest: u64) -> Standing {
    let first = others.iter().map(|(peer, generation)| (*generation, *peer)).max();
    match (first, mine) {
        (None, Some(_)) => Standing::First,
        (Some(other), Some(mine)) if other < (mine, me) => Standing::First,
        (Some((_, peer)), _) => Standing::Behind(peer),
        (None, None) => Standing::Free(highest.saturating_add(1)),
    }
}
