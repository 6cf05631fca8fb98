//! What a peer is told at its start.

use super::{
    admission::AdmissionSettings,
    bootstrap::{Bootstrap, Dns, peer_of},
    choice::AddressChoice,
    identity::Identity,
    provider::ProviderSettings,
    state::State,
    transport::Egress,
};
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

/// What a relay carries for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayLimits {
    /// Peers that it can be reached through for at once.
    pub reservations_max: usize,
    /// Circuits at once. A circuit is one connection, whatever runs on it.
    pub circuits_max: usize,
    /// Circuits that one peer may open.
    pub circuits_per_peer_max: usize,
    /// Bytes that one circuit may carry, both ways together; `None` for as many as there are.
    pub circuit_bytes_max: Option<u64>,
    /// How long one circuit may last.
    pub circuit_for_max: Duration,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            // Four connections can be had for each circuit that a machine carries; reservations cost next to nothing.
            reservations_max: 16_384,
            circuits_max: 65_536,
            circuits_per_peer_max: 4_096,
            circuit_bytes_max: None,
            circuit_for_max: Duration::from_hours(24 * 30),
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
    /// Whether it only looks: nobody is told that it exists, and it connects to nobody but bootstraps and relays.
    pub observes: bool,
    /// Whether relays are asked to relay for it.
    pub reserves: bool,
    /// Addresses to listen on. One that cannot be had is an error.
    pub listen: Vec<Multiaddr>,
    /// Addresses under which others reach this peer, when they differ from the ones it listens on.
    pub external: Vec<Multiaddr>,
    /// Which of the addresses that it listens on others are told.
    pub announce: AddressChoice,
    /// Where to join the mesh. Tried for ever; start-up does not wait for it.
    pub bootstrap: Vec<Bootstrap>,
    /// Who is asked for bootstraps that are names for several addresses.
    pub dns: Dns,
    /// Further bootstraps that are the only way out: relays at a site without any other. While one of them is known, only
    /// these are asked to relay for this peer.
    pub via: Vec<Multiaddr>,
    /// Ways out of the site beside plain TCP and QUIC.
    pub egress: Egress,
    /// Where epoch and peers are remembered across restarts, if anywhere.
    pub state: Option<State>,
    /// Whom the mesh admits, and what this peer shows to be admitted.
    pub admission: AdmissionSettings,
    /// For whom it is run, if that is to be proven.
    pub provider: Option<ProviderSettings>,
    /// Whether requests for engines are accepted from the mesh.
    pub serves_http: bool,
    /// What is relayed for others, by a peer that has the role.
    pub relay: RelayLimits,
    /// Where this peer is; peers of one site share its fate.
    pub site: Option<String>,
    /// How long others are waited for.
    pub patience: Patience,
    /// Version of the software, for show.
    pub software: String,
}

impl PeerConfig {
    /// A peer that listens nowhere and knows nobody, with what is usual for the rest.
    #[must_use]
    pub fn new(mesh: MeshName, identity: Identity, roles: Vec<Role>) -> Self {
        Self {
            admission: AdmissionSettings::open(mesh.clone()),
            mesh,
            identity,
            serves_http: roles.contains(&Role::Node),
            roles,
            observes: false,
            reserves: true,
            listen: Vec::new(),
            external: Vec::new(),
            announce: AddressChoice::default(),
            bootstrap: Vec::new(),
            dns: Dns::default(),
            via: Vec::new(),
            egress: Egress::default(),
            state: None,
            provider: None,
            relay: RelayLimits::default(),
            site: None,
            patience: Patience::default(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// All bootstraps: those that are the only way out come last, as addresses like others. One mesh file is for all, and
    /// names some of those that read it: nobody is a bootstrap of its own.
    pub(super) fn bootstraps(&self) -> Vec<Bootstrap> {
        let me = self.identity.keypair().public().to_peer_id();
        let is_me = |bootstrap: &&Bootstrap| matches!(bootstrap, Bootstrap::Address(a) if peer_of(a) == Some(me));
        let others = self.bootstrap.iter().filter(|bootstrap| !is_me(bootstrap)).cloned();
        others.chain(self.via.iter().cloned().map(Bootstrap::Address)).collect()
    }

    /// Whether others reach this peer without a relay, as far as it was told.
    pub(super) fn is_public(&self) -> bool {
        !self.external.is_empty() || self.roles.contains(&Role::Relay)
    }
}
