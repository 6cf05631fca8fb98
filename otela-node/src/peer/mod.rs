//! A peer: one libp2p identity in a mesh, with its full replica of the registry.
//!
//! [`Peer::start`] sets up three tasks that share nothing but channels and snapshots: the swarm's driver, the
//! gossip driver, and the acceptor of substreams. Requests never pass through the first two. What a peer does
//! beyond that (serve an engine, take clients' requests, schedule) is built on the handle from outside; this
//! module knows of none of it.

pub mod admission;
pub mod bootstrap;
mod choice;
mod config;
mod defaults;
mod farewell;
mod frames;
mod gossip;
pub mod hop;
mod identity;
mod link;
mod metrics;
pub mod observe;
pub mod probe;
pub mod provider;
mod renew;
pub mod small;
mod start;
mod state;
mod streams;
mod swarm;
mod transport;
pub mod tunnel;
mod wanted;

pub use crate::http1::{BoxError, PooledBody, RequestBody, SendError, SendProgress};
pub use bootstrap::Bootstrap;
pub use choice::{AddressChoice, Choice, ChoiceError, Interfaces, Reason};
pub use config::{Patience, PeerConfig, RelayLimits};
pub use identity::{Identity, IdentityError};
pub use otela_proto::own::Announcement;
pub use start::StartError;
pub use state::{State, StateError};
pub use streams::{Connection, EndingIo, Inbound, OpenError, Path};
pub use swarm::{LeftOut, ListenError, Observed, Reach};
pub use transport::{Egress, Proxy, ProxyError, Tls, TlsError, TransportError, check_free};

use admission::{Admission, By};
use bootstrap::Troubles;
use defaults::{CONNECT_WITHIN, REFUSED_LATELY, SERVED_EVERY};
use http::{Response, request};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use otela_proto::{
    admission::{Credentials, Refused, Rules, Validity},
    entry::{CLOCK_SLACK, Refusal},
    id::{MeshName, Session},
    registry::View,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use streams::Streams;
use tokio::sync::{mpsc, oneshot, watch};

/// Why an announcement was not made. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// It is too large or otherwise unfit.
    #[error("cannot announce this")]
    Refused(#[source] Refusal),
    /// The peer has stopped.
    #[error("the peer has stopped")]
    Stopped,
}

/// A running peer. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Peer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    id: PeerId,
    mesh: MeshName,
    streams: Streams,
    tunnel: tunnel::Tunnel,
    probe: StreamProtocol,
    published: gossip::Published,
    addresses: watch::Receiver<BTreeSet<Multiaddr>>,
    reach: watch::Receiver<Reach>,
    events: mpsc::Sender<gossip::Event>,
    commands: mpsc::Sender<swarm::Command>,
    metrics: metrics::PeerMetrics,
    admission: Admission,
    troubles: Troubles,
    /// Of the TLS certificate that is shown.
    tls: Option<Validity>,
    /// Whether somebody else has to renew the provider certificate that is shown.
    provider_of_file: bool,
    /// What the wall clock said when the gossip task's clock began.
    started_unix_ms: u64,
    /// Holds the lock on the key's file for as long as the peer lives.
    _identity: Identity,
}

impl Peer {
    /// The peer's id.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.inner.id
    }

    /// The mesh it belongs to.
    #[must_use]
    pub fn mesh(&self) -> &MeshName {
        &self.inner.mesh
    }

    /// This run of the peer.
    #[must_use]
    pub fn session(&self) -> Session {
        *self.inner.published.session.borrow()
    }

    /// The registry as it is now. Never waits.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.inner.published.view.load_full()
    }

    /// Changes with each new view.
    #[must_use]
    pub fn view_changes(&self) -> watch::Receiver<u64> {
        self.inner.published.generation.subscribe()
    }

    /// Whether this peer has heard of its mesh, or is alone by configuration. Until then what it does not know may
    /// well exist.
    #[must_use]
    pub fn has_joined(&self) -> bool {
        *self.inner.published.joined.borrow()
    }

    /// Resolves when this peer has joined.
    pub async fn joined(&self) {
        // The other end is held here, so it does not end before.
        let _ = self.inner.published.joined.subscribe().wait_for(|joined| *joined).await;
    }

    /// Why this peer has not joined, in a few words, or `None` if it has.
    #[must_use]
    pub fn not_joined(&self) -> Option<String> {
        if self.has_joined() {
            return None;
        }
        if let Some(refused) = self.refuses_us().first() {
            return Some(format!("others refuse this peer: {refused}"));
        }
        let off = self.skew_ms().is_some_and(|ms| Duration::from_millis(ms.unsigned_abs()) > CLOCK_SLACK);
        let reason =
            if off { "this machine's clock is hours off its neighbours'" } else { "no bootstrap has answered yet" };
        Some(reason.to_owned())
    }

    /// Why bootstraps are not reached, or lists of them not read, by what was configured.
    #[must_use]
    pub fn troubles(&self) -> BTreeMap<String, String> {
        self.inner.troubles.now()
    }

    /// From when to when the TLS certificate that this peer shows is valid.
    fn tls(&self) -> Option<Validity> {
        self.inner.tls
    }

    /// Resolves when another process was found to use this peer's key and to go on: this one must stop.
    pub async fn superseded(&self) {
        // The sender lives in this handle, so the wait ends in no other way.
        let _ = self.inner.published.superseded.subscribe().wait_for(|superseded| *superseded).await;
    }

    /// Whether another process was found to use this peer's key and to go on.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        *self.inner.published.superseded.borrow()
    }

    /// How far the neighbours' wall clocks are ahead of ours, in milliseconds: the median, once it was measured.
    #[must_use]
    pub fn skew_ms(&self) -> Option<i64> {
        *self.inner.published.skew_ms.borrow()
    }

    /// The same, as soon as it was measured.
    pub async fn skew_measured(&self) -> i64 {
        let mut measured = self.inner.published.skew_ms.subscribe();
        // The sender lives in this handle, so the wait ends in no other way.
        measured.wait_for(Option::is_some).await.ok().and_then(|skew| *skew).unwrap_or_default()
    }

    /// How others can reach this peer, as it changes.
    #[must_use]
    pub fn reach_changes(&self) -> watch::Receiver<Reach> {
        self.inner.reach.clone()
    }

    /// The addresses that this peer announces, each ending in its id.
    #[must_use]
    pub fn addresses(&self) -> Vec<Multiaddr> {
        let addresses = self.inner.addresses.borrow();
        // One at a relay has it already.
        addresses.iter().filter_map(|address| address.clone().with_p2p(self.inner.id).ok()).collect()
    }

    /// How others can reach this peer.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.inner.reach.borrow().clone()
    }

    /// Resolves when somebody who never met this peer can reach it.
    pub async fn reachable(&self) {
        // It ends otherwise only while the peer stops.
        let _ = self.inner.reach.clone().wait_for(Reach::is_reachable).await;
    }

    /// The open connections to other peers.
    #[must_use]
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.inner.streams.all()
    }

    /// The connection that a request to `to` would take now.
    #[must_use]
    pub fn connection(&self, to: &PeerId) -> Option<Arc<Connection>> {
        self.inner.streams.best(to)
    }

    /// A time on the views' clock as milliseconds since the Unix epoch. The same time gives the same number for as
    /// long as the peer runs, whatever happens to the wall clock meanwhile.
    fn unix_ms_at(&self, at: Duration) -> u64 {
        self.inner.started_unix_ms.saturating_add(u64::try_from(at.as_millis()).unwrap_or(u64::MAX))
    }

    /// Whom the mesh admits now, and what this peer shows.
    fn admission(&self) -> (Arc<Rules>, Credentials) {
        (self.inner.admission.rules(), self.inner.admission.shown())
    }

    /// Why the mesh file cannot be used now.
    fn unusable_mesh_file(&self) -> Option<String> {
        self.inner.admission.unusable_file()
    }

    /// Why others have refused this peer lately, the latest first.
    #[must_use]
    pub fn refuses_us(&self) -> Vec<Refused> {
        self.inner.admission.tally().refuses_us(REFUSED_LATELY)
    }

    /// What this peer has refused: of what, why, how often.
    fn refusals(&self) -> Vec<(&'static str, &'static str, u64)> {
        let door = self.inner.admission.tally().all().into_iter().map(|(by, refused, count)| match by {
            By::Us => ("peers", refused.reason(), count),
            By::Them => ("us", refused.reason(), count),
        });
        self.inner.metrics.refusals().into_iter().chain(door).collect()
    }

    /// Says this of itself from now on. Returns when it is on its way to the neighbours.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub async fn announce(&self, announcement: Announcement) -> Result<(), AnnounceError> {
        self.say(announcement, gossip::Event::Announce).await
    }

    /// Begins another session, in which it says this of itself: after Down or Left nothing else comes.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub async fn begin_again(&self, announcement: Announcement) -> Result<(), AnnounceError> {
        self.say(announcement, gossip::Event::BeginAgain).await
    }

    async fn say(
        &self,
        announcement: Announcement,
        event: fn(Box<Announcement>, oneshot::Sender<Result<(), Refusal>>) -> gossip::Event,
    ) -> Result<(), AnnounceError> {
        let (done, said) = oneshot::channel();
        let event = event(Box::new(announcement), done);
        self.inner.events.send(event).await.map_err(|_| AnnounceError::Stopped)?;
        said.await.map_err(|_| AnnounceError::Stopped)?.map_err(AnnounceError::Refused)
    }

    /// Announces Left and waits, at most `within`, until the neighbours have read it. The peer itself is
    /// stopped by its [`Tasks`](crate::tasks::Tasks).
    pub async fn leave(&self, within: Duration) {
        let farewell = async {
            let (done, flushed) = oneshot::channel();
            self.inner.events.send(gossip::Event::Leave(done)).await.map_err(|_| AnnounceError::Stopped)?;
            flushed.await.map_err(|_| AnnounceError::Stopped)
        };
        match tokio::time::timeout(within, farewell).await {
            Ok(Ok(())) => tracing::debug!("left the mesh"),
            Ok(Err(error)) => tracing::warn!(%error, "could not say that we leave"),
            Err(_) => tracing::warn!("neighbours did not take our leave in time; they will notice by themselves"),
        }
    }

    /// Sends an HTTP request to another peer and returns the head of its answer, and the connection that carries it.
    /// Dropping the future, or the
    /// answer's body before its end, cancels the request there. A failure takes the peer out of rotation.
    ///
    /// # Errors
    /// [`SendError`]; [`SendError::delivered`] tells whether the peer may have seen the request.
    pub async fn send(
        &self,
        to: &PeerId,
        head: request::Parts,
        body: RequestBody,
    ) -> Result<(Response<PooledBody>, Arc<Connection>), SendError> {
        let connection = self.connect(to).await?;
        let sent = match self.inner.tunnel.send(&connection, head, body).await {
            // A stream that could not be opened, or broke, because its connection was just being closed.
            Err(error @ (SendError::Broken { .. } | SendError::Connect(_))) if self.is_lost(&connection).await => {
                Err(SendError::PathLost { delivered: error.delivered() })
            }
            sent => sent,
        };
        // One stream that broke on a connection that stands says nothing of the node: a prompt that breaks its
        // engine must not take it out of rotation for others. Neither does a relay that is gone.
        let is_telling = |error: &SendError| match error {
            SendError::Busy | SendError::PathLost { .. } => false,
            SendError::Broken { .. } => !connection.is_open(),
            SendError::Connect(_) | SendError::ConnectTimeout(_) => true,
        };
        if sent.as_ref().is_err_and(is_telling) {
            self.report_failure(to);
        }
        let answer = sent?;
        if connection.has_served(SERVED_EVERY) {
            // A full queue loses a good word; the next answer says the same.
            let _ = self.inner.events.try_send(gossip::Event::Served(*to));
        }
        Ok((answer, connection))
    }

    /// Whether something broke on a connection because that has ended, which need not be the peer's doing. Waits a
    /// moment to find out, and where a relay has died until what else led through it has ended too, so that nobody
    /// tries that next.
    pub async fn is_lost(&self, connection: &Connection) -> bool {
        if !connection.ends_soon().await {
            return false;
        }
        let through = |other: &Connection| other.peer() == connection.peer() && other.relay() == connection.relay();
        if connection.relay().is_some() {
            let others: Vec<_> = self.connections().into_iter().filter(|other| through(other)).collect();
            futures::future::join_all(others.iter().map(|other| other.ends_soon())).await;
        }
        true
    }

    /// Takes a peer out of rotation for a while, because it failed to answer.
    pub fn report_failure(&self, peer: &PeerId) {
        // If the queue is full there is worse trouble than one missing report; the next failure reports again.
        let _ = self.inner.events.try_send(gossip::Event::Failed(*peer));
    }

    async fn connect(&self, to: &PeerId) -> Result<Arc<Connection>, SendError> {
        if let Some(connection) = self.inner.streams.best(to) {
            return Ok(if connection.is_worn() { self.fresh(connection).await } else { connection });
        }
        let view = self.view();
        let addresses: Vec<_> = view.node(to).into_iter().flat_map(|n| n.entry.payload().multiaddrs()).collect();
        if addresses.is_empty() {
            return Err(SendError::Connect("no address of the peer is known".into()));
        }
        let stopped = || SendError::Connect("the peer has stopped".into());
        let (waiter, dialled) = oneshot::channel();
        let dial = swarm::Command::Dial(*to, addresses, waiter);
        self.inner.commands.send(dial).await.map_err(|_| stopped())?;
        let connected = match tokio::time::timeout(CONNECT_WITHIN, dialled).await {
            Err(_) => Err(SendError::ConnectTimeout(CONNECT_WITHIN)),
            Ok(Err(_)) => Err(stopped()),
            Ok(Ok(_)) => self.inner.streams.best(to).ok_or_else(|| SendError::Connect("nobody answers there".into())),
        };
        connected.inspect_err(|_| self.report_failure(to))
    }
}

#[cfg(test)]
mod tests;
