//! What a peer is told at its start.

use super::identity::Identity;
use multiaddr::Multiaddr;
use otela_proto::{id::MeshName, payload::Role};

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
    /// Whether requests for engines are accepted from the mesh.
    pub serves_http: bool,
    /// Version of the software, for show.
    pub software: String,
}
