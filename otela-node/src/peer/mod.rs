//! A peer: one libp2p identity in a mesh, with its full replica of the registry.
//!
//! [`Peer::start`] sets up three tasks that share nothing but channels and snapshots: the swarm's driver, the
//! gossip driver, and the acceptor of substreams. Requests never pass through the first two. What a peer does
//! beyond that (serve an engine, take clients' requests, schedule) is built on the handle from outside; this
//! module knows of none of it.

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
mod state;
mod streams;
mod swarm;
mod transport;
pub mod tunnel;
mod wanted;

pub use crate::http1::{BoxError, PooledBody, RequestBody, SendError};
pub use choice::{AddressChoice, Choice, ChoiceError, Interfaces, Reason};
pub use config::{Patience, PeerConfig, RelayLimits};
pub use identity::{Identity, IdentityError};
pub use otela_proto::own::Announcement;
pub use state::{State, StateError};
pub use streams::{Connection, EndingIo, Inbound, OpenError, Path};
pub use swarm::{LeftOut, ListenError, Observed, Reach};
pub use transport::{TransportError, check_free};

use crate::{tasks::Tasks, telemetry::Metrics};
use defaults::{CONNECT_WITHIN, DRIVER_QUEUE, HTTP_QUEUE, SERVED_EVERY};
use http::{Response, request};
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use otela_proto::{
    entry::{CLOCK_SLACK, Refusal},
    id::{MeshName, Session},
    registry::View,
    wire::{gossip_protocol, http_protocol, probe_protocol},
};
use state::Keeper;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use streams::Streams;
use tokio::sync::{mpsc, oneshot, watch};

/// Why a peer cannot start. Nothing was left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configured address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The key does not suit the transports.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

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
    /// What the wall clock said when the gossip task's clock began.
    started_unix_ms: u64,
    /// Holds the lock on the key's file for as long as the peer lives.
    _identity: Identity,
}

impl Peer {
    /// Starts a peer on `tasks`. It listens when this returns; it joins the mesh in the background. The receiver
    /// gives the substreams on which other peers send HTTP requests (for [`tunnel::serve`]); without
    /// [`PeerConfig::serves_http`] none arrive.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(
        config: PeerConfig,
        tasks: &Tasks,
        metrics: &Metrics,
    ) -> Result<(Self, mpsc::Receiver<Inbound>), StartError> {
        let id = config.identity.keypair().public().to_peer_id();
        let protocols = Protocols::of(&config.mesh);
        let counters = metrics::PeerMetrics::register(metrics);
        let offered = protocols.offered(config.serves_http);
        let (behaviour, streams, inbound) =
            streams::Behaviour::new(offered, protocols.gossip.clone(), counters.streams_refused.clone());
        let (events, event_queue) = gossip::Driver::queue();
        let (commands, command_queue) = mpsc::channel(DRIVER_QUEUE);
        let (swarm_published, addresses, reach) = swarm::Published::new();
        let driver = swarm::Driver::new(
            &config,
            (behaviour, streams.clone()),
            swarm::Channels { commands: command_queue, events: events.clone(), published: swarm_published },
            counters.clone(),
        )?;
        let started_unix_ms = gossip::unix_ms();
        let published = gossip::Published::new(id);
        let gossip = gossip::Driver::new(
            &config,
            streams.clone(),
            gossip::Channels {
                protocol: protocols.gossip.clone(),
                events: event_queue,
                events_to_self: events.clone(),
                commands: commands.clone(),
                addresses: addresses.clone(),
            },
            published.clone(),
            counters.clone(),
            tasks,
        );
        tasks.spawn_to_end(driver.run(tasks.clone()));
        tasks.spawn_to_end(gossip.run(tasks.clone()));
        if let Some(state) = config.state {
            let keeper = Keeper::new(state, config.identity.is_kept(), published.clone(), counters.clone());
            tasks.spawn_to_end(keeper.run(tasks.clone()));
        }
        let reader = link::Reader::new(config.mesh.clone(), events.clone(), counters.clone());
        let (http, http_queue) = mpsc::channel(HTTP_QUEUE);
        let answerer = probe::Answerer::new(streams.clone(), commands.clone(), counters.clone());
        let takers = Takers { gossip: reader, probe: answerer, http };
        tasks.spawn(dispatch(inbound, protocols.clone(), takers, tasks.clone()));
        let tunnel = tunnel::Tunnel::new(protocols.http, tasks.clone());
        let inner = Inner {
            id,
            mesh: config.mesh,
            streams,
            tunnel,
            probe: protocols.probe,
            published,
            addresses,
            reach,
            events,
            commands,
            metrics: counters,
            started_unix_ms,
            _identity: config.identity,
        };
        let peer = Self { inner: Arc::new(inner) };
        if !config.listen.is_empty() {
            peer.listening().await;
        }
        Ok((peer, http_queue))
    }

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

    /// Why this peer has not joined, in a few words, or `None` if it has.
    #[must_use]
    pub fn not_joined(&self) -> Option<&'static str> {
        let off = self.skew_ms().is_some_and(|ms| Duration::from_millis(ms.unsigned_abs()) > CLOCK_SLACK);
        let reason =
            if off { "this machine's clock is hours off its neighbours'" } else { "no bootstrap has answered yet" };
        (!self.has_joined()).then_some(reason)
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

    /// What this peer has refused: of what, why, how often.
    fn refusals(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.inner.metrics.refusals()
    }

    /// Says this of itself from now on. Returns when it is on its way to the neighbours.
    ///
    /// # Errors
    /// [`AnnounceError`].
    pub async fn announce(&self, announcement: Announcement) -> Result<(), AnnounceError> {
        let (done, said) = oneshot::channel();
        let event = gossip::Event::Announce(Box::new(announcement), done);
        self.inner.events.send(event).await.map_err(|_| AnnounceError::Stopped)?;
        said.await.map_err(|_| AnnounceError::Stopped)?.map_err(AnnounceError::Refused)
    }

    /// Announces Left and waits, at most `within`, until the neighbours have read it. The peer itself is
    /// stopped by its [`Tasks`].
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
            Err(SendError::Broken { delivered, .. }) if self.is_lost(&connection).await => {
                Err(SendError::PathLost { delivered })
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
            return Ok(connection);
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

    /// Waits until the operating system has given us our addresses.
    async fn listening(&self) {
        let (mut addresses, mut reach) = (self.inner.addresses.clone(), self.inner.reach.clone());
        let given = async {
            tokio::select! {
                _ = addresses.wait_for(|addresses| !addresses.is_empty()) => {}
                _ = reach.wait_for(|reach| !reach.left_out.is_empty()) => {}
            }
        };
        if tokio::time::timeout(Duration::from_secs(2), given).await.is_err() {
            tracing::warn!("no address to listen on yet: is there a network interface?");
        }
    }
}

/// The names of a mesh's protocols.
#[derive(Debug, Clone)]
struct Protocols {
    gossip: StreamProtocol,
    probe: StreamProtocol,
    http: StreamProtocol,
}

impl Protocols {
    fn of(mesh: &MeshName) -> Self {
        let protocol = |name| StreamProtocol::try_from_owned(name).expect("a protocol name starts with a slash");
        let of = |name: fn(&MeshName) -> String| protocol(name(mesh));
        Self { gossip: of(gossip_protocol), probe: of(probe_protocol), http: of(http_protocol) }
    }

    fn offered(&self, http: bool) -> Vec<StreamProtocol> {
        let http = http.then(|| self.http.clone());
        [self.gossip.clone(), self.probe.clone()].into_iter().chain(http).collect()
    }
}

/// Who takes up inbound substreams.
struct Takers {
    gossip: link::Reader,
    probe: probe::Answerer,
    http: mpsc::Sender<Inbound>,
}

/// Hands inbound substreams to whom they are for.
async fn dispatch(mut inbound: mpsc::Receiver<Inbound>, protocols: Protocols, takers: Takers, tasks: Tasks) {
    while let Some(stream) = inbound.recv().await {
        if stream.protocol == protocols.gossip {
            tasks.spawn(takers.gossip.clone().read(stream.peer, stream.stream));
        } else if stream.protocol == protocols.probe {
            tasks.spawn(takers.probe.clone().answer(stream.peer, stream.stream));
        } else if takers.http.try_send(stream).is_err() {
            // Dropping resets the substream: the caller tries another node.
            tracing::warn!("request stream refused: the agent does not keep up");
        }
    }
}

#[cfg(test)]
mod tests;
