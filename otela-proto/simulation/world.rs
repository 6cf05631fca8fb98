//! The world in virtual time: hosts with the core that runs in production, connections between them, one queue of
//! events. The same seed makes the same world.
//!
//! This file moves time and hands inputs to cores; `dial` makes connections, `deliver` moves what is on them.

use super::{
    driver::Driver,
    host::{Host, State},
    link::Link,
    network::{Network, SITES},
    traffic::Traffic,
    verify::Verifier,
};
use libp2p_identity::PeerId;
use otela_proto::{
    entry::{Entry, Rank, StatementId},
    id::MeshName,
    lifecycle::Lifecycle,
    member::{Input, Member, Output, Parcel, Settings},
    payload::Role,
    registry::Belief,
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    cmp::Ordering,
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
    time::Duration,
};

/// A change to what is wanted waits this long for company, as in the driver of a real peer.
const WANT_AFTER: Duration = Duration::from_millis(20);
/// What is wanted is looked at again this often.
pub(crate) const WANT_EVERY: Duration = Duration::from_secs(5);
/// Ticks at one moment after which a core is taken to be caught in a loop.
const TICKS_AT_ONCE_MAX: u32 = 1_000;

/// Something that will happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The core wanted to be woken.
    Wake { host: usize, run: u32 },
    /// The driver looks at whom the core wants.
    Want { host: usize, run: u32 },
    /// The driver dials who is due.
    Dial { host: usize, run: u32 },
    /// A dial ends.
    Dialled { host: usize, run: u32, target: super::driver::Target, to: Option<usize> },
    /// The head of this way of a link can arrive.
    Arrive { link: u64, side: usize },
    /// The other machine does not know the connection of this end.
    Reset { link: u64, side: usize },
    /// This end pings the other one.
    Ping { link: u64, side: usize },
    /// A process that has left ends.
    Exit { host: usize, run: u32 },
}

#[derive(Debug)]
struct Planned {
    at: Duration,
    order: u64,
    event: Event,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}

/// Who has seen one publication, and when.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) owner: PeerId,
    pub(crate) rank: Rank,
    /// By host.
    pub(crate) seen_at: Vec<Option<Duration>>,
}

/// The world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: Duration,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) links: HashMap<u64, Link>,
    pub(crate) settings: Settings,
    pub(crate) rng: SmallRng,
    pub(crate) verifier: Verifier,
    /// Hosts at which everybody joins.
    pub(crate) bootstraps: Vec<usize>,
    /// What each honest owner has ever said of itself.
    pub(crate) spoken: HashMap<PeerId, HashSet<StatementId>>,
    /// Peers that a liar has been, under whatever key.
    pub(crate) liars: BTreeSet<PeerId>,
    pub(crate) watch: Option<Watch>,
    /// When something that speaks against somebody was believed, by whom, of whom. Only kept while asked for.
    pub(crate) doubts: Option<Vec<(Duration, usize, PeerId, Belief)>>,
    pub(crate) links_made: u64,
    queue: BinaryHeap<Planned>,
    planned: u64,
    outputs: Vec<Output>,
    /// Links with something new to write.
    touched: Vec<u64>,
}

/// Whom a real driver stays connected to beyond the neighbours that the core wants: those that requests come from or
/// go to, and those that seem unreachable, as long as it is not agreed that they are gone.
fn beyond_neighbours(member: &Member, me: PeerId, role: Role) -> Vec<PeerId> {
    let pairs = [(Role::Ingress, Role::Node), (Role::Node, Role::Ingress), (Role::Ingress, Role::Relay)];
    let is_wanted = |entry: &&Entry| {
        let belief = member.belief(&entry.owner());
        let gone = entry.rank().lifecycle == Lifecycle::Left || matches!(belief, Belief::Evicted(_));
        let counterpart = pairs.iter().any(|(mine, theirs)| role == *mine && entry.payload().has_role(*theirs));
        entry.owner() != me && !gone && (counterpart || belief != Belief::Alive)
    };
    member.registry().entries().filter(is_wanted).map(Entry::owner).collect()
}

/// The mesh that all hosts are in.
pub(crate) fn mesh() -> MeshName {
    "lab".parse().expect("a legal mesh name")
}

impl World {
    /// `hosts` machines without a process, spread over the sites in turn. The first three are everybody's bootstraps.
    pub(crate) fn new(hosts: usize, seed: u64, loss_ratio: f64) -> Self {
        Self {
            seed,
            now: Duration::ZERO,
            hosts: (0..hosts).map(|number| Host::new(number, number % SITES, seed)).collect(),
            network: Network::new(loss_ratio),
            links: HashMap::new(),
            settings: Settings::new(mesh()),
            rng: SmallRng::seed_from_u64(seed),
            verifier: Verifier::new(mesh()),
            bootstraps: (0..hosts.min(3)).collect(),
            spoken: HashMap::new(),
            liars: BTreeSet::new(),
            watch: None,
            doubts: None,
            links_made: 0,
            queue: BinaryHeap::new(),
            planned: 0,
            outputs: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Adds a machine without a process and returns its number.
    pub(crate) fn add_host(&mut self) -> usize {
        let number = self.hosts.len();
        self.hosts.push(Host::new(number, number % SITES, self.seed));
        number
    }

    pub(crate) fn plan(&mut self, at: Duration, event: Event) {
        self.planned += 1;
        self.queue.push(Planned { at: at.max(self.now), order: self.planned, event });
    }

    /// Starts a process on a host that has none.
    pub(crate) fn start(&mut self, host: usize) {
        let (now, seed) = (self.now, self.rng.random());
        let settings = Settings { roles: vec![self.hosts[host].role], ..self.settings.clone() };
        let bootstraps: Vec<_> = self.bootstraps.iter().copied().filter(|other| *other != host).collect();
        let machine = &mut self.hosts[host];
        if machine.member.is_some() {
            return;
        }
        machine.run += 1;
        machine.state = State::Running;
        machine.started = now;
        machine.driver = Driver::new(bootstraps.into_iter(), now);
        machine.wake_at = Duration::MAX;
        let clocks = machine.now(now);
        machine.member = Some(Member::new(machine.key.clone(), settings, None, seed, clocks));
        let (run, address, said) = (machine.run, machine.address(), machine.announcement.clone());
        self.input(host, Input::Addresses(vec![address]));
        self.input(host, Input::Announce(Box::new(said)));
        self.plan(now, Event::Dial { host, run });
        self.hosts[host].driver.want_at = now + WANT_AFTER;
        self.plan(now + WANT_AFTER, Event::Want { host, run });
    }

    /// Lets time pass.
    pub(crate) fn run_for(&mut self, lasts: Duration) {
        self.run_until(self.now + lasts);
    }

    pub(crate) fn run_until(&mut self, end: Duration) {
        while let Some(next) = self.queue.peek()
            && next.at <= end
            && let Some(planned) = self.queue.pop()
        {
            self.now = planned.at;
            self.happen(planned.event);
        }
        self.now = end;
    }

    /// Lets time pass in steps until `holds`. Returns how long that took, or `None` at the limit.
    pub(crate) fn run_while_not(
        &mut self,
        limit: Duration,
        step: Duration,
        holds: impl Fn(&Self) -> bool,
    ) -> Option<Duration> {
        let began = self.now;
        while !holds(self) {
            if self.now - began >= limit {
                return None;
            }
            self.run_for(step);
        }
        Some(self.now - began)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake { host, run } if self.is_current(host, run) => self.wake(host),
            Event::Want { host, run } if self.is_current(host, run) => self.want(host),
            Event::Dial { host, run } if self.is_current(host, run) => self.dial_due(host),
            Event::Dialled { host, run, target, to } if self.is_current(host, run) => self.dialled(host, target, to),
            Event::Exit { host, run } if self.is_current(host, run) => self.end_process(host, State::Off),
            Event::Arrive { link, side } => self.arrive(link, side),
            Event::Reset { link, side } => self.close_end(link, side, true),
            Event::Ping { link, side } => self.ping(link, side),
            // For a process that has ended.
            _ => {}
        }
    }

    fn is_current(&self, host: usize, run: u32) -> bool {
        self.hosts[host].run == run && self.hosts[host].member.is_some()
    }

    /// A paused process does nothing; its timers are looked at when it goes on.
    fn wake(&mut self, host: usize) {
        let machine = &self.hosts[host];
        if machine.wake_at != self.now || !machine.is_running() {
            return;
        }
        self.hosts[host].wake_at = Duration::MAX;
        let (at, ticks) = self.hosts[host].ticks;
        let ticks = if at == self.now { ticks + 1 } else { 0 };
        assert!(ticks < TICKS_AT_ONCE_MAX, "host {host} asks to be woken again and again at {:?}", self.now);
        self.hosts[host].ticks = (self.now, ticks);
        self.input(host, Input::Tick);
    }

    fn want(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        if machine.driver.want_at != self.now || !machine.is_running() {
            return;
        }
        let Some(member) = &mut machine.member else { return };
        let mut wanted = member.wanted_links();
        wanted.extend(beyond_neighbours(member, machine.peer, machine.role));
        machine.driver.want(&wanted, self.now);
        machine.driver.want_at = Duration::MAX;
        self.want_within(host, WANT_EVERY);
        self.dial_due(host);
    }

    pub(crate) fn want_within(&mut self, host: usize, wait: Duration) {
        let (at, machine) = (self.now + wait, &mut self.hosts[host]);
        if at < machine.driver.want_at {
            machine.driver.want_at = at;
            let run = machine.run;
            self.plan(at, Event::Want { host, run });
        }
    }

    /// Gives one input to the core of a host and carries out what it answers.
    pub(crate) fn input(&mut self, host: usize, input: Input) {
        let machine = &mut self.hosts[host];
        let clocks = machine.now(self.now);
        let Some(member) = &mut machine.member else { return };
        let mut outputs = std::mem::take(&mut self.outputs);
        member.handle(clocks, input, &mut outputs);
        for output in outputs.drain(..) {
            self.carry_out(host, output);
        }
        self.outputs = outputs;
        let mut touched = std::mem::take(&mut self.touched);
        for link in touched.drain(..) {
            self.flush(link, self.side_of(link, host));
        }
        self.touched = touched;
        self.plan_wake(host);
    }

    pub(crate) fn plan_wake(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        let Some(member) = &machine.member else { return };
        let at = member.wake_at().saturating_add(machine.started).max(self.now);
        if at < machine.wake_at && at < Duration::MAX {
            machine.wake_at = at;
            let run = machine.run;
            self.plan(at, Event::Wake { host, run });
        }
    }

    fn carry_out(&mut self, host: usize, output: Output) {
        match output {
            Output::Send { to, parcel } => self.queue(host, &to, parcel),
            Output::Reach(peer) => {
                self.hosts[host].notes.reached_for += 1;
                self.reach(host, peer);
            }
            Output::Close(peer) => {
                if let Some(link) = self.hosts[host].links.get(&peer).copied() {
                    let side = self.side_of(link, host);
                    // Last words first.
                    self.flush(link, side);
                    self.close_end(link, side, true);
                }
            }
            Output::Changed(peer) => self.changed(host, peer),
            Output::Refused { reason, .. } => *self.hosts[host].notes.refused.entry(reason).or_default() += 1,
            Output::Malformed(_) => self.hosts[host].notes.malformed += 1,
            Output::NewSession(why) => self.hosts[host].notes.new_sessions.push(why),
            Output::Twin => self.hosts[host].notes.is_twin = true,
        }
    }

    fn changed(&mut self, host: usize, peer: PeerId) {
        self.want_within(host, WANT_AFTER);
        let machine = &self.hosts[host];
        let Some(member) = &machine.member else { return };
        let registry = member.registry();
        if peer == machine.peer
            && let Some(entry) = registry.get(&peer)
            && entry.session() == member.session()
        {
            self.spoken.entry(peer).or_default().insert(entry.id());
        }
        if let Some(watch) = &mut self.watch
            && watch.owner == peer
            && registry.rank(&peer).is_some_and(|rank| rank >= watch.rank)
        {
            watch.seen_at.resize(self.hosts.len(), None);
            watch.seen_at[host].get_or_insert(self.now);
        }
        if let Some(doubts) = &mut self.doubts {
            let belief = member.belief(&peer);
            if belief != Belief::Alive {
                doubts.push((self.now, host, peer, belief));
            }
        }
    }

    /// Queues a parcel, if there is a link.
    fn queue(&mut self, host: usize, to: &PeerId, parcel: Parcel) {
        let Some(link) = self.hosts[host].links.get(to).copied() else { return };
        let side = self.side_of(link, host);
        let Some(connection) = self.links.get_mut(&link) else { return };
        let dropped = connection.ends[side].outbox.push(parcel);
        self.hosts[host].traffic.dropped += dropped as u64;
        if self.touched.last() != Some(&link) {
            self.touched.push(link);
        }
    }

    /// What all hosts have sent since the last time, by host.
    pub(crate) fn take_traffic(&mut self) -> Vec<Traffic> {
        self.hosts.iter_mut().map(|host| std::mem::take(&mut host.traffic)).collect()
    }

    /// From now on nothing is expected of what this host says.
    pub(crate) fn lies(&mut self, host: usize) {
        self.hosts[host].is_liar = true;
        self.liars.insert(self.hosts[host].peer);
    }

    /// The core of a host that has a process.
    pub(crate) fn member(&self, host: usize) -> &Member {
        self.hosts[host].member.as_ref().expect("the host has a process")
    }

    /// Hosts with a process that is not stopped.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.is_running())
    }
}
