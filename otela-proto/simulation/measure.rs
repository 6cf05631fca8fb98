//! The measurements that tests and benchmarks share: each quantity has its one definition here.

use super::world::{Watch, World};
use bytes::Bytes;
use otela_proto::{
    entry::Entry,
    lifecycle::Lifecycle,
    member::{Input, NewSession},
    payload::Role,
    registry::Belief,
    wire::Entries,
};
use rand::RngExt;
use std::{collections::BTreeSet, ops::Range, time::Duration};

/// Time for a mesh to make the connections that it wants, once everybody knows everybody.
const FORMING: Duration = Duration::from_secs(20);
/// Beliefs are looked at in steps of this length.
const STEP: Duration = Duration::from_millis(10);

/// When something had become so at everybody, counted from what caused it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    /// At 95 % of the hosts.
    pub(crate) most: Duration,
    /// At all of them.
    pub(crate) all: Duration,
}

/// What followed a crash.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death {
    /// From the crash until nobody would send requests there.
    pub(crate) suspected: Duration,
    /// From the crash until everybody counted it as gone.
    pub(crate) evicted: Duration,
    /// From the first suspicion anywhere until everybody counted it as gone.
    pub(crate) evicted_after_suspicion: Duration,
}

/// Judgements of peers that were alive all the time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mistakes {
    /// Times that one host began to suspect a peer.
    pub(crate) suspicions: usize,
    /// Peers that somebody believed evicted, and new sessions that began because of it.
    pub(crate) evictions: usize,
}

impl World {
    /// A mesh of `hosts` that has been up for a while: everybody runs, knows everybody, and has its connections. The
    /// first host is a relay and everybody's bootstrap.
    pub(crate) fn formed(hosts: usize, seed: u64, loss_ratio: f64) -> Self {
        let mut world = Self::new(hosts, seed, loss_ratio);
        world.bootstraps = vec![0];
        world.hosts[0].role = Role::Relay;
        for host in 0..hosts {
            world.start(host);
        }
        let entries: Vec<Entry> = (0..hosts).flat_map(|host| own_entry(&world, host)).collect();
        let from = world.hosts[0].peer;
        for host in 0..hosts {
            world.input(host, Input::Entries { from, entries: entries.clone(), accusations: Vec::new() });
        }
        world.run_for(FORMING);
        world
    }

    /// Has one host write, and waits until all running ones have seen it. `None` if that took longer than `limit`.
    pub(crate) fn measure_spread(&mut self, writer: usize, limit: Duration) -> Option<Spread> {
        let (began, owner) = (self.now, self.hosts[writer].peer);
        self.publish(writer);
        let rank = self.member(writer).registry().rank(&owner)?;
        let mut seen_at = vec![None; self.hosts.len()];
        seen_at[writer] = Some(began);
        self.watch = Some(Watch { owner, rank, seen_at });
        let everybody: Vec<_> = self.running().map(|host| host.number).collect();
        let has_seen =
            |world: &Self, host: usize| world.watch.as_ref().is_some_and(|watch| watch.seen_at[host].is_some());
        self.run_while_not(limit, STEP, |world| everybody.iter().all(|host| has_seen(world, *host)))?;
        let watch = self.watch.take()?;
        let mut took: Vec<_> = everybody.iter().filter_map(|host| Some(watch.seen_at[*host]? - began)).collect();
        took.sort();
        let most = (took.len() * 95).div_ceil(100) - 1;
        Some(Spread { most: took[most], all: *took.last()? })
    }

    /// Crashes a host and waits until everybody else has drawn the conclusions. `None` if that took longer than
    /// `limit`.
    pub(crate) fn measure_death(&mut self, host: usize, silent: bool, limit: Duration) -> Option<Death> {
        let (began, peer) = (self.now, self.hosts[host].peer);
        let believes = |world: &Self, observer: usize| world.member(observer).belief(&peer);
        self.crash(host, silent);
        let others: Vec<_> = self.running().map(|other| other.number).collect();
        let is_suspect = |world: &Self, observer: usize| believes(world, observer) != Belief::Alive;
        self.run_while_not(limit, STEP, |world| others.iter().any(|other| is_suspect(world, *other)))?;
        let first = self.now - began;
        self.run_while_not(limit, STEP, |world| others.iter().all(|other| is_suspect(world, *other)))?;
        let suspected = self.now - began;
        let is_evicted = |world: &Self, observer: usize| matches!(believes(world, observer), Belief::Evicted(_));
        self.run_while_not(limit, STEP, |world| others.iter().all(|other| is_evicted(world, *other)))?;
        let evicted = self.now - began;
        Some(Death { suspected, evicted, evicted_after_suspicion: evicted - first })
    }

    /// Lets time pass in which nobody dies, and counts who is taken for dead all the same.
    pub(crate) fn measure_mistakes(&mut self, lasts: Duration) -> Mistakes {
        self.doubts = Some(Vec::new());
        let sessions = |world: &Self| {
            let all = world.hosts.iter().flat_map(|host| &host.notes.new_sessions);
            all.filter(|why| **why == NewSession::Evicted).count()
        };
        let before = sessions(self);
        self.run_for(lasts);
        let doubts = self.doubts.take().unwrap_or_default();
        let evicted: BTreeSet<_> = doubts
            .iter()
            .filter(|(.., belief)| matches!(belief, Belief::Evicted(_)))
            .map(|(_, _, peer, _)| *peer)
            .collect();
        let suspicions = doubts.iter().filter(|(.., belief)| matches!(belief, Belief::Suspect(_))).count();
        Mistakes { suspicions, evictions: evicted.len() + sessions(self) - before }
    }

    /// Whether all running hosts hold the same.
    pub(crate) fn is_equal(&self) -> bool {
        let mut roots = self.running().map(|host| self.member(host.number).registry().root());
        let first = roots.next();
        roots.all(|root| Some(root) == first)
    }

    /// Whether every running host believes every other one alive, in its present session.
    pub(crate) fn is_whole(&self) -> bool {
        self.running().all(|host| {
            let member = self.member(host.number);
            self.running().all(|other| {
                let session = self.member(other.number).session();
                let known = member.registry().get(&other.peer).is_some_and(|entry| entry.session() == session);
                known && (host.number == other.number || member.belief(&other.peer) == Belief::Alive)
            })
        })
    }

    /// One cycle of peers that nobody has met before: they join through some running host and leave again. `numbers`
    /// makes them. Only their statements are there, not their processes.
    pub(crate) fn cycle(&mut self, numbers: Range<usize>) {
        let running: Vec<_> = self.running().map(|host| host.number).collect();
        let at = running[self.rng.random_range(0..running.len())];
        for lifecycle in [Lifecycle::Serving, Lifecycle::Left] {
            let ghosts = self.ghosts(numbers.start, numbers.len(), lifecycle, Duration::ZERO);
            let signed = ghosts.into_iter().map(Bytes::from).collect();
            let now_ms = self.hosts[at].wall_ms(self.now);
            let opened = self.verifier.open(&Entries { signed, accusations: Vec::new() }, now_ms);
            let from = opened.entries.first().map_or(self.hosts[at].peer, Entry::owner);
            self.input(at, Input::Entries { from, entries: opened.entries, accusations: Vec::new() });
            self.run_for(Duration::from_millis(90));
        }
    }
}

/// What a host says of itself.
fn own_entry(world: &World, host: usize) -> Option<Entry> {
    world.member(host).registry().get(&world.hosts[host].peer).cloned()
}
