//! A fresh circuit for the requests that come, before the one that there is reaches a limit of its relay.

use super::{Connection, Path, Peer, defaults::CONNECT_WITHIN, swarm};
use libp2p::Multiaddr;
use std::sync::Arc;
use tokio::time::timeout;

/// Ways that are tried.
const WAYS_MAX: usize = 3;

impl Peer {
    /// A better connection than this one, which has used up most of what its relay allows; this one, if none is had in
    /// time. Of requests at the same time one looks for it, and the others wait.
    pub(super) async fn fresh(&self, worn: Arc<Connection>) -> Arc<Connection> {
        let peer = worn.peer();
        let found = match worn.begin_renewal() {
            Some(_renewing) => timeout(CONNECT_WITHIN, self.renew(&worn)).await.ok().flatten(),
            None => timeout(CONNECT_WITHIN, self.inner.streams.until_fresh(&peer)).await.ok(),
        };
        match found {
            Some(fresh) => {
                worn.retire();
                fresh
            }
            None => worn,
        }
    }

    async fn renew(&self, worn: &Connection) -> Option<Arc<Connection>> {
        let view = self.view();
        let known = view.node(&worn.peer()).into_iter().flat_map(|node| node.entry.payload().multiaddrs());
        let mut ways: Vec<Multiaddr> = known.filter(swarm::is_relayed).collect();
        if worn.is_ours() {
            ways.retain(|way| way != worn.remote());
            ways.insert(0, worn.remote().clone());
        }
        for way in ways.into_iter().take(WAYS_MAX) {
            match self.dial_at(Some(worn.peer()), &way).await {
                Ok(fresh) => return Some(fresh),
                Err(error) => tracing::debug!(peer = %worn.peer(), %way, %error, "no fresh circuit this way"),
            }
        }
        self.inner.streams.best(&worn.peer()).filter(|best| best.path() == Path::Direct || !best.is_worn())
    }
}
