//! The one loop that owns the swarm: it dials, listens, watches connections, and tells the gossip task.

use super::{
    config::PeerConfig,
    defaults::{
        COMPLAIN_EVERY, CONNECTIONS_MAX, CONNECTIONS_PENDING_MAX, CONNECTIONS_PER_PEER_MAX, DIALS_MAX, PING_EVERY,
        PING_MISSES_MAX, PING_WITHIN,
    },
    dialer::{Dialer, Target, Waiter},
    gossip::Event,
    metrics::PeerMetrics,
    streams::{self, Streams},
    transport,
};
use crate::{tasks::Tasks, telemetry::chain};
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Swarm,
    connection_limits::{self, ConnectionLimits},
    multiaddr::Protocol,
    ping,
    swarm::{
        self, ConnectionId, DialError, NetworkBehaviour, SwarmEvent,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use std::{
    collections::{BTreeSet, HashMap},
    io,
    num::{NonZeroU8, NonZeroUsize},
    time::Duration,
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
pub(super) enum Command {
    /// Stay connected to these, at these addresses.
    Want(Vec<(PeerId, Vec<Multiaddr>)>),
    /// Dial this one now, and say whether that has led to a connection.
    Dial(PeerId, Vec<Multiaddr>, Waiter),
    /// Dial this one now; events tell what becomes of it.
    Reach(PeerId, Vec<Multiaddr>),
    /// Close every connection to this one.
    Disconnect(PeerId),
}

/// The behaviours. The limits come first: a connection that they deny is then never seen by the others.
#[derive(NetworkBehaviour)]
struct Net {
    limits: connection_limits::Behaviour,
    streams: streams::Behaviour,
    ping: ping::Behaviour,
}

/// What became of the names in a dial's addresses.
type Resolved = (Target, io::Result<Option<DialOpts>>);

/// The driver of one peer.
pub(super) struct Driver {
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
pub(super) struct Channels {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) addresses: watch::Sender<BTreeSet<Multiaddr>>,
}

impl Driver {
    /// Sets up the swarm and listens. `streams` is the behaviour and its handle.
    pub(super) fn new(
        config: &PeerConfig,
        streams: (streams::Behaviour, Streams),
        channels: Channels,
        metrics: PeerMetrics,
    ) -> Result<Self, super::StartError> {
        let key = config.identity.keypair();
        let (behaviour, streams) = streams;
        let limits = ConnectionLimits::default()
            .with_max_pending_incoming(Some(CONNECTIONS_PENDING_MAX))
            .with_max_pending_outgoing(Some(CONNECTIONS_PENDING_MAX))
            .with_max_established(Some(CONNECTIONS_MAX))
            .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
        let net = Net {
            limits: connection_limits::Behaviour::new(limits),
            streams: behaviour,
            ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_EVERY).with_timeout(PING_WITHIN)),
        };
        let swarm_config = swarm::Config::with_tokio_executor()
            .with_idle_connection_timeout(Duration::from_hours(24))
            .with_substream_upgrade_protocol_override(libp2p::core::upgrade::Version::V1Lazy)
            .with_max_negotiating_inbound_streams(1_024)
            .with_notify_handler_buffer_size(NonZeroUsize::MIN.saturating_add(63))
            .with_per_connection_event_buffer_size(64)
            .with_dial_concurrency_factor(NonZeroU8::MIN.saturating_add(7));
        let mut swarm = Swarm::new(transport::build(key)?, net, key.public().to_peer_id(), swarm_config);
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
    pub(super) async fn run(mut self, tasks: Tasks) {
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

/// The addresses worth telling others: configured ones, and those we listen on. Loopback and link-local ones
/// only when there is nothing else, that is on a machine that talks to itself.
fn announced<'a>(listening: impl Iterator<Item = &'a Multiaddr>, external: &[Multiaddr]) -> BTreeSet<Multiaddr> {
    let (near, far): (BTreeSet<_>, BTreeSet<_>) = listening.cloned().partition(is_near);
    let addresses: BTreeSet<_> = external.iter().cloned().chain(far).collect();
    if addresses.is_empty() { near } else { addresses }
}

fn is_near(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback() || ip.is_link_local(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback() || ip.is_unicast_link_local(),
        _ => false,
    }
}

/// `None` if there is nothing to dial.
fn dial_opts(peer: Option<PeerId>, addresses: Vec<Multiaddr>) -> Option<DialOpts> {
    let first = addresses.first()?.clone();
    Some(match peer {
        Some(peer) => DialOpts::peer_id(peer).condition(PeerCondition::Disconnected).addresses(addresses).build(),
        None => DialOpts::unknown_peer_id().address(first).build(),
    })
}

fn has_name(address: &Multiaddr) -> bool {
    matches!(address.iter().next(), Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)))
}

/// Names are resolved by the system's resolver, which knows what the site's administrators set up. One name that
/// cannot be resolved does not spoil the other addresses.
async fn resolve_all(addresses: Vec<Multiaddr>) -> io::Result<Vec<Multiaddr>> {
    let (mut found, mut failed) = (Vec::new(), None);
    for address in addresses {
        match resolve(address).await {
            Ok(resolved) => found.extend(resolved),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

async fn resolve(address: Multiaddr) -> io::Result<Vec<Multiaddr>> {
    let (name, keep) = match address.iter().next() {
        Some(Protocol::Dns(name)) => (name.into_owned(), (true, true)),
        Some(Protocol::Dns4(name)) => (name.into_owned(), (true, false)),
        Some(Protocol::Dns6(name)) => (name.into_owned(), (false, true)),
        _ => return Ok(vec![address]),
    };
    let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
    let ips = found.map(|socket| socket.ip()).filter(|ip| if ip.is_ipv4() { keep.0 } else { keep.1 });
    Ok(ips.map(|ip| std::iter::once(Protocol::from(ip)).chain(address.iter().skip(1)).collect()).collect())
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_announced_only_when_there_is_nothing_else() {
        let near: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let far: Multiaddr = "/ip4/10.0.0.7/tcp/1".parse().unwrap();
        let public: Multiaddr = "/dns4/relay.example/tcp/443".parse().unwrap();
        let set = |addresses: &[&Multiaddr]| addresses.iter().map(|a| (*a).clone()).collect::<BTreeSet<_>>();
        assert_eq!(announced([&near].into_iter(), &[]), set(&[&near]));
        assert_eq!(announced([&near, &far].into_iter(), &[]), set(&[&far]));
        assert_eq!(announced([&near].into_iter(), std::slice::from_ref(&public)), set(&[&public]));
    }

    #[tokio::test]
    async fn names_become_numbers_and_the_rest_stays() {
        let resolved = resolve("/dns4/localhost/tcp/9/p2p-circuit".parse().unwrap()).await.unwrap();
        assert_eq!(resolved, ["/ip4/127.0.0.1/tcp/9/p2p-circuit".parse().unwrap()]);
    }
}
