//! What waits to be sent to one neighbour: bounded, and newest wins.
//!
//! Of each owner only the newest entry waits, however often it changes while the neighbour is slow. Probes and their
//! answers overtake everything else, so that a long transfer never looks like a death.

use super::PAGE_BYTES;
use crate::{
    step::Parcel,
    wire::{Entries, Frame, Say},
};
use bytes::Bytes;
use libp2p_identity::PeerId;
use std::collections::{HashMap, VecDeque};

/// Messages that wait, of each of two kinds: those about liveness, and those that compare replicas.
const MESSAGES_MAX: usize = 256;
/// Entries and accusations that wait: more than one exchange ever sends.
const ITEMS_MAX: usize = 4_096;

/// What an item is about: a newer one of the same key takes its place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Entry(PeerId),
    Accusation { subject: PeerId, accuser: PeerId },
}

/// The queue to one neighbour.
#[derive(Debug, Default)]
pub struct Outbox {
    urgent: VecDeque<Say>,
    messages: VecDeque<Say>,
    order: VecDeque<Key>,
    items: HashMap<Key, Parcel>,
}

impl Outbox {
    /// Queues a parcel. Returns how many older ones were dropped to make room; anti-entropy makes up for them.
    pub fn push(&mut self, parcel: Parcel) -> usize {
        let key = match &parcel {
            Parcel::Say(say) => return self.push_say(say.clone()),
            Parcel::Entry(entry) => Key::Entry(entry.owner()),
            Parcel::Accusation(accusation) => {
                Key::Accusation { subject: accusation.charge().subject, accuser: accusation.accuser() }
            }
        };
        if self.items.insert(key, parcel).is_none() {
            self.order.push_back(key);
        }
        let mut dropped = 0;
        while self.items.len() > ITEMS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.items.remove(&oldest);
            dropped += 1;
        }
        dropped
    }

    fn push_say(&mut self, say: Say) -> usize {
        let is_urgent = matches!(say, Say::Probe(_) | Say::Answer(_) | Say::Ask(_) | Say::Report(_) | Say::Bye(_));
        let queue = if is_urgent { &mut self.urgent } else { &mut self.messages };
        queue.push_back(say);
        usize::from(queue.len() > MESSAGES_MAX && queue.pop_front().is_some())
    }

    /// The next frame to be written.
    pub fn pop(&mut self) -> Option<Frame> {
        let say = self.urgent.pop_front().or_else(|| self.page()).or_else(|| self.messages.pop_front())?;
        Some(Frame { say: Some(say) })
    }

    /// Entries before accusations, which may be about them, in a frame of bounded size.
    fn page(&mut self) -> Option<Say> {
        let mut page = Entries::default();
        let mut bytes = 0;
        while let Some(key) = self.order.front() {
            let Some(parcel) = self.items.get(key) else { break };
            let signed = match parcel {
                Parcel::Entry(entry) => entry.signed(),
                Parcel::Accusation(accusation) => accusation.signed(),
                Parcel::Say(_) => break,
            };
            if bytes > 0 && bytes + signed.len() > PAGE_BYTES {
                break;
            }
            bytes += signed.len();
            let list = if matches!(key, Key::Entry(_)) { &mut page.signed } else { &mut page.accusations };
            list.push(Bytes::copy_from_slice(signed));
            self.items.remove(key);
            self.order.pop_front();
        }
        (bytes > 0).then_some(Say::Entries(page))
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.messages.is_empty() && self.items.is_empty()
    }

    /// How many frames' worth of things wait, at most.
    #[must_use]
    pub fn len(&self) -> usize {
        self.urgent.len() + self.messages.len() + self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        entry::{Draft, Entry, Rank},
        id::Epoch,
        lifecycle::Lifecycle,
        payload::Payload,
        wire::{Probe, Root},
    };
    use libp2p_identity::Keypair;

    fn entry(key: &Keypair, version: u64) -> Parcel {
        let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Join, version };
        let draft = Draft { rank, issued_at_ms: 1, payload: Payload::default() };
        Parcel::Entry(Entry::sign(key, &"lab".parse().unwrap(), draft).unwrap())
    }

    fn root(count: u64) -> Parcel {
        Parcel::Say(Say::Root(Root { hash: vec![0; 16], count }))
    }

    #[test]
    fn the_newest_entry_of_an_owner_waits_once() {
        let (key, mut outbox) = (Keypair::generate_ed25519(), Outbox::default());
        for version in 1..100 {
            assert_eq!(outbox.push(entry(&key, version)), 0);
        }
        assert_eq!(outbox.len(), 1);
        let Some(Frame { say: Some(Say::Entries(page)) }) = outbox.pop() else { panic!("a page of entries") };
        let opened = Entry::open(&page.signed[0], &"lab".parse().unwrap(), 1).unwrap();
        assert_eq!((page.signed.len(), opened.rank().version), (1, 99));
        assert!(outbox.is_empty() && outbox.pop().is_none());
    }

    #[test]
    fn a_slow_neighbour_costs_a_bounded_queue_and_liveness_goes_first() {
        let mut outbox = Outbox::default();
        let dropped: usize = (0..1_000).map(|n| outbox.push(root(n))).sum();
        assert_eq!((outbox.len(), dropped), (MESSAGES_MAX, 1_000 - MESSAGES_MAX));
        outbox.push(Parcel::Say(Say::Probe(Probe { number: 7 })));
        assert!(matches!(outbox.pop(), Some(Frame { say: Some(Say::Probe(_)) })));
        let Some(Frame { say: Some(Say::Root(first)) }) = outbox.pop() else { panic!("a root") };
        assert_eq!(first.count as usize, 1_000 - MESSAGES_MAX, "the oldest went");
    }
}
