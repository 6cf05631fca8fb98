//! Drives a member of the mesh: one task owns the core of this peer, its links, and what readers see of it.
//!
//! Verification happens in the readers' tasks, one for each neighbour, so a flood of entries costs its sender's
//! turn and not everybody's. What readers of the registry see is published as immutable views.

mod clock;

use super::{
    admission::Admission,
    config::PeerConfig,
    defaults::{GOSSIP_QUEUE, REFUSED_LOG_EVERY, SETTLE},
    farewell::{self, Farewells},
    link::{Links, are_you_there},
    metrics::PeerMetrics,
    provider::ProviderSettings,
    streams::{Streams, now_ms},
    swarm::Command,
    wanted::Wanted,
};
use crate::tasks::Tasks;
use arc_swap::ArcSwap;
use libp2p::{Multiaddr, PeerId, StreamProtocol, swarm::ConnectionId};
use otela_proto::{
    accusation::Accusation,
    admission::Rules,
    clock::{Now, millis},
    entry::{Entry, Refusal},
    id::{Epoch, Session},
    member::{Input, Member, NewSession, Output, Parcel, Settings},
    own::Announcement,
    registry::View,
    wire::Say,
};
use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

/// Changes to the set of wanted connections wait this long for company.
const WANT_AFTER: Duration = Duration::from_millis(20);
/// The set is looked at again this often though nothing has changed.
const WANT_EVERY: Duration = Duration::from_secs(5);
/// Events that are taken up before readers get a new view: building one costs about as much as ten of them.
const EVENTS_PER_VIEW: usize = 64;
/// A wall clock that differs by more from the monotonic one than it did was set.
const CLOCK_SET: Duration = Duration::from_secs(1);
/// A last message to a peer whose connection is closed next has this long to be read.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// What the gossip task hears.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection to this peer stands.
    Connected(PeerId, ConnectionId),
    /// A connection is gone.
    Disconnected {
        /// Whether it went through a relay.
        relayed: bool,
        peer: PeerId,
        id: ConnectionId,
        /// Whether it was the last one to this peer.
        last: bool,
    },
    /// A dial of this peer reached nobody.
    Unreachable(PeerId),
    /// A request to this peer failed though a connection stands.
    Failed(PeerId),
    /// This peer has answered a request.
    Served(PeerId),
    /// A neighbour said something.
    Heard(PeerId, Say),
    /// A neighbour sent entries and accusations; these passed every check.
    Entries(PeerId, Vec<Entry>, Vec<Accusation>),
    /// The stream that we write on ended, on this connection.
    StreamEnded(PeerId, ConnectionId),
    /// A peer does not speak our mesh's protocols.
    Stranger(PeerId),
    /// This peer wants to say this of itself; answered when it is on its way to neighbours.
    Announce(Box<Announcement>, oneshot::Sender<Result<(), Refusal>>),
    /// This peer begins another session, in which it says this of itself; answered as the above.
    BeginAgain(Box<Announcement>, oneshot::Sender<Result<(), Refusal>>),
    /// This peer shows this provider certificate from now on.
    Certificate(Vec<u8>),
    /// This session ends; answered when the neighbours have read that.
    Leave(oneshot::Sender<()>),
    /// The last words to these are written; whether they were read only they can tell. Who waits for that.
    LastWordsWritten(BTreeSet<PeerId>, oneshot::Sender<()>),
}

/// What other parts of the peer see of the gossip task.
#[derive(Debug, Clone)]
pub(super) struct Published {
    /// The beginning of the clock that views are dated by.
    pub(super) started: Instant,
    pub(super) view: Arc<ArcSwap<View>>,
    pub(super) generation: watch::Sender<u64>,
    pub(super) session: watch::Sender<Session>,
    /// Whether this peer has heard of the mesh: what it does not know then, does not exist.
    pub(super) joined: watch::Sender<bool>,
    /// Whether another process uses this peer's key and goes on.
    pub(super) superseded: watch::Sender<bool>,
    /// How far the neighbours' wall clocks are ahead of ours, in milliseconds: the median.
    pub(super) skew_ms: watch::Sender<Option<i64>>,
}

impl Published {
    pub(super) fn new(me: PeerId) -> Self {
        Self {
            started: Instant::now(),
            view: Arc::new(ArcSwap::from_pointee(View::default())),
            generation: watch::channel(0).0,
            session: watch::channel(Session { peer: me, epoch: Epoch(0) }).0,
            joined: watch::channel(false).0,
            superseded: watch::channel(false).0,
            skew_ms: watch::channel(None).0,
        }
    }
}

/// The gossip task's state.
pub(super) struct Driver {
    core: Member,
    links: Links,
    streams: Streams,
    events: mpsc::Receiver<Event>,
    commands: mpsc::Sender<Command>,
    addresses: watch::Receiver<BTreeSet<Multiaddr>>,
    door: Admission,
    /// Changes with the rules of the door.
    rules: watch::Receiver<u64>,
    published: Published,
    metrics: PeerMetrics,
    started: Instant,
    outputs: Vec<Output>,
    view_stale: bool,
    /// When this peer started, by the wall clock as it was when the view was built.
    view_started_ms: u64,
    want_at: Instant,
    /// When it was last looked from whom something came.
    listened_ms: u64,
    wanted: Wanted,
    skew: Option<Duration>,
    skew_warned: Option<Instant>,
    stranger_warned: Option<Instant>,
    farewells: Farewells,
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
    pub(super) door: Admission,
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
        let key = config.identity.keypair().clone();
        let me = key.public().to_peer_id();
        let links = Links::new(channels.protocol, channels.events_to_self, metrics.clone(), tasks.clone());
        let now = published.started;
        let settings = Settings {
            roles: config.roles.clone(),
            observes: config.observes,
            software: config.software.clone(),
            site: config.site.clone(),
            certificate: config.provider.as_ref().map(ProviderSettings::certificate).unwrap_or_default(),
            mesh: config.mesh.clone(),
            grace_near: config.patience.grace_near,
            grace_far: config.patience.grace_far,
            retention: config.patience.retention,
        };
        let remembered = config.state.as_ref().and_then(|state| state.epoch(&me));
        let start = Now { mono: Duration::ZERO, wall_ms: unix_ms() };
        Self {
            core: Member::new(key, settings, remembered, rand::random(), start),
            links,
            streams,
            events: channels.events,
            commands: channels.commands,
            addresses: channels.addresses,
            rules: channels.door.changes(),
            door: channels.door,
            published,
            metrics,
            started: now,
            outputs: Vec::new(),
            view_stale: true,
            view_started_ms: 0,
            want_at: now,
            listened_ms: now_ms(),
            wanted: Wanted::new(config, me),
            skew: None,
            skew_warned: None,
            stranger_warned: None,
            farewells: Farewells::default(),
            // Alone by configuration: there is nobody to hear from.
            joined_at: config.bootstraps().is_empty().then_some(now),
            tasks: tasks.clone(),
        }
    }

    /// The queue that others send events through.
    pub(super) fn queue() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
        mpsc::channel(GOSSIP_QUEUE)
    }

    /// Runs until the tasks are stopped.
    pub(super) async fn run(mut self, tasks: Tasks) {
        self.take_rules();
        self.say_addresses();
        self.settle();
        loop {
            let wake = self.next_wake();
            tokio::select! {
                Some(event) = self.events.recv() => {
                    self.on_event(event);
                    for _ in 1..EVENTS_PER_VIEW {
                        let Ok(event) = self.events.try_recv() else { break };
                        self.on_event(event);
                    }
                }
                () = tokio::time::sleep_until(wake) => self.on_tick(),
                Ok(()) = self.addresses.changed() => self.say_addresses(),
                Ok(()) = self.rules.changed() => self.take_rules(),
                () = tasks.stopped() => break,
            }
            self.settle();
        }
    }

    fn next_wake(&self) -> Instant {
        let settled = self.joined_at.filter(|_| self.clock_holds() && !*self.published.joined.borrow());
        let stale = self.published.view.load().stale_at().map(|at| self.started + at);
        let wake = (self.started + self.core.wake_at()).min(self.want_at);
        settled.into_iter().chain(stale).fold(wake, Instant::min)
    }

    fn now(&self) -> Now {
        Now { mono: self.started.elapsed(), wall_ms: unix_ms() }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected(peer, id) => {
                if let Some(connection) = self.streams.get(&peer, id) {
                    self.links.open(&connection);
                    if self.streams.has_several(&peer) {
                        // On each of them, so that one that leads nowhere is seen by its silence.
                        self.links.send(&peer, &Parcel::Say(are_you_there()));
                    }
                    self.input(Input::LinkUp { peer, rtt: connection.rtt() });
                }
            }
            Event::Disconnected { peer, id, relayed, last } => {
                self.links.close(&peer, id);
                if last {
                    self.farewells.has_read(&peer);
                    self.input(if relayed { Input::RelayedLinkDown(peer) } else { Input::LinkDown(peer) });
                }
            }
            Event::Unreachable(peer) => self.input(Input::Unreachable(peer)),
            Event::Failed(peer) => self.input(Input::Failed(peer)),
            Event::Served(peer) => self.input(Input::Served(peer)),
            Event::Heard(from, say) => {
                if farewell::is_answer(&say) {
                    self.farewells.has_read(&from);
                }
                // A connection alone proves nothing: it may be to another mesh.
                self.joined_at.get_or_insert(Instant::now() + SETTLE);
                self.input(Input::Say { from, say });
            }
            Event::Entries(from, entries, accusations) => {
                if !entries.is_empty() {
                    self.joined_at = Some(self.started);
                }
                self.input(Input::Entries { from, entries, accusations });
            }
            Event::StreamEnded(peer, id) => self.reopen(peer, id),
            Event::Stranger(peer) => self.on_stranger(peer),
            Event::Announce(announcement, done) => self.announce(announcement, done, Input::Announce),
            Event::BeginAgain(announcement, done) => self.announce(announcement, done, Input::BeginAgain),
            Event::Certificate(certificate) => {
                self.input(Input::Certificate(certificate));
                self.input(Input::Tick);
            }
            Event::Leave(done) => {
                self.input(Input::Leave);
                self.input(Input::Tick);
                self.say_last(self.core.links().peers().copied().collect(), done);
            }
            Event::LastWordsWritten(neighbours, done) => self.ask_who_has_read(neighbours, done),
        }
    }

    /// Says this, if it can be said; `done` is told.
    fn announce(
        &mut self,
        announcement: Box<Announcement>,
        done: oneshot::Sender<Result<(), Refusal>>,
        how: fn(Box<Announcement>) -> Input,
    ) {
        let fits = self.core.own().fits(&announcement);
        if fits.is_ok() {
            self.input(how(announcement));
            self.input(Input::Tick);
        }
        // Whoever asked may have stopped waiting.
        let _ = done.send(fits);
    }

    /// Sends what is queued for `neighbours` and asks whether they have read it; `done` is told.
    fn say_last(&self, neighbours: BTreeSet<PeerId>, done: oneshot::Sender<()>) {
        let flushed = self.links.flushed_to(&neighbours);
        self.links.tell_self_when(flushed, Event::LastWordsWritten(neighbours, done));
    }

    fn ask_who_has_read(&mut self, mut neighbours: BTreeSet<PeerId>, done: oneshot::Sender<()>) {
        neighbours.retain(|neighbour| self.core.links().contains(neighbour));
        for neighbour in &neighbours {
            self.links.send(neighbour, &Parcel::Say(farewell::question()));
        }
        self.farewells.wait_for(neighbours, done);
    }

    fn on_tick(&mut self) {
        self.listen();
        self.input(Input::Tick);
        if self.want_at <= Instant::now() {
            self.want_at = Instant::now() + WANT_EVERY;
            let (view, joined) = (self.published.view.load_full(), *self.published.joined.borrow());
            let commands = &self.commands;
            self.wanted.tell(&view, &self.core.wanted_links(), joined, |command| commands.try_send(command).is_ok());
            self.watch_clock();
        }
    }

    /// Tells the core of whom something came. A long answer says nothing to it otherwise, and on a busy machine an answer to
    /// a probe may be late while tokens come all the time.
    fn listen(&mut self) {
        let heard = self.streams.heard_since(std::mem::replace(&mut self.listened_ms, now_ms()));
        if !heard.is_empty() {
            self.input(Input::Traffic(heard));
        }
    }

    /// A link whose stream broke while the connection stands is opened again, once per break.
    fn reopen(&mut self, peer: PeerId, id: ConnectionId) {
        self.links.close(&peer, id);
        if let Some(connection) = self.streams.get(&peer, id) {
            self.links.open(&connection);
        }
    }

    fn on_stranger(&mut self, peer: PeerId) {
        self.metrics.strangers.inc();
        if self.stranger_warned.is_none_or(|at| at.elapsed() > REFUSED_LOG_EVERY) {
            self.stranger_warned = Some(Instant::now());
            tracing::warn!(%peer, "closing the connection: the peer does not speak this version's gossip. Compare the versions on both sides");
        }
        self.links.close_all(&peer);
        self.command(Command::Disconnect(peer));
    }

    fn say_addresses(&mut self) {
        let addresses = self.addresses.borrow_and_update().iter().cloned().collect();
        self.input(Input::Addresses(addresses));
    }

    /// Whose certificates and whose entries count may have changed, and what we show.
    fn take_rules(&mut self) {
        self.rules.borrow_and_update();
        let rules = Rules::clone(&self.door.rules());
        self.input(Input::Admission(Box::new(rules), self.door.membership()));
        self.input(Input::Tick);
    }

    fn input(&mut self, input: Input) {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.core.handle(self.now(), input, &mut outputs);
        for output in outputs.drain(..) {
            self.carry_out(output);
        }
        self.outputs = outputs;
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send { to, parcel } => self.links.send(&to, &parcel),
            Output::Reach(peer) => self.reach(peer),
            Output::Close(peer) => self.close(peer),
            Output::Changed(_) => {
                self.metrics.entries_learned.inc();
                self.view_stale = true;
                self.want_at = self.want_at.min(Instant::now() + WANT_AFTER);
            }
            Output::Refused { from: Some(peer), reason } => self.metrics.refused(reason, &peer),
            Output::Refused { from: None, reason } => {
                tracing::error!(reason, "own entry cannot be published: shorten labels or model names");
            }
            Output::Malformed(peer) => {
                self.metrics.frames_malformed.inc();
                tracing::debug!(%peer, "malformed gossip frame dropped");
            }
            Output::NewSession(NewSession::Evicted) => {
                self.metrics.evicted_self.inc();
                tracing::warn!("the mesh had evicted this peer, which did not answer: going on under a new session");
            }
            Output::NewSession(NewSession::Overtaken) => tracing::warn!(
                "the mesh knows a later session of this peer's key: going on under a new one above it. If another process uses the same key, stop one of them"
            ),
            Output::Twin => {
                tracing::error!("another process uses this peer's key and goes on: this one stops");
                self.published.superseded.send_replace(true);
            }
        }
    }

    fn reach(&mut self, peer: PeerId) {
        let entry = self.core.registry().get(&peer);
        let addresses: Vec<_> = entry.into_iter().flat_map(|entry| entry.payload().multiaddrs()).collect();
        if addresses.is_empty() || !self.command(Command::Reach(peer, addresses)) {
            // Told later, and not from inside of the step that asks.
            self.links.tell_self(Event::Unreachable(peer));
        }
    }

    fn close(&mut self, peer: PeerId) {
        let ((done, read), commands) = (oneshot::channel(), self.commands.clone());
        self.say_last([peer].into(), done);
        self.tasks.spawn(async move {
            // Whether it was read or not, the connection goes.
            let _ = tokio::time::timeout(LAST_WORDS_WITHIN, read).await;
            let _ = commands.send(Command::Disconnect(peer)).await;
        });
    }

    /// A full queue means that the driver is behind; whatever was asked for is asked for again.
    fn command(&self, command: Command) -> bool {
        self.commands.try_send(command).is_ok()
    }

    /// Publishes a new view if anything in it has changed.
    fn settle(&mut self) {
        let joined = self.clock_holds() && self.joined_at.is_some_and(|at| at <= Instant::now());
        self.published.joined.send_if_modified(|old| std::mem::replace(old, joined) != joined);
        let session = self.core.session();
        self.published.session.send_if_modified(|old| std::mem::replace(old, session) != session);
        let now = self.now();
        // What ends by the wall clock has ended, or has not, when that was set.
        let started_ms = now.wall_ms.saturating_sub(millis(now.mono));
        let clock_was_set = started_ms.abs_diff(self.view_started_ms) > millis(CLOCK_SET);
        let old = self.published.view.load();
        if !self.view_stale && !clock_was_set && old.stale_at().is_none_or(|at| now.mono < at) {
            return;
        }
        (self.view_stale, self.view_started_ms) = (false, started_ms);
        let view = self.core.view(now, old.generation + 1);
        self.metrics.seen(self.core.registry(), &view);
        let generation = view.generation;
        self.published.view.store(Arc::new(view));
        self.published.generation.send_replace(generation);
    }
}

/// Wall time in milliseconds since the Unix epoch.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
