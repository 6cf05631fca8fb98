//! What a peer is told at its start.

use super::{identity::Identity, state::State};
use multiaddr::Multiaddr;
use otela_proto::{id::MeshName, payload::Role};
use std::time::Duration;

/// How long a peer waits before it gives others up, and how long it shows those that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// From a suspicion to the vote for eviction, when accuser and subject are at one site.
    pub grace_near: Duration,
    /// The same across sites.
    pub grace_far: Duration,
    /// For how long nodes that have left or were evicted can still be read.
    pub retention: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            grace_near: Duration::from_secs(5),
            grace_far: Duration::from_secs(15),
            retention: Duration::from_hours(24),
        }
    }
}

/// The settings of one peer.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// The mesh to join.
    pub mesh: MeshName,
    /// The peer's key.
    pub identity: Identity,
    /// What the peer does.
    pub roles: Vec<Role>,
    /// Addresses to listen on. One that cannot be had is an error.
    pub listen: Vec<Multiaddr>,
    /// Addresses under which others reach this peer, when they differ from the ones it listens on.
    pub external: Vec<Multiaddr>,
    /// Peers to join the mesh through. Tried for ever; start-up does not wait for them.
    pub bootstrap: Vec<Multiaddr>,
    /// Where epoch and peers are remembered across restarts, if anywhere.
    pub state: Option<State>,
    /// Whether requests for engines are accepted from the mesh.
    pub serves_http: bool,
    /// Where this peer is; peers of one site share its fate.
    pub site: Option<String>,
    /// How long others are waited for.
    pub patience: Patience,
    /// Version of the software, for show.
    pub software: String,
}
