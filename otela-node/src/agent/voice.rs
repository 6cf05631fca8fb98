//! What the node says of itself in the mesh: several parts of the agent have each their share of it.

use crate::{
    peer::{Announcement, Peer},
    telemetry::chain,
};
use otela_proto::lifecycle::Lifecycle;
use std::{collections::BTreeMap, sync::Arc};
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

    /// Begins another session, as a node that has nothing to serve yet.
    pub(super) async fn begin_again(&self) {
        let mut said = self.said.lock().await;
        let next = Announcement { lifecycle: Lifecycle::Join, services: Vec::new(), ..said.clone() };
        match self.peer.begin_again(next.clone()).await {
            Ok(()) => *said = next,
            Err(error) => tracing::error!(error = chain(&error), "cannot begin another session"),
        }
    }

    /// The name of this host, once it is known.
    pub(super) async fn host(&self) -> Option<String> {
        self.said.lock().await.hardware.as_ref().map(|hardware| hardware.hostname.clone())
    }

    /// The provider's labels.
    pub(super) async fn labels(&self) -> BTreeMap<String, String> {
        self.said.lock().await.labels.clone()
    }
}
