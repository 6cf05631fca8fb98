//! The one loop that owns the swarm: it dials, listens, watches connections, and tells the gossip task.

use super::{
    addresses::{announced, has_name, resolve_all},
    dialer::{Dialer, Target, Waiter},
    net::{self, Net, NetEvent},
};
use crate::{
    peer::{
        StartError,
        config::PeerConfig,
        defaults::{COMPLAIN_EVERY, DIALS_MAX, PING_MISSES_MAX},
        gossip::Event,
        metrics::PeerMetrics,
        streams::{self, Streams},
        transport,
    },
    tasks::Tasks,
    telemetry::chain,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Swarm, ping,
    swarm::{
        ConnectionId, DialError, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{
    collections::{BTreeSet, HashMap},
    io,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

/// A configured address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: choose another with --peer-listen, or stop what holds it")]
pub struct ListenError {
    address: Multiaddr,
    #[source]
    source: io::Error,
}

/// What others ask of the driver.
#[derive(Debug)]
pub(in crate::peer) enum Command {
    /// Stay connected to these, at these addresses.
    Want(Vec<(PeerId, Vec<Multiaddr>)>),
    /// Dial this one now, and say whether that has led to a connection.
    Dial(PeerId, Vec<Multiaddr>, Waiter),
    /// Dial this one now; events tell what becomes of it.
    Reach(PeerId, Vec<Multiaddr>),
    /// Close every connection to this one.
    Disconnect(PeerId),
}

/// What became of the names in a dial's addresses.
type Resolved = (Target, io::Result<Option<DialOpts>>);

/// The driver of one peer.
pub(in crate::peer) struct Driver {
    swarm: Swarm<Net>,
    dialer: Dialer,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<Event>,
    addresses: watch::Sender<BTreeSet<Multiaddr>>,
    external: Vec<Multiaddr>,
    streams: Streams,
    resolved: (mpsc::Sender<Resolved>, mpsc::Receiver<Resolved>),
    misses: HashMap<ConnectionId, u32>,
    bootstraps: Vec<Multiaddr>,
    bootstrap_dials: HashMap<ConnectionId, usize>,
    complained: HashMap<usize, Instant>,
    listener_complained: Option<Instant>,
    metrics: PeerMetrics,
}

/// The ends of the driver's channels that others hold.
pub(in crate::peer) struct Channels {
    pub(in crate::peer) commands: mpsc::Receiver<Command>,
    pub(in crate::peer) events: mpsc::Sender<Event>,
    pub(in crate::peer) addresses: watch::Sender<BTreeSet<Multiaddr>>,
}

impl Driver {
    /// Sets up the swarm and listens. `streams` is the behaviour and its handle.
    pub(in crate::peer) fn new(
        config: &PeerConfig,
        streams: (streams::Behaviour, Streams),
        channels: Channels,
        metrics: PeerMetrics,
    ) -> Result<Self, StartError> {
        let key = config.identity.keypair();
        let (behaviour, streams) = streams;
        let mut swarm = net::swarm(key, behaviour)?;
        for address in &config.listen {
            listen(&mut swarm, address)?;
        }
        let mut dialer = Dialer::new(config.bootstrap.clone(), Instant::now());
        if let Some(state) = &config.state {
            dialer.remember(state.peers(swarm.local_peer_id()), Instant::now());
        }
        Ok(Self {
            swarm,
            dialer,
            commands: channels.commands,
            events: channels.events,
            addresses: channels.addresses,
            external: config.external.clone(),
            streams,
            resolved: mpsc::channel(DIALS_MAX),
            misses: HashMap::new(),
            bootstraps: config.bootstrap.clone(),
            bootstrap_dials: HashMap::new(),
            complained: HashMap::new(),
            listener_complained: None,
            metrics,
        })
    }

    /// Runs until the tasks are stopped.
    pub(in crate::peer) async fn run(mut self, tasks: Tasks) {
        self.publish_addresses();
        loop {
            let next_dial = self.dialer.next();
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event).await,
                Some(command) = self.commands.recv() => self.on_command(command),
                Some((target, opts)) = self.resolved.1.recv() => self.on_resolved(target, opts),
                () = sleep_until(next_dial) => self.dial_due(&tasks),
                () = tasks.stopped() => break,
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Want(wanted) => {
                let swarm = &self.swarm;
                self.dialer.want(wanted, |peer| swarm.is_connected(peer), swarm.local_peer_id(), now);
            }
            Command::Dial(peer, _, waiter) if self.swarm.is_connected(&peer) => _ = waiter.send(true),
            Command::Dial(peer, addresses, waiter) => self.dialer.hurry(peer, addresses, Some(waiter), now),
            Command::Reach(peer, _) if self.swarm.is_connected(&peer) => {}
            Command::Reach(peer, addresses) => self.dialer.hurry(peer, addresses, None, now),
            Command::Disconnect(peer) => {
                for connection in self.streams.all().iter().filter(|connection| connection.peer() == peer) {
                    self.streams.give_up(&peer, connection.id());
                }
                // Not connected any more is as good.
                let _ = self.swarm.disconnect_peer_id(peer);
            }
        }
    }

    fn dial_due(&mut self, tasks: &Tasks) {
        for due in self.dialer.take_due(Instant::now()) {
            if !due.addresses.iter().any(has_name) {
                self.dial(due.target, dial_opts(due.peer, due.addresses));
                continue;
            }
            // A resolver may take its time; the swarm cannot wait for it.
            let resolved = self.resolved.0.clone();
            tasks.spawn(async move {
                let addresses = resolve_all(due.addresses).await;
                let _ = resolved.send((due.target, addresses.map(|found| dial_opts(due.peer, found)))).await;
            });
        }
    }

    fn on_resolved(&mut self, target: Target, opts: io::Result<Option<DialOpts>>) {
        match opts {
            Ok(opts) => self.dial(target, opts),
            Err(error) => {
                let name = match target {
                    Target::Bootstrap(n) => Some(self.bootstraps[n].to_string()),
                    Target::Peer(peer) => Some(peer.to_string()),
                    Target::Remembered(_) => None,
                };
                if let Some(address) = name {
                    tracing::warn!(address, %error, "cannot resolve a peer's name, will try again");
                }
                self.dialer.refused(target, Instant::now());
            }
        }
    }

    fn dial(&mut self, target: Target, opts: Option<DialOpts>) {
        let Some(opts) = opts else { return self.dialer.refused(target, Instant::now()) };
        let id = opts.connection_id();
        self.dialer.started(target, id);
        if let Target::Bootstrap(n) = target {
            self.bootstrap_dials.insert(id, n);
        }
        if let Err(error) = self.swarm.dial(opts) {
            tracing::debug!(%error, ?target, "dial refused");
            self.dialer.failed(id, Instant::now());
        }
    }

    async fn on_event(&mut self, event: SwarmEvent<NetEvent>) {
        match event {
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.metrics.connections.inc();
                self.metrics.connections_opened.inc();
                self.dialer.connected(peer_id, connection_id, Instant::now());
                self.bootstrap_dials.remove(&connection_id);
                tracing::debug!(peer = %peer_id, address = %endpoint.get_remote_address(), "connected");
                self.tell(Event::Connected(peer_id, connection_id)).await;
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                self.metrics.connections.dec();
                self.misses.remove(&connection_id);
                if num_established == 0 {
                    tracing::debug!(peer = %peer_id, ?cause, "disconnected");
                    self.dialer.lost(&peer_id, Instant::now());
                }
                self.tell(Event::Disconnected { peer: peer_id, id: connection_id, last: num_established == 0 }).await;
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, peer_id } => {
                self.on_dial_failed(connection_id, &error, peer_id).await;
            }
            SwarmEvent::NewListenAddr { address, .. } => {
                tracing::info!(%address, "listening");
                self.publish_addresses();
            }
            SwarmEvent::ExpiredListenAddr { .. } | SwarmEvent::ListenerClosed { .. } => self.publish_addresses(),
            SwarmEvent::ListenerError { error, .. } => self.complain_of_listener(&error),
            SwarmEvent::Behaviour(NetEvent::Ping(event)) => self.on_ping(event),
            _ => {}
        }
    }

    /// Out of file descriptors, a listener fails ten times a second.
    fn complain_of_listener(&mut self, error: &io::Error) {
        if self.listener_complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            self.listener_complained = Some(Instant::now());
            tracing::warn!(%error, "cannot accept connections of other peers, will go on trying");
        }
    }

    async fn on_dial_failed(&mut self, id: ConnectionId, error: &DialError, peer: Option<PeerId>) {
        let remembered = self.dialer.is_of_remembered(id);
        let meant = self.dialer.failed(id, Instant::now());
        if matches!(error, DialError::DialPeerConditionFalse(_)) {
            return;
        }
        self.metrics.dials_failed.inc();
        tracing::debug!(?peer, %error, "dial failed");
        self.complain(id, error);
        // Whoever is known from an earlier run only is nobody yet.
        if !remembered
            && let Some(peer) = peer.or(meant)
            && !self.swarm.is_connected(&peer)
        {
            self.tell(Event::Unreachable(peer)).await;
        }
    }

    /// A bootstrap that does not answer is worth a line now and then; other peers come and go.
    fn complain(&mut self, id: ConnectionId, error: &DialError) {
        let Some(bootstrap) = self.bootstrap_dials.remove(&id) else { return };
        let last = self.complained.get(&bootstrap);
        if last.is_some_and(|last| last.elapsed() < COMPLAIN_EVERY) {
            return;
        }
        self.complained.insert(bootstrap, Instant::now());
        let address = &self.bootstraps[bootstrap];
        let error = match error {
            DialError::WrongPeerId { obtained, .. } => format!("another peer is there: {obtained}"),
            DialError::Transport(failures) => {
                failures.first().map_or_else(String::new, |(_, error)| chain(error).replace('\n', " "))
            }
            other => other.to_string().replace('\n', " "),
        };
        tracing::warn!(%address, error, "a bootstrap does not answer, will go on trying");
    }

    fn on_ping(&mut self, event: ping::Event) {
        match event.result {
            Ok(rtt) => {
                self.misses.remove(&event.connection);
                self.streams.measured(&event.peer, event.connection, rtt);
            }
            Err(ping::Failure::Unsupported) => {}
            Err(failure) => {
                let misses = self.misses.entry(event.connection).or_default();
                *misses += 1;
                if *misses >= PING_MISSES_MAX {
                    tracing::warn!(peer = %event.peer, %failure, "closing a connection that does not answer");
                    self.metrics.connections_closed_by_ping.inc();
                    self.streams.give_up(&event.peer, event.connection);
                    self.swarm.close_connection(event.connection);
                }
            }
        }
    }

    /// The gossip task never waits for the driver, so this wait is bounded by its own work.
    async fn tell(&mut self, event: Event) {
        // It is gone only while the peer stops.
        let _ = self.events.send(event).await;
    }

    fn publish_addresses(&self) {
        let addresses = announced(self.swarm.listeners(), &self.external);
        self.addresses.send_if_modified(|old| {
            let changed = *old != addresses;
            *old = addresses;
            changed
        });
    }
}

fn listen(swarm: &mut Swarm<Net>, address: &Multiaddr) -> Result<(), ListenError> {
    let failed = |source| ListenError { address: address.clone(), source };
    transport::check_free(address).map_err(failed)?;
    swarm.listen_on(address.clone()).map(drop).map_err(|error| failed(io::Error::other(error)))
}

/// `None` if there is nothing to dial.
fn dial_opts(peer: Option<PeerId>, addresses: Vec<Multiaddr>) -> Option<DialOpts> {
    let first = addresses.first()?.clone();
    Some(match peer {
        Some(peer) => DialOpts::peer_id(peer).condition(PeerCondition::Disconnected).addresses(addresses).build(),
        None => DialOpts::unknown_peer_id().address(first).build(),
    })
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
