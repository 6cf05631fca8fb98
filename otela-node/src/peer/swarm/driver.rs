//! The one loop that owns the swarm: it dials, listens, watches connections, and tells the gossip task.

use super::{
    addresses::{announced, bounded, has_name, is_relayed, resolve_all},
    dialer::{Contact, Dialer, Target, Waiter},
    direct::{Look, Search},
    net::{self, Net},
    relay::Guests,
    reservations::{Lost, Reservations},
};
use crate::{
    peer::{
        StartError,
        config::PeerConfig,
        defaults::{DIALS_MAX, TIDY_EVERY},
        gossip::Event,
        metrics::PeerMetrics,
        streams::{self, Carrier, CircuitLimit, Relays, Streams},
        transport,
    },
    tasks::Tasks,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Swarm,
    core::transport::ListenerId,
    multiaddr::Protocol,
    swarm::{
        ConnectionId,
        dial_opts::{DialOpts, PeerCondition},
    },
};
use otela_proto::payload::Role;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
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
    Want(Vec<Contact>),
    /// These relay for others; the first ones are preferred.
    Relays(Vec<Contact>),
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
    pub(super) swarm: Swarm<Net>,
    pub(super) dialer: Dialer,
    commands: mpsc::Receiver<Command>,
    pub(super) events: mpsc::Sender<Event>,
    published: Published,
    external: Vec<Multiaddr>,
    pub(super) streams: Streams,
    resolved: (mpsc::Sender<Resolved>, mpsc::Receiver<Resolved>),
    pub(super) misses: HashMap<ConnectionId, u32>,
    pub(super) bootstraps: Vec<Multiaddr>,
    pub(super) bootstrap_dials: HashMap<ConnectionId, usize>,
    pub(super) complained: HashMap<usize, Instant>,
    pub(super) listener_complained: Option<Instant>,
    /// Whom to stay connected to, relays aside.
    wanted: Vec<Contact>,
    reservations: Reservations,
    is_dialled: bool,
    is_told: bool,
    pub(super) search: Search,
    /// What relays allow one circuit.
    pub(super) circuit_limits: HashMap<PeerId, CircuitLimit>,
    pub(super) guests: Guests,
    tidy_at: Option<Instant>,
    pub(super) metrics: PeerMetrics,
}

/// The ends of the driver's channels that others hold.
pub(in crate::peer) struct Channels {
    pub(in crate::peer) commands: mpsc::Receiver<Command>,
    pub(in crate::peer) events: mpsc::Sender<Event>,
    pub(in crate::peer) published: Published,
}

/// What the driver tells everybody.
#[derive(Debug)]
pub(in crate::peer) struct Published {
    pub(in crate::peer) addresses: watch::Sender<BTreeSet<Multiaddr>>,
    pub(in crate::peer) reach: watch::Sender<Reach>,
}

impl Published {
    pub(in crate::peer) fn new() -> (Self, watch::Receiver<BTreeSet<Multiaddr>>, watch::Receiver<Reach>) {
        let (addresses, addresses_seen) = watch::channel(BTreeSet::new());
        let (reach, reach_seen) = watch::channel(Reach::default());
        (Self { addresses, reach }, addresses_seen, reach_seen)
    }
}

/// How others can reach this peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Somebody has connected to an address of ours, or one was configured.
    pub is_dialled: bool,
    /// The relays that relay for this peer.
    pub relays: Vec<PeerId>,
    /// How many relays of the mesh could, once the mesh has told.
    pub relays_known: Option<usize>,
}

impl Reach {
    /// Whether somebody who never met this peer can reach it. Where no relay is known nothing better can be had than
    /// the addresses that it listens on.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.is_dialled || !self.relays.is_empty() || self.relays_known == Some(0)
    }
}

impl Driver {
    /// Sets up the swarm and listens. `streams` is the behaviour and its handle.
    pub(in crate::peer) fn new(
        config: &PeerConfig,
        streams: (streams::Behaviour, Streams),
        channels: Channels,
        metrics: PeerMetrics,
    ) -> Result<Self, StartError> {
        let (behaviour, streams) = streams;
        let mut swarm = net::swarm(config, behaviour, &metrics)?;
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
            published: channels.published,
            external: config.external.clone(),
            streams,
            resolved: mpsc::channel(DIALS_MAX),
            misses: HashMap::new(),
            bootstraps: config.bootstrap.clone(),
            bootstrap_dials: HashMap::new(),
            complained: HashMap::new(),
            listener_complained: None,
            wanted: Vec::new(),
            reservations: Reservations::default(),
            is_dialled: !config.external.is_empty() || config.roles.contains(&Role::Relay),
            is_told: false,
            search: Search::default(),
            circuit_limits: HashMap::new(),
            guests: Guests::default(),
            tidy_at: None,
            metrics,
        })
    }

    /// Runs until the tasks are stopped.
    pub(in crate::peer) async fn run(mut self, tasks: Tasks) {
        self.publish_addresses();
        self.publish_reach();
        loop {
            let next_dial = self.dialer.next();
            let next_reservation = self.reservations.next(Instant::now());
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event).await,
                Some(command) = self.commands.recv() => self.on_command(command),
                Some((target, opts)) = self.resolved.1.recv() => self.on_resolved(target, opts),
                () = sleep_until(next_dial) => self.dial_due(&tasks),
                () = sleep_until(next_reservation) => self.reserve(),
                () = sleep_until(self.tidy_at) => self.tidy(),
                () = tasks.stopped() => break,
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Want(wanted) => {
                self.wanted = wanted;
                self.want();
            }
            Command::Relays(relays) => {
                self.is_told = true;
                self.reservations.offer(relays, now);
                self.reserve();
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

    /// Tells the dialer whom to stay connected to.
    fn want(&mut self) {
        let relays = self.reservations.chosen();
        let relays = relays.into_iter().filter(|relay| self.wanted.iter().all(|wanted| wanted.peer != relay.peer));
        let wanted = self.wanted.iter().chain(relays).cloned().collect();
        let swarm = &self.swarm;
        self.dialer.want(wanted, |peer| swarm.is_connected(peer), swarm.local_peer_id(), Instant::now());
    }

    /// Asks relays that are connected to relay for us, as many as are wanted.
    pub(super) fn reserve(&mut self) {
        let now = Instant::now();
        for overdue in self.reservations.overdue(now) {
            tracing::warn!("a relay does not answer, will ask it again");
            self.swarm.remove_listener(overdue);
            self.on_reservation_ended(overdue, "no answer");
        }
        let streams = &self.streams;
        let connected = |relay: &PeerId| streams.direct(relay).map(|connection| connection.remote().clone());
        for (relay, address) in self.reservations.due(connected, now) {
            let address = match address.iter().last() {
                Some(Protocol::P2p(_)) => address,
                _ => address.with(Protocol::P2p(relay)),
            };
            match self.swarm.listen_on(address.with(Protocol::P2pCircuit)) {
                Ok(listener) => self.reservations.asked(&relay, listener, now),
                Err(error) => tracing::warn!(%relay, %error, "cannot ask a relay"),
            }
        }
        self.want();
        self.publish_reach();
    }

    /// A relay relays for us.
    pub(super) fn on_reserved(&mut self, listener: ListenerId) {
        if let Some(relay) = self.reservations.held(listener) {
            tracing::info!(%relay, "reachable through a relay");
            self.publish_reach();
            self.look_over_quic(relay);
        }
    }

    /// Lets a relay that we talk to over TCP tell us how we look over QUIC.
    fn look_over_quic(&mut self, relay: PeerId) {
        let listens = self.swarm.listeners().any(|own| Carrier::of(own) == Carrier::Quic && !is_relayed(own));
        let over_tcp = self.streams.direct(&relay).is_some_and(|connection| connection.carrier() == Carrier::Tcp);
        let contact = self.reservations.contact(&relay);
        if listens
            && over_tcp
            && let Some(contact) = contact
            && let Some(address) = self.search.over_quic(relay, &contact.addresses, Instant::now())
        {
            self.dial_again(relay, vec![address]);
        }
    }

    /// A relay has refused, or relays for us no more.
    pub(super) fn on_reservation_ended(&mut self, listener: ListenerId, why: &str) {
        let Some((relay, lost)) = self.reservations.lost(listener, Instant::now()) else { return };
        match lost {
            Lost::Held => {
                self.metrics.reservations_lost.inc();
                tracing::warn!(%relay, why, "a relay does not relay for this peer any more, will ask again");
            }
            Lost::Refused => {
                self.metrics.reservations_refused.inc();
                tracing::warn!(%relay, why, "a relay does not relay for this peer, will ask again");
            }
            Lost::RefusedAgain => {
                self.metrics.reservations_refused.inc();
                tracing::debug!(%relay, why, "a relay does not relay for this peer, will ask again");
            }
        }
        self.reserve();
    }

    /// Somebody has connected to an address that we listen on.
    pub(super) fn on_dialled(&mut self) {
        self.is_dialled = true;
        self.publish_reach();
    }

    fn publish_reach(&self) {
        let relays = self.reservations.holding();
        self.metrics.reservations.set(i64::try_from(relays.len()).unwrap_or(i64::MAX));
        let relays_known = self.is_told.then(|| self.reservations.len());
        let reach = Reach { is_dialled: self.is_dialled, relays, relays_known };
        self.published.reach.send_if_modified(|old| {
            let changed = *old != reach;
            *old = reach;
            changed
        });
    }

    /// Of several connections to one peer closes those that are not needed, once nothing runs on them, and looks for
    /// direct ways to peers that have none.
    pub(super) fn tidy(&mut self) {
        let known = self.wanted.iter().filter(|contact| contact.is_relay).map(|contact| contact.peer);
        let known: HashSet<_> = known.chain(self.reservations.peers()).collect();
        let relays = if self.swarm.behaviour().relay.is_enabled() { Relays::We } else { Relays::Other(&known) };
        let (unused, several) = self.streams.tidy(self.swarm.local_peer_id(), &relays);
        for connection in unused {
            tracing::debug!(peer = %connection.peer(), path = ?connection.path(), "closing a connection beside a better one");
            self.metrics.connections_retired.inc();
            self.streams.give_up(&connection.peer(), connection.id());
            self.swarm.close_connection(connection.id());
        }
        for worn in self.streams.worn(&self.circuit_limits) {
            self.dial_again(worn.peer(), vec![worn.remote().clone()]);
        }
        let relayed = self.streams.relayed();
        self.tidy_at = (several || !relayed.is_empty()).then(|| Instant::now() + TIDY_EVERY);
        for Look { connection, again } in self.search.due(relayed, Instant::now()) {
            let peer = connection.peer();
            let known = self.wanted.iter().find(|contact| contact.peer == peer);
            let known = known.or_else(|| self.reservations.contact(&peer));
            let own: Vec<_> = known.into_iter().flat_map(|contact| &contact.addresses).cloned().collect();
            let own =
                bounded(own, self.swarm.local_peer_id()).into_iter().filter(|address| !is_relayed(address)).collect();
            if let Some(id) = self.dial_again(peer, own) {
                self.search.dialled(id);
            }
            if again {
                self.dial_again(peer, vec![connection.remote().clone()]);
            }
        }
    }

    /// Dials a peer that is connected.
    fn dial_again(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) -> Option<ConnectionId> {
        if addresses.is_empty() {
            return None;
        }
        let again = DialOpts::peer_id(peer).condition(PeerCondition::Always).addresses(addresses).build();
        let id = again.connection_id();
        self.swarm.dial(again).inspect_err(|error| tracing::debug!(%peer, %error, "dial refused")).ok()?;
        Some(id)
    }

    pub(super) fn publish_addresses(&mut self) {
        let addresses = announced(self.swarm.listeners(), &self.external);
        if self.swarm.behaviour().relay.is_enabled() {
            self.tell_guests(&addresses);
        }
        self.published.addresses.send_if_modified(|old| {
            let changed = *old != addresses;
            *old = addresses;
            changed
        });
    }

    /// A relay tells those it relays for where it is, and does not relay before it knows that.
    fn tell_guests(&mut self, addresses: &BTreeSet<Multiaddr>) {
        let old: Vec<_> = self.swarm.external_addresses().filter(|old| !addresses.contains(old)).cloned().collect();
        for gone in old {
            self.swarm.remove_external_address(&gone);
        }
        for address in addresses.iter().filter(|address| !is_relayed(address)) {
            self.swarm.add_external_address(address.clone());
        }
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
