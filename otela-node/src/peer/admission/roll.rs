//! Who was let in and with what, connection by connection. What was shown on one says nothing of another: a peer may
//! open them in any order, and close them while others are on their way through the door.

use libp2p::{PeerId, swarm::ConnectionId};
use otela_proto::admission::{Credentials, Refused};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// From the door to the swarm's word that a connection stands is a moment. The swarm may also turn it away without a
/// word, for its own limits.
const ARRIVES_WITHIN: Duration = Duration::from_secs(60);
/// More are never on their way: so many handshakes may be under way.
const ARRIVING_MAX: usize = 8_192;

/// Who was let in.
#[derive(Debug, Default)]
pub(super) struct Roll {
    arriving: VecDeque<(Instant, PeerId, Credentials)>,
    here: HashMap<ConnectionId, (PeerId, Credentials)>,
}

impl Roll {
    /// A peer has passed the door. The swarm does not know of it yet.
    pub(super) fn arrives(&mut self, peer: PeerId, credentials: Credentials, now: Instant) {
        while self.arriving.front().is_some_and(|(at, ..)| *at + ARRIVES_WITHIN < now)
            || self.arriving.len() >= ARRIVING_MAX
        {
            self.arriving.pop_front();
        }
        self.arriving.push_back((now, peer, credentials));
    }

    /// The swarm has its connection. Returns what it has shown; `None` if it has not passed the door in time.
    pub(super) fn is_here(&mut self, peer: PeerId, id: ConnectionId) -> Option<Credentials> {
        let place = self.arriving.iter().position(|(_, arriving, _)| *arriving == peer)?;
        let (_, peer, credentials) = self.arriving.remove(place)?;
        self.here.insert(id, (peer, credentials.clone()));
        Some(credentials)
    }

    /// A connection is gone.
    pub(super) fn is_gone(&mut self, id: ConnectionId) {
        self.here.remove(&id);
    }

    /// The connections that `judge` refuses.
    pub(super) fn refused(
        &self,
        judge: impl Fn(&PeerId, &Credentials) -> Result<(), Refused>,
    ) -> Vec<(PeerId, ConnectionId, Refused)> {
        let judged = self.here.iter().map(|(id, (peer, credentials))| (*peer, *id, judge(peer, credentials)));
        judged.filter_map(|(peer, id, verdict)| Some((peer, id, verdict.err()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(_: &PeerId, _: &Credentials) -> Result<(), Refused> {
        Err(Refused::RevokedPeer)
    }

    #[test]
    fn a_connection_is_on_the_roll_whatever_becomes_of_others_of_the_same_peer() {
        let (mut roll, peer, now) = (Roll::default(), PeerId::random(), Instant::now());
        let [first, second] = [1, 2].map(ConnectionId::new_unchecked);
        roll.arrives(peer, Credentials::default(), now);
        assert!(roll.is_here(peer, first).is_some());
        roll.arrives(peer, Credentials::default(), now);
        // The first one goes while the second is on its way in.
        roll.is_gone(first);
        assert!(roll.refused(all).is_empty());
        assert!(roll.is_here(peer, second).is_some());
        assert_eq!(roll.refused(all), [(peer, second, Refused::RevokedPeer)]);
        roll.is_gone(second);
        assert!(roll.refused(all).is_empty());
    }

    #[test]
    fn who_has_not_passed_the_door_is_not_here_and_who_never_arrives_is_forgotten() {
        let (mut roll, peer, now) = (Roll::default(), PeerId::random(), Instant::now());
        assert!(roll.is_here(peer, ConnectionId::new_unchecked(1)).is_none());
        for _ in 0..ARRIVING_MAX + 10 {
            roll.arrives(peer, Credentials::default(), now);
        }
        assert_eq!(roll.arriving.len(), ARRIVING_MAX);
        roll.arrives(PeerId::random(), Credentials::default(), now + ARRIVES_WITHIN * 2);
        assert_eq!(roll.arriving.len(), 1);
    }
}
