//! RG/1: how entries and accusations spread (the reasons and the numbers are in docs/registry.md).
//!
//! *Push*: each new one goes once to two ring neighbours and a few random ones, after a short wait that batches.
//! *Anti-entropy*: two peers compare a 16-byte root, then digests (by bucket when there are many), then send
//! what the other lacks in bounded pages. The replica itself is an argument; what is to be sent is appended to a list.

mod digest;
mod links;
mod outbox;
mod pace;

pub use links::{Link, Links};
pub(crate) use links::{predecessor, successor};
pub use outbox::Outbox;

use crate::{
    accusation::Accusation,
    entry::Entry,
    id::Place,
    lifecycle::Lifecycle,
    registry::Registry,
    step::{Output, Parcel},
    wire::{Root, Say, Want},
};
use libp2p_identity::PeerId;
use pace::Pace;
use rand::{Rng, RngExt, seq::IteratorRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// New entries wait this long for company before they are pushed.
const PUSH_BATCH: Duration = Duration::from_millis(2);
/// After something new was learned, roots are compared soon, and again later.
const COMPARE_SOON: Duration = Duration::from_millis(120);
/// See [`COMPARE_SOON`]. Under steady change replicas never agree; then both comparisons come again each time this is over.
const COMPARE_LATER: Duration = Duration::from_millis(600);
/// Roots are compared with somebody this often, give or take a fifth, when nothing happens.
const IDLE_COMPARE: Duration = Duration::from_secs(10);
/// Links slower than this get more random copies, since each further hop would cost as much again.
const SLOW_LINK: Duration = Duration::from_millis(40);
/// Random targets of a push beside the two ring neighbours.
const RANDOM_TARGETS: usize = 2;
/// The same in a mesh of more than [`LARGE`]: there two ring copies that both get lost would be missed now and then.
const RANDOM_TARGETS_LARGE: usize = 3;
/// The same when any link is slow.
const RANDOM_TARGETS_SLOW: usize = 6;
/// A mesh with more entries is large.
const LARGE: usize = 32;
/// Registries with more entries than this compare buckets before digests.
const PLAIN_DIGEST_MAX: usize = 300;
/// Signed bytes in one frame; the frame limit of the wire is far above.
const PAGE_BYTES: usize = 64 * 1024;
/// Most owners asked for, or answered, in one exchange; the next comparison goes on from there.
const EXCHANGE_OWNERS_MAX: usize = 2_048;

/// What waits to be pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Entry(PeerId),
    Accusation { subject: PeerId, accuser: PeerId },
}

/// The gossip of one peer: what waits to be pushed, and when replicas are compared.
#[derive(Debug)]
pub(crate) struct Gossip {
    me: Place,
    /// What waits to be pushed, and whom not to send it (it came from there). It is held itself: the replica may have
    /// buried its subject by then.
    fresh: BTreeMap<Item, (Parcel, Option<PeerId>)>,
    /// Owners of another session than before: they are sent it back, for two processes may use one key.
    echoed: BTreeSet<PeerId>,
    push_at: Option<Duration>,
    pace: Pace,
    last_words: Pace,
    accusers: Pace,
    compare_soon: Option<Duration>,
    compare_later: Option<Duration>,
    idle_compare_at: Duration,
}

impl Gossip {
    pub(crate) fn new(me: &PeerId) -> Self {
        Self {
            me: Place::of(me),
            fresh: BTreeMap::new(),
            echoed: BTreeSet::new(),
            push_at: None,
            pace: Pace::new(pace::ENTRIES),
            last_words: Pace::new(pace::ENTRIES),
            accusers: Pace::new(pace::ACCUSATIONS),
            compare_soon: None,
            compare_later: None,
            idle_compare_at: IDLE_COMPARE,
        }
    }

    /// When [`Self::tick`] is due.
    pub(crate) fn wake_at(&self) -> Duration {
        let paced = self.pace.next().into_iter().chain(self.last_words.next()).min();
        let timers = [self.push_at, paced, self.compare_soon, self.compare_later];
        timers.into_iter().flatten().fold(self.idle_compare_at, Duration::min)
    }

    /// The replica has a new entry; `from` has it already.
    pub(crate) fn learned_entry(&mut self, entry: &Entry, from: Option<PeerId>, now: Duration) {
        // Newest wins: an older copy that still waits is replaced, so who has that one is forgotten.
        let owner = entry.owner();
        // Our own words are not thinned, and the last ones of a session have an allowance of their own: a node that has
        // said much in a short life must still be heard when it says that it goes.
        let is_last = entry.rank().lifecycle >= Lifecycle::Down;
        let pace = if is_last { &mut self.last_words } else { &mut self.pace };
        if from.is_none() || pace.admit(owner, now) {
            self.fresh.insert(Item::Entry(owner), (Parcel::Entry(entry.clone()), from));
        }
        self.learned(now);
    }

    /// The newest entry of `owner` is of another session than before. If the old session's process still runs, it
    /// hears of that from us.
    pub(crate) fn echo(&mut self, owner: PeerId) {
        self.echoed.insert(owner);
    }

    /// The replica has a new accusation; `from` has it already.
    pub(crate) fn learned_accusation(&mut self, accusation: &Accusation, from: Option<PeerId>, now: Duration) {
        let (subject, accuser) = (accusation.charge().subject, accusation.accuser());
        // One that says the same again and again, each time in a form that replaces the last, is not passed on for ever.
        if from.is_none() || self.accusers.spend(accuser, now) {
            let item = Item::Accusation { subject, accuser };
            self.fresh.insert(item, (Parcel::Accusation(accusation.clone()), from));
        }
        self.learned(now);
    }

    fn learned(&mut self, now: Duration) {
        self.push_at.get_or_insert(now + PUSH_BATCH);
        if self.compare_later.is_none() {
            self.compare_soon.get_or_insert(now + COMPARE_SOON);
            self.compare_later = Some(now + COMPARE_LATER);
        }
    }

    /// What waits is pushed at the next tick, which is due now: Down and Left must not be lost with the process.
    pub(crate) fn hurry(&mut self, now: Duration) {
        self.push_at = self.push_at.map(|_| now);
    }

    /// Does what is due at `now`.
    pub(crate) fn tick(
        &mut self,
        now: Duration,
        registry: &Registry,
        links: &Links,
        rng: &mut impl Rng,
        out: &mut Vec<Output>,
    ) {
        let due = [self.pace.take_due(now), self.last_words.take_due(now)].concat();
        for entry in due.iter().filter_map(|owner| registry.get(owner)) {
            self.fresh.insert(Item::Entry(entry.owner()), (Parcel::Entry(entry.clone()), None));
            self.push_at = Some(now);
        }
        if self.push_at.is_some_and(|at| at <= now) {
            self.push_at = None;
            self.push(registry, links, rng, out);
        }
        let timers = [&mut self.compare_soon, &mut self.compare_later];
        let due = timers.into_iter().filter_map(|timer| timer.take_if(|at| *at <= now)).count();
        let compare = due > 0 || self.idle_compare_at <= now;
        if compare {
            self.idle_compare_at = now + IDLE_COMPARE.mul_f64(rng.random_range(0.8..1.2));
            if let Some(peer) = links.peers().choose(rng).copied() {
                compare_with(peer, registry, out);
            }
        }
    }

    fn push(&mut self, registry: &Registry, links: &Links, rng: &mut impl Rng, out: &mut Vec<Output>) {
        let targets = self.push_targets(registry, links, rng);
        let fresh = std::mem::take(&mut self.fresh);
        for owner in std::mem::take(&mut self.echoed).into_iter().filter(|owner| links.contains(owner)) {
            let entry = registry.get(&owner).cloned().map(Parcel::Entry);
            out.extend(entry.map(|parcel| Output::Send { to: owner, parcel }));
        }
        // Entries sort before accusations, which may be about them.
        for (item, (parcel, from)) in &fresh {
            let signer = item.signer();
            for target in targets.iter().filter(|target| **target != signer && Some(**target) != *from) {
                out.push(Output::Send { to: *target, parcel: parcel.clone() });
            }
        }
    }

    /// Two ring neighbours among the linked peers, so that every push goes all the way round, and random others,
    /// so that it does so in few hops.
    fn push_targets(&self, registry: &Registry, links: &Links, rng: &mut impl Rng) -> Vec<PeerId> {
        let mut targets: Vec<PeerId> =
            [successor(links.ring(), self.me, |_| true), predecessor(links.ring(), self.me, |_| true)]
                .into_iter()
                .flatten()
                .collect();
        targets.dedup();
        let slow = links.iter().any(|(_, link)| link.rtt.is_some_and(|rtt| rtt > SLOW_LINK));
        let others = links.peers().filter(|peer| !targets.contains(peer)).copied();
        let number = match (slow, registry.len() > LARGE) {
            (true, _) => RANDOM_TARGETS_SLOW,
            (false, true) => RANDOM_TARGETS_LARGE,
            (false, false) => RANDOM_TARGETS,
        };
        let picked = others.sample(rng, number);
        targets.extend(picked);
        targets
    }
}

impl Item {
    fn signer(&self) -> PeerId {
        match self {
            Self::Entry(owner) => *owner,
            Self::Accusation { accuser, .. } => *accuser,
        }
    }
}

/// Asks `peer` whether it has what we have.
pub(crate) fn compare_with(peer: PeerId, registry: &Registry, out: &mut Vec<Output>) {
    let root = Root { hash: registry.root().to_vec(), count: registry.len() as u64 };
    out.push(say(peer, Say::Root(root)));
}

/// Answers a message of anti-entropy. `None` if it is malformed.
pub(crate) fn answer(from: PeerId, message: &Say, registry: &Registry, out: &mut Vec<Output>) -> Option<()> {
    match message {
        Say::Root(root) => on_root(from, root, registry, out),
        Say::Buckets(buckets) => {
            let unlike = digest::unlike_buckets(registry, buckets)?;
            if unlike != 0 {
                out.extend(digest::digests(registry, unlike).into_iter().map(|digest| say(from, digest)));
            }
            Some(())
        }
        Say::Digest(theirs) => {
            // A digest is answered with what its sender lacks and a wish for what it has more of.
            let difference = digest::compare(registry, theirs)?;
            give(from, &difference.theirs_to_learn, registry, out);
            if !difference.ours_to_learn.is_empty() {
                let places = difference.ours_to_learn.iter().take(EXCHANGE_OWNERS_MAX).map(|place| place.0).collect();
                out.push(say(from, Say::Want(Want { places })));
            }
            Some(())
        }
        Say::Want(want) => {
            let places: Vec<_> = want.places.iter().copied().map(Place).collect();
            give(from, &places, registry, out);
            Some(())
        }
        Say::Entries(_) | Say::Probe(_) | Say::Answer(_) | Say::Ask(_) | Say::Report(_) | Say::Bye(_) => Some(()),
    }
}

fn on_root(from: PeerId, root: &Root, registry: &Registry, out: &mut Vec<Output>) -> Option<()> {
    let theirs: [u8; 16] = root.hash.as_slice().try_into().ok()?;
    if theirs != registry.root() {
        let larger = registry.len().max(usize::try_from(root.count).unwrap_or(usize::MAX));
        let plain = larger <= PLAIN_DIGEST_MAX;
        let answers = if plain { digest::digests(registry, u32::MAX) } else { vec![digest::buckets(registry)] };
        out.extend(answers.into_iter().map(|answer| say(from, answer)));
    }
    Some(())
}

/// Sends the entries at `places`, and the accusations against their owners.
fn give(to: PeerId, places: &[Place], registry: &Registry, out: &mut Vec<Output>) {
    let entries: Vec<&Entry> =
        places.iter().take(EXCHANGE_OWNERS_MAX).filter_map(|place| registry.at_place(*place)).collect();
    out.extend(entries.iter().map(|entry| Output::Send { to, parcel: Parcel::Entry((*entry).clone()) }));
    for entry in entries {
        let accusations = registry.accusations(&entry.owner());
        out.extend(accusations.iter().map(|a| Output::Send { to, parcel: Parcel::Accusation(a.clone()) }));
    }
}

/// A message to `to`.
pub(crate) fn say(to: PeerId, say: Say) -> Output {
    Output::Send { to, parcel: Parcel::Say(say) }
}
