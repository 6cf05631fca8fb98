//! How processes begin and end, and how connections between them are made.

use super::{
    driver::{Driver, Target},
    host::{State, host_at},
    link::{End, Link},
    world::{Event, WANT_EVERY, World},
};
use libp2p_identity::PeerId;
use otela_proto::{gossip::Outbox, member::Input};
use rand::RngExt;
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// A dial that nobody answers is given up after this.
const DIAL_WITHIN: Duration = Duration::from_secs(2);
/// Round trips of a dial: one and a half for TCP, three for the handshakes above it.
const DIAL_ROUND_TRIPS: f64 = 4.5;
/// Each end of a connection pings the other this often.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(120);
/// After this many pings in a row without an answer an end gives up.
const PING_MISSES_MAX: u32 = 2;

impl World {
    /// Dials a peer now.
    pub(crate) fn reach(&mut self, host: usize, peer: PeerId) {
        if self.hosts[host].links.contains_key(&peer) {
            return;
        }
        self.hosts[host].driver.hurry(peer, self.now);
        let run = self.hosts[host].run;
        self.plan(self.now, Event::Dial { host, run });
    }

    pub(crate) fn dial_due(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        if !machine.is_running() {
            return;
        }
        let reached = reached(&machine.links, &self.links, host);
        let is_connected = |target: &Target| reached.contains(target);
        let due = machine.driver.take_due(self.now, is_connected);
        for target in due {
            self.begin_dial(host, target);
        }
        let machine = &mut self.hosts[host];
        let next = machine.driver.next(is_connected);
        if let Some(at) = next
            && (at < machine.driver.dial_at || machine.driver.dial_at <= self.now)
        {
            machine.driver.dial_at = at;
            let run = machine.run;
            self.plan(at, Event::Dial { host, run });
        }
    }

    fn begin_dial(&mut self, host: usize, target: Target) {
        let to = match target {
            Target::Bootstrap(to) => Some(to),
            Target::Peer(peer) => self.lives_at(host, &peer),
        };
        let run = self.hosts[host].run;
        let (wait, to) = match to {
            None => (Duration::ZERO, None),
            Some(to) => self.dial_takes(host, to),
        };
        self.plan(self.now + wait, Event::Dialled { host, run, target, to });
    }

    /// How long a dial takes, and whom it meets in the end, if all stays as it is.
    fn dial_takes(&mut self, host: usize, to: usize) -> (Duration, Option<usize>) {
        // There may be no such machine: then packets are dropped.
        let state = self.hosts.get(to).map_or(State::Powerless, |machine| machine.state);
        if !self.network.is_open(host, to) || matches!(state, State::Powerless | State::Paused) {
            return (DIAL_WITHIN, None);
        }
        let round_trip = self.round_trip(host, to);
        let repeated = self.network.repeated(&mut self.rng);
        let takes = if state == State::Off { round_trip } else { round_trip.mul_f64(DIAL_ROUND_TRIPS) };
        (takes + repeated, Some(to))
    }

    fn round_trip(&mut self, a: usize, b: usize) -> Duration {
        let (near, far) = (self.hosts[a].site, self.hosts[b].site);
        self.network.one_way(near, far, &mut self.rng) + self.network.one_way(far, near, &mut self.rng)
    }

    /// The host at the address that `peer` has announced, as far as `host` knows.
    fn lives_at(&self, host: usize, peer: &PeerId) -> Option<usize> {
        let entry = self.hosts[host].member.as_ref()?.registry().get(peer)?;
        entry.payload().multiaddrs().find_map(|address| host_at(&address))
    }

    pub(crate) fn dialled(&mut self, host: usize, target: Target, to: Option<usize>) {
        if !self.hosts[host].is_running() {
            // It hears of it when it goes on.
            let run = self.hosts[host].run;
            return self.plan(self.now + Duration::from_secs(1), Event::Dialled { host, run, target, to });
        }
        let met = to.filter(|to| {
            self.hosts.get(*to).is_some_and(super::host::Host::is_running)
                && self.network.is_open(host, *to)
                && *to != host
        });
        let met = met.filter(|to| match target {
            Target::Bootstrap(_) => true,
            Target::Peer(peer) => self.hosts[*to].peer == peer,
        });
        self.hosts[host].driver.ended(target, met.is_some(), self.now);
        match met {
            Some(to) => self.connect(host, to),
            None => {
                if let Target::Peer(peer) = target
                    && !self.hosts[host].links.contains_key(&peer)
                {
                    self.input(host, Input::Unreachable(peer));
                }
            }
        }
        self.dial_due(host);
    }

    /// Connects two running processes, unless they are.
    pub(crate) fn connect(&mut self, a: usize, b: usize) {
        let end = |host: usize| {
            let machine = &self.hosts[host];
            let (misses, measures_at, outbox) = (0, Duration::ZERO, Outbox::default());
            End { host, run: machine.run, peer: machine.peer, is_open: true, misses, measures_at, outbox }
        };
        let ends = [end(a), end(b)];
        if ends[0].peer == ends[1].peer {
            return;
        }
        let old = [(a, ends[1].peer), (b, ends[0].peer)].map(|(host, peer)| self.hosts[host].links.get(&peer).copied());
        if let [Some(one), Some(other)] = old
            && one == other
        {
            return;
        }
        let rtt = self.round_trip(a, b);
        self.links_made += 1;
        let link = self.links_made;
        let peers = [ends[1].peer, ends[0].peer];
        self.links.insert(link, Link::new(ends));
        for (side, host) in [a, b].into_iter().enumerate() {
            let peer = peers[side];
            self.hosts[host].traffic.handshake();
            let before = self.hosts[host].links.insert(peer, link);
            let first_ping = PING_EVERY.mul_f64(self.rng.random_range(0.0..1.0));
            self.plan(self.now + first_ping, Event::Ping { link, side });
            // The first of two connections may be dead without anybody knowing; its end is no news to the core.
            if let Some(before) = before {
                let old_side = self.side_of(before, host);
                self.close_quietly(before, old_side);
            }
            self.input(host, Input::LinkUp { peer, rtt: Some(rtt) });
        }
    }

    pub(crate) fn ping(&mut self, link: u64, side: usize) {
        let Some(connection) = self.links.get(&link) else { return };
        let [end, other] = [&connection.ends[side], &connection.ends[1 - side]];
        if !end.is_open {
            return;
        }
        let (host, far) = (end.host, other.host);
        let is_up = self.hosts[far].is_running() && self.hosts[far].run == other.run && other.is_open;
        let is_answered = is_up && connection.passes(side, &self.network);
        if self.hosts[host].is_running() {
            self.hosts[host].traffic.ping(false);
            if is_answered {
                self.hosts[far].traffic.ping(true);
            }
            let Some(connection) = self.links.get_mut(&link) else { return };
            let misses = if is_answered { 0 } else { connection.ends[side].misses + 1 };
            connection.ends[side].misses = misses;
            if misses >= PING_MISSES_MAX {
                return self.close_end(link, side, true);
            }
        }
        self.plan(self.now + PING_EVERY, Event::Ping { link, side });
    }

    /// Ends the process of a host, if there is one. With [`State::Powerless`] nobody hears of it.
    pub(crate) fn end_process(&mut self, host: usize, state: State) {
        let links: Vec<_> = std::mem::take(&mut self.hosts[host].links).into_values().collect();
        let machine = &mut self.hosts[host];
        machine.member = None;
        machine.state = state;
        machine.driver = Driver::default();
        for link in links {
            let side = self.side_of(link, host);
            if state == State::Powerless {
                let Some(connection) = self.links.get_mut(&link) else { continue };
                connection.ends[side].is_open = false;
                connection.ways[side].clear();
                self.forget_if_closed(link);
            } else {
                self.close_quietly(link, side);
            }
        }
    }

    /// Stops a process as SIGSTOP does.
    pub(crate) fn pause(&mut self, host: usize) {
        if self.hosts[host].is_running() {
            self.hosts[host].state = State::Paused;
        }
    }

    /// Lets a stopped process go on: its timers and what waits in its sockets come in any order.
    pub(crate) fn resume(&mut self, host: usize) {
        if self.hosts[host].state != State::Paused {
            return;
        }
        self.hosts[host].state = State::Running;
        self.hosts[host].wake_at = Duration::MAX;
        let run = self.hosts[host].run;
        if self.rng.random_bool(0.5) {
            self.input(host, Input::Tick);
        } else {
            self.plan_wake(host);
        }
        let links: Vec<_> = self.hosts[host].links.values().copied().collect();
        for link in links {
            let side = 1 - self.side_of(link, host);
            self.flush(link, 1 - side);
            let Some(connection) = self.links.get_mut(&link) else { continue };
            if let Some(at) = connection.ways[side].start() {
                let spread = Duration::from_micros(self.rng.random_range(0..1_000));
                self.plan(at.max(self.now + spread), Event::Arrive { link, side });
            }
        }
        self.hosts[host].driver.want_at = Duration::MAX;
        self.hosts[host].driver.dial_at = Duration::MAX;
        self.want_within(host, WANT_EVERY.mul_f64(0.01));
        self.plan(self.now, Event::Dial { host, run });
    }
}

/// The targets that `host` is connected to.
fn reached(own: &BTreeMap<PeerId, u64>, links: &HashMap<u64, Link>, host: usize) -> Vec<Target> {
    let far = |link: &u64| links.get(link)?.ends.iter().map(|end| end.host).find(|other| *other != host);
    own.iter()
        .flat_map(|(peer, link)| far(link).map(Target::Bootstrap).into_iter().chain([Target::Peer(*peer)]))
        .collect()
}
