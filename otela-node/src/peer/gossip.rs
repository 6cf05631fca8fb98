//! Drives RG/1: one task owns the gossip core, what we believe of others, and our own entry.
//!
//! Verification happens in the readers' tasks, one for each neighbour, so a flood of entries costs its sender's
//! turn and not everybody's. What readers of the registry see is published as immutable views.

use super::{
    beliefs::Beliefs,
    config::PeerConfig,
    defaults::{GOSSIP_QUEUE, RANDOM_LINKS, SETTLE},
    driver::Command,
    link::Links,
    metrics::PeerMetrics,
    own::{Announcement, Own, unix_ms},
    streams::Streams,
};
use crate::tasks::Tasks;
use arc_swap::ArcSwap;
use libp2p::{Multiaddr, PeerId, StreamProtocol};
use otela_proto::{
    entry::{Entry, RENEW_EVERY, Refusal, TTL},
    gossip::{Gossip, Input, Output},
    id::Session,
    lifecycle::Lifecycle,
    payload::Role,
    registry::{Belief, Node, View},
    wire::Say,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

/// Changes to the set of wanted connections wait this long for company.
const WANT_AFTER: Duration = Duration::from_millis(20);
/// The set is looked at again this often though nothing has changed.
const WANT_EVERY: Duration = Duration::from_secs(5);

/// What the gossip task hears.
#[derive(Debug)]
pub(super) enum Event {
    /// A first connection to this peer stands.
    LinkUp(PeerId),
    /// The last connection to this peer is gone.
    LinkDown(PeerId),
    /// A dial of this peer reached nobody.
    Unreachable(PeerId),
    /// A request to this peer failed though a connection stands.
    Failed(PeerId),
    /// A neighbour said something.
    Heard(PeerId, Say),
    /// A neighbour sent entries; these passed every check.
    Entries(PeerId, Vec<Entry>),
    /// A neighbour's stream ended.
    StreamEnded(PeerId),
    /// A peer does not speak our mesh's protocols.
    Stranger(PeerId),
    /// This peer wants to say this of itself; answered when it is on its way to neighbours.
    Announce(Box<Announcement>, oneshot::Sender<Result<(), Refusal>>),
    /// This session ends; answered when that has been written to the neighbours.
    Leave(oneshot::Sender<()>),
}

/// What other parts of the peer see of the gossip task.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) view: Arc<ArcSwap<View>>,
    pub(super) generation: watch::Sender<u64>,
    pub(super) session: watch::Sender<Session>,
    /// Whether this peer has heard of the mesh: what it does not know then, does not exist.
    pub(super) joined: watch::Sender<bool>,
}

/// The gossip task's state.
pub(super) struct Driver {
    me: PeerId,
    roles: Vec<Role>,
    core: Gossip,
    own: Own,
    beliefs: Beliefs,
    links: Links,
    streams: Streams,
    events: mpsc::Receiver<Event>,
    commands: mpsc::Sender<Command>,
    addresses: watch::Receiver<BTreeSet<Multiaddr>>,
    published: Published,
    metrics: PeerMetrics,
    started: Instant,
    outputs: Vec<Output>,
    view_stale: bool,
    want_at: Instant,
    renew_at: Instant,
    wanted: Vec<(PeerId, Vec<Multiaddr>)>,
    /// When a first link has stood long enough to have told us what there is.
    joined_at: Option<Instant>,
    tasks: Tasks,
}

/// What the gossip task is connected to.
pub(super) struct Channels {
    pub(super) protocol: StreamProtocol,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) events_to_self: mpsc::Sender<Event>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) addresses: watch::Receiver<BTreeSet<Multiaddr>>,
}

impl Driver {
    pub(super) fn new(
        config: &PeerConfig,
        streams: Streams,
        channels: Channels,
        published: Published,
        metrics: PeerMetrics,
        tasks: &Tasks,
    ) -> Self {
        let me = config.identity.keypair().public().to_peer_id();
        let links = Links::new(channels.protocol, channels.events_to_self, metrics.clone(), tasks.clone());
        let now = Instant::now();
        Self {
            me,
            roles: config.roles.clone(),
            core: Gossip::new(me, rand::random()),
            own: Own::new(config),
            beliefs: Beliefs::default(),
            links,
            streams,
            events: channels.events,
            commands: channels.commands,
            addresses: channels.addresses,
            published,
            metrics,
            started: now,
            outputs: Vec::new(),
            view_stale: true,
            want_at: now,
            renew_at: now + RENEW_EVERY,
            wanted: Vec::new(),
            // Alone by configuration: there is nobody to hear from.
            joined_at: config.bootstrap.is_empty().then_some(now),
            tasks: tasks.clone(),
        }
    }

    /// The queue that others send events through.
    pub(super) fn queue() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
        mpsc::channel(GOSSIP_QUEUE)
    }

    /// Runs until the tasks are stopped.
    pub(super) async fn run(mut self, tasks: Tasks) {
        self.say_own();
        self.settle();
        loop {
            let wake = self.started + self.core.wake_at();
            let settled = self.joined_at.filter(|_| !*self.published.joined.borrow());
            let wake = settled.map_or(wake, |at| wake.min(at));
            let wake = wake.min(self.want_at).min(self.renew_at).min(self.next_belief_change());
            tokio::select! {
                Some(event) = self.events.recv() => self.on_event(event),
                () = tokio::time::sleep_until(wake) => self.on_tick(),
                Ok(()) = self.addresses.changed() => self.say_own(),
                () = tasks.stopped() => break,
            }
            self.settle();
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::LinkUp(peer) => {
                self.joined_at.get_or_insert(Instant::now() + SETTLE);
                if self.beliefs.alive(&peer) {
                    self.believed_anew();
                }
                if let Some(connection) = self.streams.best(&peer) {
                    self.links.open(&connection);
                    self.input(Input::LinkUp { peer, rtt: connection.rtt() });
                }
            }
            Event::LinkDown(peer) => {
                self.links.close(&peer);
                self.input(Input::LinkDown(peer));
                self.unreachable(peer);
            }
            Event::Unreachable(peer) | Event::Failed(peer) => self.unreachable(peer),
            Event::Heard(from, say) => self.input(Input::Say { from, say }),
            Event::Entries(from, entries) => {
                self.joined_at = Some(self.started);
                self.input(Input::Entries { from, entries });
            }
            Event::StreamEnded(peer) => self.reopen(peer),
            Event::Stranger(peer) => self.on_stranger(peer),
            Event::Announce(announcement, done) => {
                let said = self.own.announce(*announcement);
                if said.is_ok() {
                    self.say_own_now();
                }
                let _ = done.send(said);
            }
            Event::Leave(done) => {
                self.own.leave();
                self.say_own_now();
                let flushed = self.links.flushed();
                self.tasks.spawn(async move {
                    flushed.await;
                    let _ = done.send(());
                });
            }
        }
    }

    fn on_tick(&mut self) {
        self.input(Input::Tick);
        let now = Instant::now();
        if self.renew_at <= now {
            self.say_own();
        }
        if !self.beliefs.age(self.started.elapsed(), |peer| self.streams.best(peer).is_some()).is_empty() {
            self.believed_anew();
        }
        if self.want_at <= now {
            self.want_at = now + WANT_EVERY;
            self.want();
        }
    }

    /// A link whose stream broke while the connection stands is opened again, once per break.
    fn reopen(&mut self, peer: PeerId) {
        self.links.close(&peer);
        if let Some(connection) = self.streams.best(&peer) {
            self.links.open(&connection);
        }
    }

    fn on_stranger(&mut self, peer: PeerId) {
        self.metrics.strangers.inc();
        tracing::warn!(%peer, "closing the connection: the peer is not of this mesh. Compare --mesh on both sides");
        self.links.close(&peer);
        // A full queue means that the driver is behind; the next frame for this peer fails again.
        let _ = self.commands.try_send(Command::Disconnect(peer));
    }

    fn say_own(&mut self) {
        self.renew_at = Instant::now() + RENEW_EVERY;
        let addresses = self.addresses.borrow_and_update().iter().cloned().collect();
        match self.own.entry(addresses) {
            Ok(entry) => self.input(Input::Own(Box::new(entry))),
            Err(error) => tracing::error!(%error, "own entry cannot be published: shorten labels or model names"),
        }
        let session = self.own.session();
        self.published.session.send_if_modified(|old| std::mem::replace(old, session) != session);
    }

    /// Without the batch's wait: Down and Left must not be lost with the process.
    fn say_own_now(&mut self) {
        self.say_own();
        let mut outputs = std::mem::take(&mut self.outputs);
        let batch_is_over = self.core.wake_at().max(self.now());
        self.core.handle(batch_is_over, Input::Tick, &mut outputs);
        self.carry_out(outputs);
    }

    fn input(&mut self, input: Input) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.core.handle(self.now(), input, &mut outputs);
        self.carry_out(outputs);
    }

    fn carry_out(&mut self, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            match output {
                Output::Send { to, frame } => self.links.send(&to, frame),
                Output::Changed(owner) => self.on_changed(owner),
                Output::Full(owner) => {
                    self.metrics.refused_for("registry_full");
                    tracing::warn!(%owner, "entry refused: the registry is full");
                }
                Output::Malformed(peer) => {
                    self.metrics.frames_malformed.inc();
                    tracing::warn!(%peer, "malformed gossip frame dropped");
                }
            }
        }
        self.outputs = outputs;
    }

    fn on_changed(&mut self, owner: PeerId) {
        self.metrics.entries_learned.inc();
        self.view_stale = true;
        self.want_at = self.want_at.min(Instant::now() + WANT_AFTER);
        if owner != self.me {
            self.beliefs.heard_of(&owner);
            return;
        }
        let Some(rank) = self.core.registry().rank(&owner) else { return };
        if self.own.overtaken(rank) {
            tracing::warn!(
                "the mesh knows a later session of this peer's key: starting a new one above it. If another process uses the same key, stop one of them"
            );
            self.say_own();
        }
    }

    /// What we believe of somebody has changed: readers and the set of wanted connections want to know.
    fn believed_anew(&mut self) {
        self.view_stale = true;
        self.want_at = self.want_at.min(Instant::now() + WANT_AFTER);
    }

    fn unreachable(&mut self, peer: PeerId) {
        if peer != self.me && self.beliefs.unreachable(peer, self.now()) {
            self.believed_anew();
        }
    }

    /// When what we believe or show changes with time alone.
    fn next_belief_change(&self) -> Instant {
        let aged = self.beliefs.next_change(|peer| self.streams.best(peer).is_some());
        let stale = self.published.view.load().stale_at();
        let next = aged.into_iter().chain(stale).min();
        next.map_or(self.started + Duration::from_hours(24), |at| self.started + at)
    }

    /// Tells the driver whom to stay connected to.
    fn want(&mut self) {
        let view = self.published.view.load_full();
        let oldest_ms = unix_ms().saturating_sub(u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX));
        // Whom we believe gone is dialled now and then all the same, as long as its word is good: that is what
        // brings two halves together after the network was cut between them.
        let present: Vec<(&PeerId, &Node)> = view
            .nodes()
            .filter(|(peer, node)| {
                let left = node.entry.rank().lifecycle == Lifecycle::Left;
                **peer != self.me && !left && node.entry.issued_at_ms() >= oldest_ms
            })
            .collect();
        let alive = present.iter().filter(|(_, node)| node.belief == Belief::Alive).map(|(peer, _)| **peer);
        let neighbours = self.core.wanted_links(alive, RANDOM_LINKS);
        let wanted = present
            .into_iter()
            .filter(|(peer, node)| {
                neighbours.contains(peer) || self.is_counterpart(node) || node.belief != Belief::Alive
            })
            .map(|(peer, node)| (*peer, node.entry.payload().multiaddrs().collect()))
            .collect();
        if self.wanted != wanted {
            self.wanted.clone_from(&wanted);
            // A full queue means the driver is behind; the next look sends the set again.
            if self.commands.try_send(Command::Want(wanted)).is_err() {
                self.wanted.clear();
            }
        }
    }

    /// Requests flow between ingresses and nodes, and either side may be the one that can dial.
    fn is_counterpart(&self, node: &Node) -> bool {
        let other = node.entry.payload();
        let pairs = [(Role::Ingress, Role::Node), (Role::Node, Role::Ingress), (Role::Ingress, Role::Relay)];
        pairs.iter().any(|(mine, theirs)| self.roles.contains(mine) && other.has_role(*theirs))
    }

    /// Publishes a new view if anything in it has changed.
    fn settle(&mut self) {
        if self.joined_at.is_some_and(|at| at <= Instant::now()) {
            self.published.joined.send_if_modified(|joined| !std::mem::replace(joined, true));
        }
        let now = self.now();
        let old = self.published.view.load();
        if !self.view_stale && old.stale_at().is_none_or(|at| now < at) {
            return;
        }
        self.view_stale = false;
        let view = View::build(self.core.registry(), self.beliefs.all(), now, TTL, old.generation + 1);
        self.metrics.entries.set(i64::try_from(self.core.registry().len()).unwrap_or(i64::MAX));
        let generation = view.generation;
        self.published.view.store(Arc::new(view));
        self.published.generation.send_replace(generation);
    }
}
