//! Questions that are out: probes of our own, probes for others, and what helpers were asked.

use libp2p_identity::PeerId;
use std::{collections::BTreeMap, time::Duration};

/// Why a peer is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To know whether it lives.
    Watch,
    /// To see whether one that we suspect has come back.
    Recheck,
    /// Because another peer has asked, under this number of its own.
    Asked { by: PeerId, number: u32 },
}

/// How far a question has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// The subject itself was asked.
    Direct,
    /// Helpers were asked; of these, some have said that it does not answer them either.
    Helpers { asked: Vec<PeerId>, denied: usize },
}

/// A question without an answer yet.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub(super) subject: PeerId,
    pub(super) purpose: Purpose,
    pub(super) stage: Stage,
    pub(super) began: Duration,
    pub(super) until: Duration,
}

/// All questions, by the number that their answers repeat.
#[derive(Debug, Default)]
pub(super) struct Probes {
    last: u32,
    waiting: BTreeMap<u32, Waiting>,
}

impl Probes {
    /// Notes a new question and returns its number.
    pub(super) fn begin(&mut self, subject: PeerId, purpose: Purpose, now: Duration, within: Duration) -> u32 {
        self.last = self.last.wrapping_add(1);
        let waiting = Waiting { subject, purpose, stage: Stage::Direct, began: now, until: now + within };
        self.waiting.insert(self.last, waiting);
        self.last
    }

    /// Whether `subject` is being watched or rechecked already.
    pub(super) fn is_probing(&self, subject: &PeerId) -> bool {
        self.waiting.values().any(|w| w.subject == *subject && !matches!(w.purpose, Purpose::Asked { .. }))
    }

    /// Number of questions that `asker` waits for.
    pub(super) fn asked_by(&self, asker: &PeerId) -> usize {
        self.waiting.values().filter(|w| matches!(w.purpose, Purpose::Asked { by, .. } if by == *asker)).count()
    }

    /// The question under `number`.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Waiting> {
        self.waiting.get_mut(&number)
    }

    /// When the question under `number` began, if it was put to `subject`.
    pub(super) fn began(&self, number: u32, subject: &PeerId) -> Option<Duration> {
        self.waiting.get(&number).filter(|w| w.subject == *subject).map(|w| w.began)
    }

    /// Ends one question.
    pub(super) fn end(&mut self, number: u32) -> Option<Waiting> {
        self.waiting.remove(&number)
    }

    /// Ends all questions about `subject`: it lives.
    pub(super) fn answered(&mut self, subject: &PeerId) -> Vec<Waiting> {
        let numbers: Vec<_> =
            self.waiting.iter().filter(|(_, w)| w.subject == *subject).map(|(number, _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.waiting.remove(&number)).collect()
    }

    /// Makes every direct question to `subject` due now: it cannot be reached.
    pub(super) fn unreachable(&mut self, subject: &PeerId, now: Duration) {
        for waiting in self.waiting.values_mut() {
            if waiting.subject == *subject && waiting.stage == Stage::Direct {
                waiting.until = waiting.until.min(now);
            }
        }
    }

    /// The numbers of questions whose time is over.
    pub(super) fn due(&self, now: Duration) -> Vec<u32> {
        self.waiting.iter().filter(|(_, w)| w.until <= now).map(|(number, _)| *number).collect()
    }

    /// When the next question's time is over.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.waiting.values().map(|w| w.until).min()
    }

    /// Forgets all questions: whatever their answers were, we slept.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }
}
