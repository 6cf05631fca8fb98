//! Whom to stay connected to, and who could relay for us: what the registry means for the swarm.

use super::{
    config::PeerConfig,
    defaults::RELAYS_OFFERED_MAX,
    gossip::unix_ms,
    swarm::{Command, Contact},
};
use libp2p::PeerId;
use otela_proto::{
    clock::millis,
    entry::TTL,
    payload::Role,
    registry::{Belief, Node, View},
};
use sha2::{Digest, Sha256};

/// What the driver was last told.
#[derive(Debug)]
pub(super) struct Wanted {
    me: PeerId,
    roles: Vec<Role>,
    /// Whether we only look, so that nobody has to be met.
    observes: bool,
    /// Whether others may have to reach us through relays.
    needs_relays: bool,
    peers: Vec<Contact>,
    relays: Option<Vec<Contact>>,
}

impl Wanted {
    pub(super) fn new(config: &PeerConfig, me: PeerId) -> Self {
        let needs_relays = config.reserves && config.external.is_empty() && !config.roles.contains(&Role::Relay);
        Self {
            me,
            roles: config.roles.clone(),
            observes: config.observes,
            needs_relays,
            peers: Vec::new(),
            relays: None,
        }
    }

    /// Tells the driver what has changed. `command` says whether it was taken; what was not is told again the next
    /// time. Of relays nothing is said before the mesh has been heard.
    pub(super) fn tell(&mut self, view: &View, neighbours: &[PeerId], joined: bool, command: impl Fn(Command) -> bool) {
        let oldest_ms = unix_ms().saturating_sub(millis(TTL));
        let known: Vec<_> = view
            .nodes()
            .filter(|(peer, node)| node.is_listed() && **peer != self.me && node.entry.issued_at_ms() >= oldest_ms)
            .collect();
        // Whom we cannot reach is dialled all the same, as long as it is not agreed that it is gone.
        let is_wanted = |peer: &PeerId, node: &Node| {
            !self.observes && (neighbours.contains(peer) || self.is_counterpart(node) || node.belief != Belief::Alive)
        };
        let peers: Vec<_> =
            known.iter().filter(|(peer, node)| is_wanted(peer, node)).map(|(_, node)| contact(node)).collect();
        if self.peers != peers && command(Command::Want(peers.clone())) {
            self.peers = peers;
        }
        if !self.needs_relays || !joined {
            return;
        }
        let is_relay = |node: &Node| node.belief == Belief::Alive && node.entry.payload().has_role(Role::Relay);
        let mut relays: Vec<_> =
            known.iter().filter(|(_, node)| is_relay(node)).map(|(_, node)| contact(node)).collect();
        relays.sort_by_key(|relay| affinity(&self.me, &relay.peer));
        relays.truncate(RELAYS_OFFERED_MAX);
        if self.relays.as_ref() != Some(&relays) && command(Command::Relays(relays.clone())) {
            self.relays = Some(relays);
        }
    }

    /// Requests flow between ingresses and nodes, and either side may be the one that can dial.
    fn is_counterpart(&self, node: &Node) -> bool {
        let other = node.entry.payload();
        let pairs = [(Role::Ingress, Role::Node), (Role::Node, Role::Ingress), (Role::Ingress, Role::Relay)];
        pairs.iter().any(|(mine, theirs)| self.roles.contains(mine) && other.has_role(*theirs))
    }
}

fn contact(node: &Node) -> Contact {
    let payload = node.entry.payload();
    Contact {
        peer: node.entry.owner(),
        epoch: node.entry.rank().epoch,
        addresses: payload.multiaddrs().collect(),
        is_relay: payload.has_role(Role::Relay),
    }
}

/// Rendezvous hashing: everybody spreads over the relays, and stays where it is when others come and go.
fn affinity(me: &PeerId, relay: &PeerId) -> [u8; 32] {
    Sha256::new().chain_update(me.to_bytes()).chain_update(relay.to_bytes()).finalize().into()
}
