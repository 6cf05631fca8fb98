//! RG/1: how entries spread (the reasons and the numbers are in docs/registry.md).
//!
//! *Push*: each new entry goes once to two ring neighbours and a few random ones, after a short wait that batches.
//! *Anti-entropy*: two peers compare a 16-byte root, then digests (by bucket when there are many), then send
//! what the other lacks in bounded pages. The core does no I/O: [`Gossip::handle`] takes one input with the
//! time, and appends what has to happen to a list.

mod digest;

use crate::{
    entry::Entry,
    id::Place,
    registry::{Learned, Registry},
    wire::{Entries, Frame, Root, Say, Want},
};
use libp2p_identity::PeerId;
use rand::{RngExt, SeedableRng, rngs::SmallRng, seq::IteratorRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// New entries wait this long for company before they are pushed.
const PUSH_BATCH: Duration = Duration::from_millis(2);
/// After something new was learned, roots are compared again at these distances.
const PROBE_AFTER: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(600)];
/// Roots are compared with somebody this often, give or take a fifth, when nothing happens.
const IDLE_PROBE: Duration = Duration::from_secs(10);
/// Links slower than this get more random copies, since each further hop would cost as much again.
const SLOW_LINK: Duration = Duration::from_millis(40);
/// Random targets of a push beside the two ring neighbours: near, and when any link is slow.
const RANDOM_TARGETS: [usize; 2] = [2, 6];
/// Registries with more entries than this compare buckets before digests.
const PLAIN_DIGEST_MAX: usize = 300;
/// Signed bytes in one frame; the frame limit of the wire is far above.
const PAGE_BYTES: usize = 64 * 1024;
/// Most owners asked for, or answered, in one exchange; the next comparison goes on from there.
const EXCHANGE_OWNERS_MAX: usize = 2_048;

/// Something that happened to this peer.
#[derive(Debug)]
pub enum Input {
    /// A link to a neighbour is up; `rtt` as far as it is known.
    LinkUp {
        /// The neighbour.
        peer: PeerId,
        /// Round trip time.
        rtt: Option<Duration>,
    },
    /// The link is gone.
    LinkDown(PeerId),
    /// A frame other than entries arrived.
    Say {
        /// From whom.
        from: PeerId,
        /// What it said.
        say: Say,
    },
    /// Verified entries arrived.
    Entries {
        /// From whom.
        from: PeerId,
        /// The entries, each checked by [`Entry::open`].
        entries: Vec<Entry>,
    },
    /// This peer has published its own entry.
    Own(Box<Entry>),
    /// The time asked for by [`Gossip::wake_at`] has come.
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send `frame` to a linked peer. If its queue is full the frame may be dropped: anti-entropy heals it.
    Send {
        /// To whom.
        to: PeerId,
        /// What.
        frame: Frame,
    },
    /// The entry of this owner is new: readers want a new view.
    Changed(PeerId),
    /// An entry of a new owner was refused because the registry is full.
    Full(PeerId),
    /// The frame of this peer breaks the protocol; it was dropped.
    Malformed(PeerId),
}

/// The gossip of one peer: its replica, its links and its timers.
#[derive(Debug)]
pub struct Gossip {
    me: PeerId,
    registry: Registry,
    links: BTreeMap<PeerId, Option<Duration>>,
    rng: SmallRng,
    /// Owners whose entries wait to be pushed, and whom not to send each (it came from there).
    fresh: BTreeMap<PeerId, BTreeSet<PeerId>>,
    push_at: Option<Duration>,
    probes: BTreeSet<Duration>,
    idle_probe_at: Duration,
}

impl Gossip {
    /// The gossip of `me`, with an empty replica.
    #[must_use]
    pub fn new(me: PeerId, seed: u64) -> Self {
        Self {
            me,
            registry: Registry::default(),
            links: BTreeMap::new(),
            rng: SmallRng::seed_from_u64(seed),
            fresh: BTreeMap::new(),
            push_at: None,
            probes: BTreeSet::new(),
            idle_probe_at: IDLE_PROBE,
        }
    }

    /// The replica.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let timers = [self.push_at, self.probes.first().copied()];
        timers.into_iter().flatten().fold(self.idle_probe_at, Duration::min)
    }

    /// Takes one input at `now`, a monotonic time of the caller, and appends what has to be done to `out`.
    pub fn handle(&mut self, now: Duration, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::LinkUp { peer, rtt } => {
                // At once on every new link: this is how a joiner gets the mesh, and how partitions heal.
                if self.links.insert(peer, rtt).is_none() {
                    self.send_root(peer, out);
                }
            }
            Input::LinkDown(peer) => {
                self.links.remove(&peer);
            }
            Input::Say { from, say } => self.on_say(from, say, out),
            Input::Entries { from, entries } => {
                for entry in entries {
                    self.learn(now, entry, Some(from), out);
                }
            }
            Input::Own(entry) => self.learn(now, *entry, None, out),
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// The peers that should be linked for the ring to be whole: successor and predecessor of `me` among
    /// `live`, and as many random ones as are missing up to `random` links beyond them.
    pub fn wanted_links(&mut self, live: impl Iterator<Item = PeerId>, random: usize) -> Vec<PeerId> {
        let ring: BTreeMap<Place, PeerId> =
            live.filter(|peer| *peer != self.me).map(|peer| (Place::of(&peer), peer)).collect();
        let mut wanted = self.ring_neighbours(&ring);
        let linked = ring.values().filter(|peer| self.links.contains_key(peer) && !wanted.contains(peer)).count();
        let more = random.saturating_sub(linked);
        let others = ring.values().filter(|peer| !wanted.contains(peer) && !self.links.contains_key(peer)).copied();
        let picked = others.sample(&mut self.rng, more);
        wanted.extend(picked);
        wanted
    }

    fn on_say(&mut self, from: PeerId, say: Say, out: &mut Vec<Output>) {
        let answer = match say {
            Say::Entries(_) | Say::Probe(_) | Say::Answer(_) | Say::Ask(_) | Say::Report(_) => return,
            Say::Root(root) => self.on_root(&root),
            Say::Buckets(buckets) => self.on_buckets(&buckets),
            Say::Digest(digest) => self.on_digest(&digest),
            Say::Want(want) => Some(self.on_want(&want)),
        };
        match answer {
            Some(says) => out.extend(says.into_iter().map(|say| send(from, say))),
            None => out.push(Output::Malformed(from)),
        }
    }

    fn on_root(&self, root: &Root) -> Option<Vec<Say>> {
        let theirs: [u8; 16] = root.hash.as_slice().try_into().ok()?;
        if theirs == self.registry.root() {
            return Some(Vec::new());
        }
        let larger = self.registry.len().max(usize::try_from(root.count).unwrap_or(usize::MAX));
        let answer = if larger > PLAIN_DIGEST_MAX { digest::buckets(&self.registry) } else { self.digest_of(u32::MAX) };
        Some(vec![answer])
    }

    fn on_buckets(&self, buckets: &crate::wire::Buckets) -> Option<Vec<Say>> {
        let unlike = digest::unlike_buckets(&self.registry, buckets)?;
        Some(if unlike == 0 { Vec::new() } else { vec![self.digest_of(unlike)] })
    }

    /// A digest is answered with what its sender lacks and a wish for what it has more of.
    fn on_digest(&self, theirs: &crate::wire::Digest) -> Option<Vec<Say>> {
        let difference = digest::compare(&self.registry, theirs)?;
        let mut says = pages(difference.theirs_to_learn.iter().filter_map(|place| self.registry.at_place(*place)));
        if !difference.ours_to_learn.is_empty() {
            let places = difference.ours_to_learn.iter().take(EXCHANGE_OWNERS_MAX).map(|place| place.0).collect();
            says.push(Say::Want(Want { places }));
        }
        Some(says)
    }

    fn on_want(&self, want: &Want) -> Vec<Say> {
        let places = want.places.iter().take(EXCHANGE_OWNERS_MAX);
        pages(places.filter_map(|place| self.registry.at_place(Place(*place))))
    }

    fn digest_of(&self, mask: u32) -> Say {
        digest::digest(&self.registry, mask)
    }

    fn learn(&mut self, now: Duration, entry: Entry, from: Option<PeerId>, out: &mut Vec<Output>) {
        let owner = entry.owner();
        match self.registry.learn(entry, now) {
            Learned::Stale | Learned::Buried | Learned::Backwards | Learned::UnknownSubject => {}
            Learned::Full => out.push(Output::Full(owner)),
            Learned::New => {
                // Newest wins: an older copy that still waits is replaced, so who has that one is forgotten.
                self.fresh.insert(owner, from.into_iter().collect());
                self.push_at.get_or_insert(now + PUSH_BATCH);
                self.probes.extend(PROBE_AFTER.map(|after| now + after));
                while self.probes.len() > PROBE_AFTER.len() {
                    // Under steady change the nearest and the farthest probe are enough.
                    let second = self.probes.iter().nth(1).copied();
                    second.map(|at| self.probes.remove(&at));
                }
                out.push(Output::Changed(owner));
            }
        }
    }

    fn on_tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.push_at.is_some_and(|at| at <= now) {
            self.push_at = None;
            self.push(out);
        }
        let mut probe = false;
        while self.probes.first().is_some_and(|at| *at <= now) {
            self.probes.pop_first();
            probe = true;
        }
        if self.idle_probe_at <= now {
            probe = true;
        }
        if probe {
            let spread = self.rng.random_range(0.8..1.2);
            self.idle_probe_at = now + IDLE_PROBE.mul_f64(spread);
            if let Some(peer) = self.links.keys().choose(&mut self.rng).copied() {
                self.send_root(peer, out);
            }
        }
    }

    fn push(&mut self, out: &mut Vec<Output>) {
        let targets = self.push_targets();
        let fresh = std::mem::take(&mut self.fresh);
        for target in targets {
            let entries = fresh
                .iter()
                .filter(|(owner, known_by)| **owner != target && !known_by.contains(&target))
                .filter_map(|(owner, _)| self.registry.get(owner));
            out.extend(pages(entries).into_iter().map(|say| send(target, say)));
        }
    }

    /// Two ring neighbours among the linked peers, so that every push goes all the way round, and random others,
    /// so that it does so in few hops.
    fn push_targets(&mut self) -> Vec<PeerId> {
        let ring: BTreeMap<Place, PeerId> = self.links.keys().map(|peer| (Place::of(peer), *peer)).collect();
        let mut targets = self.ring_neighbours(&ring);
        let slow = self.links.values().flatten().any(|rtt| *rtt > SLOW_LINK);
        let others = self.links.keys().filter(|peer| !targets.contains(peer)).copied();
        let picked = others.sample(&mut self.rng, RANDOM_TARGETS[usize::from(slow)]);
        targets.extend(picked);
        targets
    }

    /// Successor and predecessor of `me` on a ring.
    fn ring_neighbours(&self, ring: &BTreeMap<Place, PeerId>) -> Vec<PeerId> {
        let me = Place::of(&self.me);
        let next = ring.range(me..).next().or_else(|| ring.first_key_value());
        let previous = ring.range(..me).next_back().or_else(|| ring.last_key_value());
        let mut neighbours: Vec<_> = next.into_iter().chain(previous).map(|(_, peer)| *peer).collect();
        neighbours.dedup();
        neighbours
    }

    fn send_root(&self, to: PeerId, out: &mut Vec<Output>) {
        let root = Root { hash: self.registry.root().to_vec(), count: self.registry.len() as u64 };
        out.push(send(to, Say::Root(root)));
    }
}

fn send(to: PeerId, say: Say) -> Output {
    Output::Send { to, frame: Frame { say: Some(say) } }
}

/// Entries in frames of bounded size.
fn pages<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Say> {
    let mut pages = Vec::new();
    let mut page = Entries::default();
    let mut bytes = 0;
    for entry in entries.take(EXCHANGE_OWNERS_MAX) {
        if bytes + entry.signed().len() > PAGE_BYTES && !page.signed.is_empty() {
            pages.push(Say::Entries(std::mem::take(&mut page)));
            bytes = 0;
        }
        bytes += entry.signed().len();
        page.signed.push(entry.signed().to_vec());
    }
    if !page.signed.is_empty() {
        pages.push(Say::Entries(page));
    }
    pages
}

#[cfg(test)]
mod tests;
