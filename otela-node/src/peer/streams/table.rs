//! The open connections of a peer, and which of several to use.

use super::{Connection, Path, ending::now_ms};
use crate::peer::defaults::{DUPLICATE_FOR, SILENT_FOR};
use libp2p::{PeerId, swarm::ConnectionId};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};
use tokio::sync::Notify;

/// Who relays. libp2p runs a member's circuits and its reservation on the oldest of its connections to a relay, and
/// neither side sees them in the table: so members keep that one, and relays close none of several.
#[derive(Debug)]
pub(in crate::peer) enum Relays<'a> {
    /// This peer does.
    We,
    /// These do.
    Other(&'a HashSet<PeerId>),
}

/// The order in which connections to one peer are used.
fn preference(c: &Connection) -> impl Ord + use<> {
    (
        c.is_retired(),
        c.is_worn(),
        c.path(),
        c.is_proxied(),
        c.carrier(),
        c.rtt().unwrap_or(Duration::MAX),
        Reverse(c.id()),
    )
}

/// The order in which connections to one peer are kept, which is the same on both sides: of two that both sides began
/// at once the one stays that the lower id began, and of several of these the oldest.
fn kept(c: &Connection, lower: bool) -> impl Ord + use<> {
    (c.path(), c.carrier(), c.is_ours() != lower, c.id())
}

type Table = HashMap<PeerId, Vec<Arc<Connection>>>;

/// The open connections. Cloning shares the table.
#[derive(Debug, Clone, Default)]
pub(in crate::peer) struct Streams {
    table: Arc<RwLock<Table>>,
    added: Arc<Notify>,
}

impl Streams {
    /// The connection to use for new requests to `peer`: direct before relayed, without a proxy before through one, TCP
    /// before QUIC and QUIC before WebSocket, then the shortest round trip, then the newest. One that is retired only if there is no other.
    #[must_use]
    pub(in crate::peer) fn best(&self, peer: &PeerId) -> Option<Arc<Connection>> {
        let table = self.read();
        let open = table.get(peer)?.iter().filter(|connection| connection.is_open());
        open.min_by_key(|c| preference(c)).cloned()
    }

    /// A direct connection to `peer`, if there is one.
    #[must_use]
    pub(in crate::peer) fn direct(&self, peer: &PeerId) -> Option<Arc<Connection>> {
        self.best(peer).filter(|connection| connection.path() == Path::Direct)
    }

    /// The first direct connection to `peer`; waits for one.
    pub(in crate::peer) async fn until_direct(&self, peer: &PeerId) -> Arc<Connection> {
        loop {
            let added = self.added.notified();
            if let Some(connection) = self.direct(peer) {
                return connection;
            }
            added.await;
        }
    }

    /// The first connection to `peer` that is not about to reach a limit; waits for one.
    pub(in crate::peer) async fn until_fresh(&self, peer: &PeerId) -> Arc<Connection> {
        loop {
            let added = self.added.notified();
            if let Some(connection) = self.best(peer).filter(|connection| !connection.is_worn()) {
                return connection;
            }
            added.await;
        }
    }

    /// Of each peer to which there is no direct connection the one that is used.
    #[must_use]
    pub(in crate::peer) fn relayed(&self) -> Vec<Arc<Connection>> {
        let peers: Vec<_> = self.read().keys().copied().collect();
        let best = peers.iter().filter_map(|peer| self.best(peer));
        best.filter(|connection| connection.path() == Path::Relayed).collect()
    }

    /// Looks after peers with several connections: retires those that are not needed beside better ones, and returns
    /// those to close, which are retired ones that nothing runs on, and dead ones. Whether any peer has several
    /// connections is the second answer.
    pub(in crate::peer) fn tidy(&self, me: &PeerId, relays: &Relays<'_>) -> (Vec<Arc<Connection>>, bool) {
        let (mut unneeded, mut several) = (Vec::new(), false);
        for (peer, connections) in self.read().iter().filter(|(_, connections)| connections.len() > 1) {
            several = true;
            let open = connections.iter().filter(|connection| connection.is_open());
            let newest_ms = open.clone().map(|connection| connection.began_ms()).max().unwrap_or(0);
            // When one is added, both sides say something on each. What stays silent leads nowhere: its peer has moved.
            let decided = now_ms() > newest_ms + SILENT_FOR.as_millis() as u64;
            let is_dead = |c: &&Arc<Connection>| decided && c.began_ms() < newest_ms && c.is_silent_since(newest_ms);
            let (dead, alive): (Vec<_>, Vec<_>) = open.partition(is_dead);
            unneeded.extend(dead.into_iter().cloned());
            let mut usable = alive.iter().filter(|connection| !connection.is_retired());
            let best = match relays {
                Relays::Other(relays) if relays.contains(peer) => usable.find(|c| c.path() == Path::Direct),
                _ => usable.min_by_key(|c| kept(c, me < peer)),
            };
            let Some(best) = best else { continue };
            for connection in alive.iter().filter(|connection| connection.id() != best.id()) {
                let is_worse = best.path() == Path::Direct && connection.path() == Path::Relayed;
                let is_surplus = connection.age() > DUPLICATE_FOR && best.age() > DUPLICATE_FOR;
                // A fresh circuit beside one that is worn looks like a surplus to the side that did not ask for it.
                let is_theirs = connection.path() == Path::Relayed && !connection.is_ours();
                if is_worse || (is_surplus && !is_theirs && !matches!(relays, Relays::We)) {
                    connection.retire();
                }
                if connection.is_unused() {
                    unneeded.push(Arc::clone(connection));
                }
            }
        }
        (unneeded, several)
    }

    /// Whether there are several connections to `peer`.
    pub(in crate::peer) fn has_several(&self, peer: &PeerId) -> bool {
        self.read().get(peer).is_some_and(|connections| connections.len() > 1)
    }

    /// From whom something has come since `ms`, in milliseconds of [`now_ms`].
    #[must_use]
    pub(in crate::peer) fn heard_since(&self, ms: u64) -> Vec<PeerId> {
        let is_heard =
            |connections: &[Arc<Connection>]| connections.iter().any(|c| c.is_open() && !c.is_silent_since(ms));
        self.read().iter().filter(|(_, connections)| is_heard(connections)).map(|(peer, _)| *peer).collect()
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
        self.added.notify_waiters();
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
