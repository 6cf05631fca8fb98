//! What can be done to a mesh, as data: a test is a list of operations, and a list that failed is printed so that it
//! can be pasted as one.

use super::{
    forge::{FORGERIES, Forgery},
    host::{State, announcement, key},
    invariant,
    world::{Event, World},
};
use otela_proto::{accusation::Verdict, lifecycle::Lifecycle, member::Input};
use rand::RngExt;
use std::time::Duration;

/// A process that leaves has this long to tell its neighbours.
const LEAVE_WITHIN: Duration = Duration::from_millis(100);

/// What a peer floods its neighbours with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flood {
    /// Entries of owners that do not exist.
    Ghosts,
    /// Versions of its own entry.
    Versions,
    /// Forgeries of every kind.
    Forgeries,
    /// Accusations of everybody.
    Accusations,
}

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// All replicas are equal.
    Equal,
    /// Nobody who runs is suspected or evicted anywhere, and everybody knows everybody's present session.
    AllAlive,
    /// The peer of this host may not be picked anywhere.
    Unroutable(usize),
    /// The peer of this host is believed evicted everywhere, or has left.
    Gone(usize),
}

/// One thing that is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
    /// Starts the process of a host, with the key it had.
    Join(usize),
    /// Ends it in good order.
    Leave(usize),
    /// Cuts the network between these hosts and all others; one way means that only what these say is lost.
    Cut { hosts: Vec<usize>, one_way: bool },
    /// Cuts it between two hosts.
    CutPair(usize, usize),
    /// Takes every cut back.
    Heal,
    /// Share of messages that come late from now on, in per mille.
    Loss(u32),
    /// Added to every way, in milliseconds.
    Delay(u64),
    /// Ends a process without a word; silent as with its power.
    Crash { host: usize, silent: bool },
    /// Crashes a process, if it runs, and starts it again.
    Restart { host: usize, new_key: bool },
    /// SIGSTOP.
    Pause(usize),
    /// SIGCONT.
    Resume(usize),
    /// Moves a wall clock, in milliseconds.
    ClockJump { host: usize, by_ms: i64 },
    /// Sends an old, or the present, signed entry of another peer again.
    Replay { by: usize, of: usize },
    /// Sends a forgery.
    Forge { by: usize, of: usize, kind: Forgery },
    /// Says that a peer is to be evicted.
    Accuse { by: usize, of: usize },
    /// Sends very many statements.
    Flood { by: usize, with: Flood, count: usize },
    /// A request to this peer failed, at that host.
    FailedRequest { at: usize, of: usize },
    /// Publishes something new.
    Write(usize),
    /// Lets time pass, in milliseconds.
    Wait(u64),
    /// Checks.
    Expect(Expected),
}

/// A list of operations as Rust source.
pub(crate) fn source(operations: &[Op]) -> String {
    let lines: String = operations.iter().map(|op| format!("    {op:?},\n")).collect();
    format!("[\n{}]", lines.replace("hosts: [", "hosts: vec!["))
}

impl World {
    /// Does one thing.
    ///
    /// # Errors
    /// What was expected does not hold.
    pub(crate) fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Join(host) => self.start(*host),
            Op::Leave(host) => self.leave(*host),
            Op::Cut { hosts, one_way } => {
                let others: Vec<_> = (0..self.hosts.len()).filter(|host| !hosts.contains(host)).collect();
                self.network.cut(hosts, &others);
                if !one_way {
                    self.network.cut(&others, hosts);
                }
            }
            Op::CutPair(a, b) => {
                self.network.cut(&[*a], &[*b]);
                self.network.cut(&[*b], &[*a]);
            }
            Op::Heal => self.network.heal(),
            Op::Loss(per_mille) => self.network.loss_ratio = f64::from(*per_mille) / 1_000.0,
            Op::Delay(ms) => self.network.extra = Duration::from_millis(*ms),
            Op::Crash { host, silent } => self.crash(*host, *silent),
            Op::Restart { host, new_key } => {
                self.crash(*host, false);
                if *new_key {
                    self.change_key(*host);
                }
                self.start(*host);
            }
            Op::Pause(host) => self.pause(*host),
            Op::Resume(host) => self.resume(*host),
            Op::ClockJump { host, by_ms } => self.hosts[*host].wall_offset_ms += by_ms,
            Op::Write(host) => self.publish(*host),
            Op::FailedRequest { at, of } => {
                let peer = self.hosts[*of].peer;
                if self.hosts[*at].is_running() && at != of {
                    self.input(*at, Input::Failed(peer));
                }
            }
            Op::Wait(ms) => self.run_for(Duration::from_millis(*ms)),
            Op::Expect(expected) => return invariant::expect(self, *expected),
            Op::Replay { .. } | Op::Forge { .. } | Op::Accuse { .. } | Op::Flood { .. } => self.lie(op),
        }
        Ok(())
    }

    fn lie(&mut self, op: &Op) {
        match op {
            Op::Replay { by, of } if self.hosts[*by].is_running() => {
                let known =
                    self.hosts[*by].member.as_ref().and_then(|member| member.registry().get(&self.hosts[*of].peer));
                if let Some(signed) = known.map(|entry| entry.signed().to_vec()) {
                    self.broadcast(*by, &[signed], &[]);
                }
            }
            Op::Forge { by, of, kind } if self.hosts[*by].is_running() && by != of => {
                let signed = self.forge(*by, *of, *kind);
                self.broadcast(*by, &[signed], &[]);
            }
            Op::Accuse { by, of } if self.hosts[*by].is_running() && by != of => {
                self.lies(*by);
                let victim = self.hosts[*of].peer;
                let accusation = self.accusation(*by, &victim, Verdict::Evict);
                self.broadcast(*by, &[], accusation.as_slice());
            }
            Op::Flood { by, with, count } if self.hosts[*by].is_running() => self.flood(*by, *with, *count),
            _ => {}
        }
    }

    /// Sends `count` statements to all neighbours, in pages of a hundred.
    fn flood(&mut self, by: usize, with: Flood, count: usize) {
        self.lies(by);
        let everybody: Vec<_> = self.hosts.iter().filter(|host| host.number != by).map(|host| host.peer).collect();
        for first in (0..count).step_by(100) {
            let page = first..count.min(first + 100);
            match with {
                Flood::Ghosts => {
                    let ghosts = self.ghosts(first, page.len(), Lifecycle::Serving, Duration::ZERO);
                    self.broadcast(by, &ghosts, &[]);
                }
                Flood::Versions => self.publish(by),
                Flood::Forgeries => {
                    let of = self.rng.random_range(0..self.hosts.len());
                    let kinds =
                        FORGERIES.iter().filter(|kind| !matches!(kind, Forgery::LargeLabels | Forgery::ManyModels));
                    let page: Vec<_> = kinds.map(|kind| self.forge(by, of, *kind)).collect();
                    self.broadcast(by, &page, &[]);
                }
                Flood::Accusations => {
                    let verdicts = [Verdict::Suspect, Verdict::Evict];
                    let pairs = everybody.iter().flat_map(|peer| verdicts.map(|verdict| (peer, verdict)));
                    let page: Vec<_> = pairs.filter_map(|(peer, verdict)| self.accusation(by, peer, verdict)).collect();
                    self.broadcast(by, &[], &page);
                }
            }
        }
    }

    /// Publishes something new.
    pub(crate) fn publish(&mut self, host: usize) {
        if !self.hosts[host].is_running() {
            return;
        }
        let edition = self.rng.random();
        let said = announcement(self.hosts[host].site, host, edition);
        self.hosts[host].announcement = said.clone();
        self.input(host, Input::Announce(Box::new(said)));
    }

    /// Ends a process in good order.
    pub(crate) fn leave(&mut self, host: usize) {
        if !self.hosts[host].is_running() {
            return;
        }
        self.input(host, Input::Leave);
        let run = self.hosts[host].run;
        self.plan(self.now + LEAVE_WITHIN, Event::Exit { host, run });
    }

    pub(crate) fn crash(&mut self, host: usize, silent: bool) {
        if self.hosts[host].member.is_some() {
            self.end_process(host, if silent { State::Powerless } else { State::Off });
        } else if !silent {
            self.hosts[host].state = State::Off;
        }
    }

    /// The next process of this host has another identity.
    pub(crate) fn change_key(&mut self, host: usize) {
        let machine = &mut self.hosts[host];
        machine.key = key(self.seed, host, machine.keys);
        machine.keys += 1;
        machine.peer = machine.key.public().to_peer_id();
    }
}
