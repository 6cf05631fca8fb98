//! What has changed of late, for watchers that come back.
//!
//! The ring is moved on by the watchers themselves: whoever asks what is new first notes the difference between the
//! view that was noted last and the present one. So nothing is done while nobody watches, and who was away, alone or
//! not, still gets the difference only. It holds peer ids, not their entries, and one view.

use libp2p::PeerId;
use otela_proto::{
    accusation::Accusation,
    registry::{Node, View},
};
use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

/// Peer ids that the ring holds, over all its steps; the oldest steps go first.
const HELD_MAX: usize = 16_384;
/// Steps of the ring.
const STEPS_MAX: usize = 4_096;
/// More changed peers than this are not told one by one.
const TOLD_MAX: usize = 4_096;

/// A view of one run of one process: what a watcher has seen. Runs are told apart by a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    run: u64,
    generation: u64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.run, self.generation)
    }
}

/// A text that no watcher of this version was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotSeen;

impl FromStr for Seen {
    type Err = NotSeen;

    fn from_str(text: &str) -> Result<Self, NotSeen> {
        let (run, generation) = text.split_once('-').ok_or(NotSeen)?;
        let run = u64::from_str_radix(run, 16).map_err(|_| NotSeen)?;
        Ok(Self { run, generation: generation.parse().map_err(|_| NotSeen)? })
    }
}

/// What a watcher has to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// These peers have changed, up to what is named.
    Changed(BTreeSet<PeerId>, Seen),
    /// What has changed cannot be told any more, or was never seen: everything, as named.
    Everything(Seen),
}

/// The ring.
#[derive(Debug)]
pub(super) struct History {
    run: u64,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    last: Arc<View>,
    steps: VecDeque<Step>,
    held: usize,
}

/// The peers that changed between two views.
#[derive(Debug)]
struct Step {
    from: u64,
    to: u64,
    changed: Vec<PeerId>,
}

impl History {
    /// A ring that begins with `view`, of the run with this random number.
    pub(super) fn new(run: u64, view: Arc<View>) -> Self {
        Self { run, ring: Mutex::new(Ring { last: view, steps: VecDeque::new(), held: 0 }) }
    }

    /// What is new in `now`, the present view, to one that has seen `seen`.
    pub(super) fn news(&self, seen: Option<Seen>, now: Arc<View>) -> News {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.advance(now);
        let newest = Seen { run: self.run, generation: ring.last.generation };
        let seen = seen.filter(|seen| seen.run == self.run && seen.generation <= newest.generation);
        match seen.and_then(|seen| ring.changed_since(seen.generation)) {
            Some(changed) => News::Changed(changed, newest),
            None => News::Everything(newest),
        }
    }
}

impl Ring {
    /// Notes what is different in `now`.
    fn advance(&mut self, now: Arc<View>) {
        // Another watcher may have come first with a later view.
        if now.generation <= self.last.generation {
            return;
        }
        let changed = difference(&self.last, &now);
        self.held += changed.len();
        self.steps.push_back(Step { from: self.last.generation, to: now.generation, changed });
        self.last = now;
        while (self.held > HELD_MAX || self.steps.len() > STEPS_MAX)
            && let Some(oldest) = self.steps.pop_front()
        {
            self.held -= oldest.changed.len();
        }
    }

    /// Who has changed after `generation`, as far as the ring reaches back and the answer is not too long.
    fn changed_since(&self, generation: u64) -> Option<BTreeSet<PeerId>> {
        let reaches_back_to = self.steps.front().map_or(self.last.generation, |step| step.from);
        if generation < reaches_back_to {
            return None;
        }
        let mut changed = BTreeSet::new();
        for step in self.steps.iter().rev().take_while(|step| step.to > generation) {
            changed.extend(step.changed.iter().copied());
            if changed.len() > TOLD_MAX {
                return None;
            }
        }
        Some(changed)
    }
}

/// The peers that are not the same in both views, or in one of them only.
fn difference(old: &View, new: &View) -> Vec<PeerId> {
    let changed = new.nodes().filter(|(id, node)| old.node(id).is_none_or(|before| !is_same(before, node)));
    let gone = old.nodes().filter(|(id, _)| new.node(id).is_none());
    changed.chain(gone).map(|(id, _)| *id).collect()
}

fn is_same(one: &Node, other: &Node) -> bool {
    let accusations = |node: &Node| node.accusations.iter().map(Accusation::id).collect::<Vec<_>>();
    one.entry.id() == other.entry.id()
        && one.belief == other.belief
        && one.provider == other.provider
        && (Arc::ptr_eq(&one.accusations, &other.accusations) || accusations(one) == accusations(other))
}

#[cfg(test)]
mod tests;
