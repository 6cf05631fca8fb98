//! The open connections of a peer, and which of several to use.

use super::Connection;
use libp2p::{PeerId, swarm::ConnectionId};
use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

type Table = HashMap<PeerId, Vec<Arc<Connection>>>;

/// The open connections. Cloning shares the table.
#[derive(Debug, Clone, Default)]
pub(in crate::peer) struct Streams {
    table: Arc<RwLock<Table>>,
}

impl Streams {
    /// The connection to use for new requests to `peer`: direct before relayed, TCP before QUIC, then the shortest
    /// round trip, then the newest.
    #[must_use]
    pub(in crate::peer) fn best(&self, peer: &PeerId) -> Option<Arc<Connection>> {
        let table = self.read();
        let open = table.get(peer)?.iter().filter(|connection| connection.is_open());
        open.min_by_key(|c| (c.path(), c.carrier(), c.rtt().unwrap_or(Duration::MAX), Reverse(c.id()))).cloned()
    }

    /// One of the open connections to `peer`.
    #[must_use]
    pub(in crate::peer) fn get(&self, peer: &PeerId, id: ConnectionId) -> Option<Arc<Connection>> {
        let table = self.read();
        table.get(peer)?.iter().find(|connection| connection.id() == id).cloned()
    }

    /// All open connections.
    #[must_use]
    pub(in crate::peer) fn all(&self) -> Vec<Arc<Connection>> {
        let table = self.read();
        table.values().flatten().cloned().collect()
    }

    /// Keeps a measured round trip.
    pub(in crate::peer) fn measured(&self, peer: &PeerId, id: ConnectionId, rtt: Duration) {
        let table = self.read();
        let connections = table.get(peer).into_iter().flatten();
        for connection in connections.filter(|connection| connection.id() == id) {
            connection.measured(rtt);
        }
    }

    /// Takes a connection out of use at once and ends its streams: closing it may take for ever if nobody is there.
    pub(in crate::peer) fn give_up(&self, peer: &PeerId, id: ConnectionId) {
        let mut table = self.write();
        let Some(connections) = table.get_mut(peer) else { return };
        for connection in connections.iter().filter(|connection| connection.id() == id) {
            connection.end();
        }
        connections.retain(|connection| connection.id() != id);
        if connections.is_empty() {
            table.remove(peer);
        }
    }

    /// A new connection.
    pub(super) fn add(&self, connection: Connection) {
        self.write().entry(connection.peer()).or_default().push(Arc::new(connection));
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
