//! What the node says of itself in the mesh: several parts of the agent have each their share of it.

use crate::{
    peer::{Announcement, Peer},
    telemetry::chain,
};
use std::sync::Arc;
use tokio::sync::Mutex;

/// The one place where this node's announcement is changed. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Voice {
    peer: Peer,
    said: Arc<Mutex<Announcement>>,
}

impl Voice {
    /// That of `peer`, which has said nothing yet but will say this.
    pub(super) fn new(peer: Peer, said: Announcement) -> Self {
        Self { peer, said: Arc::new(Mutex::new(said)) }
    }

    /// Changes what is said, and says it. Returns when it is on its way to the neighbours.
    pub(super) async fn say(&self, change: impl FnOnce(&mut Announcement)) {
        // Held until it is said, so that what was changed later is also said later.
        let mut said = self.said.lock().await;
        let mut next = said.clone();
        change(&mut next);
        match self.peer.announce(next.clone()).await {
            Ok(()) => *said = next,
            // What cannot be said now must not stand in the way of what is said later.
            Err(error) => tracing::error!(error = chain(&error), "cannot announce this node"),
        }
    }
}
