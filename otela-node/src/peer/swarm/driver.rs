//! The one loop that owns the swarm: it dials, listens, watches connections, and tells the gossip task.

use super::{
    addresses::{LeftOut, announced, is_relayed},
    asked::{Asked, OneDial, Reached},
    complaints::{Complaints, Said},
    dialer::{Contact, Dialer, Target, Waiter},
    direct::Search,
    limits::Limits,
    lookup::Lookup,
    net::{self, Net},
    relay::Guests,
    reservations::Reservations,
    via::Via,
};
use crate::{
    peer::{
        StartError,
        admission::Admission,
        bootstrap::{Bootstrap, Told, Troubles},
        choice::{AddressChoice, Interfaces},
        config::PeerConfig,
        defaults::{DIALS_MAX, JUDGE_EVERY},
        gossip::Event,
        metrics::PeerMetrics,
        streams::{self, Streams},
        transport::{self, Answers},
    },
    tasks::Tasks,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, PeerId, StreamProtocol, Swarm,
    swarm::{ConnectionId, dial_opts::DialOpts},
};
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
    /// These public peers are in the registry.
    Public(Vec<Contact>),
    /// These relay for others; the first ones are preferred.
    Relays(Vec<Contact>),
    /// Dial this one now, and say whether that has led to a connection.
    Dial(PeerId, Vec<Multiaddr>, Waiter),
    /// Dial this one now; events tell what becomes of it.
    Reach(PeerId, Vec<Multiaddr>),
    /// Dial this one address now, and say what came of it.
    DialAt(OneDial, Reached),
    /// Close one connection.
    Close(PeerId, ConnectionId),
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
    told: mpsc::Receiver<Told>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) published: Published,
    external: Vec<Multiaddr>,
    choice: AddressChoice,
    /// What is listened on and not told.
    pub(super) left_out: Vec<LeftOut>,
    /// What was chosen and matches nothing of this machine.
    pub(super) unmatched: Vec<String>,
    pub(super) streams: Streams,
    pub(super) resolved: (mpsc::Sender<Resolved>, mpsc::Receiver<Resolved>),
    pub(super) misses: HashMap<ConnectionId, u32>,
    pub(super) bootstraps: Vec<Bootstrap>,
    pub(super) via: Via,
    pub(super) bootstrap_dials: HashMap<ConnectionId, Target>,
    /// Dials that are under way, ours and libp2p's own.
    pub(super) dialling: HashMap<ConnectionId, PeerId>,
    pub(super) complaints: Complaints,
    pub(super) said: Said,
    /// Whom to stay connected to, relays aside.
    pub(super) wanted: Vec<Contact>,
    /// The relays to stay connected to, as the dialer was told.
    pub(super) relays_wanted: Vec<Contact>,
    /// Public peers of the registry.
    pub(super) public: Vec<Contact>,
    /// Those that are connected and answer Kademlia's questions.
    pub(super) answering: HashSet<PeerId>,
    pub(super) lookup: Lookup,
    pub(super) reservations: Reservations,
    pub(super) is_dialled: bool,
    pub(super) is_told: bool,
    pub(super) search: Search,
    pub(super) asked: Asked,
    /// How others see this peer, the latest last.
    pub(super) observed: Vec<Observed>,
    pub(super) guests: Guests,
    pub(super) limits: Limits,
    pub(super) tidy_at: Option<Instant>,
    pub(super) admission: Admission,
    pub(super) metrics: PeerMetrics,
}

/// The ends of the driver's channels that others hold.
pub(in crate::peer) struct Channels {
    pub(in crate::peer) commands: mpsc::Receiver<Command>,
    pub(in crate::peer) told: mpsc::Receiver<Told>,
    pub(in crate::peer) events: mpsc::Sender<Event>,
    pub(in crate::peer) published: Published,
}

/// What the driver tells everybody.
#[derive(Debug)]
pub(in crate::peer) struct Published {
    pub(in crate::peer) addresses: watch::Sender<BTreeSet<Multiaddr>>,
    pub(in crate::peer) reach: watch::Sender<Reach>,
    /// Whether there are bootstraps, and none is connected.
    pub(in crate::peer) deserted: watch::Sender<bool>,
    pub(in crate::peer) troubles: Troubles,
}

/// The other ends of [`Published`].
#[derive(Debug)]
pub(in crate::peer) struct Seen {
    pub(in crate::peer) addresses: watch::Receiver<BTreeSet<Multiaddr>>,
    pub(in crate::peer) reach: watch::Receiver<Reach>,
    pub(in crate::peer) deserted: watch::Receiver<bool>,
    pub(in crate::peer) troubles: Troubles,
}

impl Published {
    pub(in crate::peer) fn new() -> (Self, Seen) {
        let (addresses, addresses_seen) = watch::channel(BTreeSet::new());
        let (reach, reach_seen) = watch::channel(Reach::default());
        let (deserted, deserted_seen) = watch::channel(false);
        let troubles = Troubles::default();
        let seen =
            Seen { addresses: addresses_seen, reach: reach_seen, deserted: deserted_seen, troubles: troubles.clone() };
        (Self { addresses, reach, deserted, troubles }, seen)
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
    /// Addresses that this peer listens on and does not tell others.
    pub left_out: Vec<LeftOut>,
    /// What `--announce` names and this machine does not have.
    pub unmatched: Vec<String>,
    /// As what others see this peer: of each the latest word for each transport, and of many the latest ones.
    pub observed: Vec<Observed>,
}

/// As what another peer sees this one, on a connection that this one has dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Who sees it.
    pub by: PeerId,
    /// The address as which it is seen.
    pub address: Multiaddr,
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
    /// Sets up the swarm and listens. `streams` is the behaviour and its handle, and the name of Kademlia's protocol.
    pub(in crate::peer) fn new(
        config: &PeerConfig,
        streams: (streams::Behaviour, Streams, StreamProtocol),
        admission: Admission,
        channels: Channels,
        metrics: PeerMetrics,
    ) -> Result<Self, StartError> {
        let (behaviour, streams, kademlia) = streams;
        let answers = Answers::default();
        let mut swarm = net::swarm(config, (behaviour, kademlia), &admission, &metrics, &answers)?;
        for address in &config.listen {
            listen(&mut swarm, address)?;
        }
        let bootstraps = config.bootstraps();
        let addresses = bootstraps.iter().enumerate().filter_map(|(n, bootstrap)| match bootstrap {
            Bootstrap::Address(address) => Some((n, address.clone())),
            Bootstrap::DnsAddr { .. } | Bootstrap::List(_) => None,
        });
        let proxy = config.egress.proxy.clone();
        let mut dialer = Dialer::new(bootstraps.len(), addresses, Instant::now()).with(proxy, answers);
        if let Some(state) = &config.state {
            dialer.remember(state.peers(swarm.local_peer_id()), Instant::now());
        }
        Ok(Self {
            swarm,
            dialer,
            commands: channels.commands,
            told: channels.told,
            events: channels.events,
            published: channels.published,
            external: config.external.clone(),
            choice: config.announce.clone(),
            left_out: Vec::new(),
            unmatched: Vec::new(),
            streams,
            resolved: mpsc::channel(DIALS_MAX),
            misses: HashMap::new(),
            via: Via::new(&config.via, bootstraps.len() - config.via.len()),
            bootstraps,
            bootstrap_dials: HashMap::new(),
            dialling: HashMap::new(),
            complaints: Complaints::default(),
            said: Said::default(),
            wanted: Vec::new(),
            relays_wanted: Vec::new(),
            public: Vec::new(),
            answering: HashSet::new(),
            lookup: Lookup::default(),
            reservations: Reservations::default(),
            is_dialled: config.is_public(),
            is_told: false,
            search: Search::default(),
            asked: Asked::default(),
            observed: Vec::new(),
            guests: Guests::default(),
            limits: Limits::default(),
            tidy_at: None,
            admission,
            metrics,
        })
    }

    /// Runs until the tasks are stopped.
    pub(in crate::peer) async fn run(mut self, tasks: Tasks) {
        self.publish_addresses();
        self.publish_reach();
        let (mut rules, mut judge_at) = (self.admission.changes(), Instant::now() + JUDGE_EVERY);
        loop {
            self.watch_bootstraps();
            let next_dial = self.dialer.next();
            let next_reservation = self.reservations.next(Instant::now());
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event).await,
                Some(command) = self.commands.recv() => self.on_command(command),
                Some(told) = self.told.recv() => self.on_told(told),
                Some((target, opts)) = self.resolved.1.recv() => self.on_resolved(target, opts),
                () = sleep_until(next_dial) => self.dial_due(&tasks),
                () = sleep_until(next_reservation) => self.reserve(),
                () = sleep_until(self.tidy_at) => self.tidy(),
                Ok(()) = rules.changed() => self.on_rules_changed(),
                () = tokio::time::sleep_until(judge_at) => {
                    judge_at = Instant::now() + JUDGE_EVERY;
                    self.judge_again();
                }
                () = sleep_until(self.lookup.next()) => self.look_up(),
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
                self.feed_kademlia();
            }
            Command::Public(public) => {
                self.public = public;
                self.feed_kademlia();
            }
            Command::Relays(relays) => {
                self.is_told = true;
                self.reservations.offer(self.via.only(relays), now);
                self.reserve();
            }
            Command::Dial(peer, _, waiter) if self.streams.best(&peer).is_some() => _ = waiter.send(true),
            Command::Dial(peer, addresses, waiter) => self.dialer.hurry(peer, addresses, Some(waiter), now),
            Command::Reach(peer, _) if self.swarm.is_connected(&peer) => {}
            Command::Reach(peer, addresses) => self.dialer.hurry(peer, addresses, None, now),
            Command::DialAt(dial, reached) => self.dial_at(dial, reached),
            Command::Close(peer, id) => {
                self.streams.give_up(&peer, id);
                self.swarm.close_connection(id);
            }
            Command::Disconnect(peer) => self.disconnect(peer),
        }
    }

    pub(super) fn disconnect(&mut self, peer: PeerId) {
        for connection in self.streams.all().iter().filter(|connection| connection.peer() == peer) {
            self.streams.give_up(&peer, connection.id());
        }
        // Not connected any more is as good.
        let _ = self.swarm.disconnect_peer_id(peer);
    }

    fn on_told(&mut self, told: Told) {
        let me = *self.swarm.local_peer_id();
        self.dialer.list(told.source, told.addresses, &me, Instant::now());
    }

    /// Tells the dialer whom to stay connected to.
    pub(super) fn want(&mut self) {
        let relays =
            self.relays_wanted.iter().filter(|relay| self.wanted.iter().all(|wanted| wanted.peer != relay.peer));
        let wanted = self.wanted.iter().chain(relays).cloned().collect();
        let swarm = &self.swarm;
        self.dialer.want(wanted, |peer| swarm.is_connected(peer), swarm.local_peer_id(), Instant::now());
    }

    pub(super) fn publish_addresses(&mut self) {
        let interfaces = Interfaces::now();
        let (addresses, left_out) = announced(self.swarm.listeners(), &self.external, &self.choice, &interfaces);
        self.left_out = left_out;
        self.complain_of_choice(&interfaces);
        self.publish_reach();
        if self.swarm.behaviour().relay.is_enabled() {
            self.tell_guests(&addresses);
        }
        self.published.addresses.send_if_modified(|old| {
            let changed = *old != addresses;
            *old = addresses;
            changed
        });
    }

    /// Interfaces come and go, so that one which is not there is no error; but it may be a slip.
    fn complain_of_choice(&mut self, interfaces: &Interfaces) {
        let unmatched = self.choice.unmatched(interfaces);
        for choice in unmatched.iter().filter(|choice| !self.unmatched.contains(choice)) {
            let there = interfaces.names().join(", ");
            tracing::warn!(%choice, there, "--announce names what this machine does not have now");
        }
        self.unmatched = unmatched;
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

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
