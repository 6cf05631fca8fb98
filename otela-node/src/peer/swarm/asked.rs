//! Dials of one address that somebody asked for: to measure a way, or to say whether it is one.

use super::{driver::Driver, why::words};
use libp2p::{
    Multiaddr, PeerId,
    swarm::{
        ConnectionId, DialError,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::collections::HashMap;
use tokio::sync::oneshot;

/// Told once: the connection, or in words why there is none.
pub(in crate::peer) type Reached = oneshot::Sender<Result<ConnectionId, String>>;

/// One address to dial, whether its peer is connected or not.
#[derive(Debug)]
pub(in crate::peer) struct OneDial {
    /// Who has to be there; `None` if anybody will do.
    pub(in crate::peer) peer: Option<PeerId>,
    pub(in crate::peer) address: Multiaddr,
    /// Whether it must not come from a port that we listen on: to whoever has let an answer in from there, it would look
    /// like one.
    pub(in crate::peer) fresh_port: bool,
}

/// Who waits for which dial.
#[derive(Debug, Default)]
pub(super) struct Asked(HashMap<ConnectionId, Reached>);

impl Asked {
    /// The dial has led to a connection.
    pub(super) fn connected(&mut self, id: ConnectionId) {
        if let Some(waiting) = self.0.remove(&id) {
            // One that has given up does not mind.
            let _ = waiting.send(Ok(id));
        }
    }

    /// The dial has led nowhere. Whether it was one of these.
    pub(super) fn failed(&mut self, id: ConnectionId, error: &DialError) -> bool {
        let waiting = self.0.remove(&id);
        let was_ours = waiting.is_some();
        if let Some(waiting) = waiting {
            let _ = waiting.send(Err(words(error)));
        }
        was_ours
    }
}

impl Driver {
    /// Dials one address.
    pub(super) fn dial_at(&mut self, dial: OneDial, reached: Reached) {
        let opts = match (dial.peer, dial.fresh_port) {
            (None, _) => DialOpts::unknown_peer_id().address(dial.address).build(),
            (Some(peer), fresh) => {
                let opts = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(vec![dial.address]);
                if fresh { opts.allocate_new_port().build() } else { opts.build() }
            }
        };
        let id = opts.connection_id();
        self.asked.0.insert(id, reached);
        if let Err(error) = self.swarm.dial(opts) {
            self.asked.failed(id, &error);
        }
    }
}
