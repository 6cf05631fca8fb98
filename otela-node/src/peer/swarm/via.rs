//! Relays that were given as the only way out.

use super::dialer::Contact;
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};
use std::collections::HashSet;

/// Who is at the addresses that were given with `--via`, as far as is known. They come last among the bootstraps.
#[derive(Debug)]
pub(super) struct Via {
    /// Number of the first of them among the bootstraps.
    first: usize,
    peers: HashSet<PeerId>,
}

impl Via {
    pub(super) fn new(addresses: &[Multiaddr], first: usize) -> Self {
        let peer = |address: &Multiaddr| match address.iter().last() {
            Some(Protocol::P2p(peer)) => Some(peer),
            _ => None,
        };
        Self { first, peers: addresses.iter().filter_map(peer).collect() }
    }

    /// This peer was found at the n-th bootstrap address.
    pub(super) fn found(&mut self, n: usize, peer: PeerId) {
        if n >= self.first {
            self.peers.insert(peer);
        }
    }

    /// The relays that it is of use to ask: all, unless some of them are the only way out.
    pub(super) fn only(&self, relays: Vec<Contact>) -> Vec<Contact> {
        let (given, others): (Vec<_>, _) = relays.into_iter().partition(|relay| self.peers.contains(&relay.peer));
        if given.is_empty() { others } else { given }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_proto::id::Epoch;

    #[test]
    fn the_given_relays_are_asked_and_others_only_without_them() {
        let relay = |peer| Contact { peer, epoch: Epoch(1), addresses: Vec::new(), is_relay: true };
        let [given, found, other] = [PeerId::random(), PeerId::random(), PeerId::random()];
        let addresses: Vec<Multiaddr> =
            vec![format!("/ip4/10.0.0.1/tcp/1/p2p/{given}").parse().unwrap(), "/ip4/10.0.0.2/tcp/1".parse().unwrap()];
        let mut via = Via::new(&addresses, 2);
        let all = || vec![relay(other), relay(found), relay(given)];
        assert_eq!(via.only(all()), [relay(given)]);
        via.found(3, found);
        via.found(1, other);
        assert_eq!(via.only(all()), [relay(found), relay(given)]);
        assert_eq!(via.only(vec![relay(other)]), [relay(other)], "better than none");
        assert_eq!(Via::new(&[], 0).only(all()), all());
    }
}
