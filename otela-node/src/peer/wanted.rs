//! Whom to stay connected to, and who could relay for us: what the registry means for the swarm.

use super::{
    config::PeerConfig,
    defaults::{PUBLIC_MAX, RELAYS_OFFERED_MAX},
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
    /// How many of them are worth telling of.
    relays_max: usize,
    peers: Vec<Contact>,
    public: Vec<Contact>,
    relays: Option<Vec<Contact>>,
    /// What the last look was at. Until any of it changes there is nothing new to say, and a look is at every entry.
    looked_at: Option<Looked>,
}

/// What decides whom to stay connected to.
#[derive(Debug, PartialEq, Eq)]
struct Looked {
    generation: u64,
    neighbours: Vec<PeerId>,
    joined: bool,
    /// Entries grow too old with time alone.
    minute: u64,
}

impl Wanted {
    pub(super) fn new(config: &PeerConfig, me: PeerId) -> Self {
        let (roles, observes) = (config.roles.clone(), config.observes);
        let needs_relays = config.reserves && !config.is_public();
        // Those that are the only way out may be none of the best.
        let relays_max = if config.via.is_empty() { RELAYS_OFFERED_MAX } else { usize::MAX };
        let (peers, public, relays, looked_at) = (Vec::new(), Vec::new(), None, None);
        Self { me, roles, observes, needs_relays, relays_max, peers, public, relays, looked_at }
    }

    /// Tells the driver what has changed. `command` says whether it was taken; what was not is told again the next
    /// time. Of relays nothing is said before the mesh has been heard.
    pub(super) fn tell(&mut self, view: &View, neighbours: &[PeerId], joined: bool, command: impl Fn(Command) -> bool) {
        let now_ms = unix_ms();
        let (neighbours_now, minute) = (neighbours.to_vec(), now_ms / 60_000);
        let looked_at = Looked { generation: view.generation, neighbours: neighbours_now, joined, minute };
        if self.looked_at.as_ref() == Some(&looked_at) {
            return;
        }
        let oldest_ms = now_ms.saturating_sub(millis(TTL));
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
        if self.peers != peers {
            if !command(Command::Want(peers.clone())) {
                return;
            }
            self.peers = peers;
        }
        if !self.tell_public(&known, joined, &command) {
            return;
        }
        self.looked_at = Some(looked_at);
    }

    /// Public peers, and of those the relays that live. Returns whether the driver knows them now.
    fn tell_public(&mut self, known: &[(&PeerId, &Node)], joined: bool, command: impl Fn(Command) -> bool) -> bool {
        let mut public: Vec<_> =
            known.iter().filter(|(_, node)| node.entry.payload().has_role(Role::Relay)).copied().collect();
        public.sort_by_key(|(peer, _)| affinity(&self.me, peer));
        public.truncate(PUBLIC_MAX);
        let living = public.iter().filter(|(_, node)| node.belief == Belief::Alive);
        let relays: Vec<_> = living.take(self.relays_max).map(|(_, node)| contact(node)).collect();
        let public: Vec<_> = public.iter().map(|(_, node)| contact(node)).collect();
        if self.public != public {
            if !command(Command::Public(public.clone())) {
                return false;
            }
            self.public = public;
        }
        if !self.needs_relays || !joined {
            return true;
        }
        let is_new = self.relays.as_ref() != Some(&relays);
        if is_new && !command(Command::Relays(relays.clone())) {
            return false;
        }
        self.relays = Some(relays);
        true
    }

    /// Requests flow between ingresses and nodes, perhaps through a relay, and of each pair either side may be the one
    /// that can dial.
    fn is_counterpart(&self, node: &Node) -> bool {
        let other = node.entry.payload();
        let pairs = [(Role::Ingress, Role::Node), (Role::Ingress, Role::Relay)];
        let is_pair = |one, two| self.roles.contains(&one) && other.has_role(two);
        pairs.into_iter().any(|(one, two)| is_pair(one, two) || is_pair(two, one))
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
