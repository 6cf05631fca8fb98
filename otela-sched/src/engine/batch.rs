//! Continuous batching without I/O: a waiting queue, slots, KV blocks, and time as an argument.
//!
//! A sequence waits in FIFO order for a slot and for the blocks of its tokens, is prefilled, then gets a token
//! every inter-token latency. When no block is free for the next token, the sequence admitted last is preempted: it
//! loses its blocks, waits at the head of the queue, and its tokens are computed again. How long things take,
//! and whether a fuller batch is slower, is for the pace to say. Prefix caching is not modelled here.
//!
//! Invariants: free blocks and the blocks held add up to the total; a sequence that may be submitted fits alone.

use super::pace::{Busy, Pace};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

/// What the engine has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) slots: usize,
    pub(crate) blocks: u32,
    pub(crate) block_tokens: u32,
    pub(crate) queue: usize,
}

impl Room {
    fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens).max(1)
    }
}

/// Names a sequence; later ones are larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SeqId(u64);

/// One thing that happened, at its virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) id: SeqId,
    pub(crate) what: What,
}

/// What happened to a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// It left the queue and is being prefilled.
    Admitted,
    /// It has this many tokens now.
    Token(u32),
    /// It lost its blocks and waits again.
    Preempted,
    /// It has all its tokens and is gone.
    Finished,
}

/// Why a sequence was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The waiting queue is full.
    QueueFull,
    /// It would not fit even with all blocks to itself.
    TooLong,
}

/// How busy the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    pub(crate) blocks_used: u32,
    pub(crate) blocks: u32,
}

#[derive(Debug)]
struct Seq {
    prompt: u32,
    output: u32,
    produced: u32,
    /// Held now; 0 while it waits.
    blocks: u32,
    /// When the next token comes; `None` while it waits.
    due: Option<Duration>,
}

/// The state of the engine's scheduler.
#[derive(Debug)]
pub(crate) struct Batch {
    room: Room,
    pace: Pace,
    seqs: BTreeMap<SeqId, Seq>,
    waiting: VecDeque<SeqId>,
    /// In order of admission.
    running: Vec<SeqId>,
    due: BTreeSet<(Duration, SeqId)>,
    free: u32,
    /// What is running.
    busy: Busy,
    next: u64,
    events: Vec<Event>,
}

impl Batch {
    pub(crate) fn new(room: Room, pace: Pace) -> Self {
        Self {
            room,
            pace,
            seqs: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            due: BTreeSet::new(),
            free: room.blocks,
            busy: Busy::default(),
            next: 0,
            events: Vec::new(),
        }
    }

    /// Queues a sequence of `prompt` tokens that will get `output` more, and admits it if there is room.
    /// Everything due before `now` must have been taken with [`Batch::advance`].
    pub(crate) fn submit(&mut self, now: Duration, prompt: u32, output: u32) -> Result<SeqId, Refused> {
        let output = output.max(1);
        if self.room.blocks_for(prompt.saturating_add(output)) > self.room.blocks {
            return Err(Refused::TooLong);
        }
        let must_wait = !self.waiting.is_empty() || !self.fits(self.room.blocks_for(prompt));
        if must_wait && self.waiting.len() >= self.room.queue {
            return Err(Refused::QueueFull);
        }
        let id = SeqId(self.next);
        self.next += 1;
        self.seqs.insert(id, Seq { prompt, output, produced: 0, blocks: 0, due: None });
        self.waiting.push_back(id);
        self.admit(now);
        Ok(id)
    }

    /// Takes a sequence out, wherever it is, and gives its room to others. Returns whether it was still there.
    pub(crate) fn remove(&mut self, now: Duration, id: SeqId) -> bool {
        if !self.seqs.contains_key(&id) {
            return false;
        }
        self.waiting.retain(|&waiting| waiting != id);
        self.release(id);
        self.seqs.remove(&id);
        self.admit(now);
        true
    }

    /// Lets time pass until `now` and returns what happened since the last call, in order.
    pub(crate) fn advance(&mut self, now: Duration) -> Vec<Event> {
        while let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.pop_first();
            self.token(at, id);
        }
        std::mem::take(&mut self.events)
    }

    /// When something will happen next, if nobody submits or removes.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|&(at, _)| at)
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks_used: self.room.blocks - self.free,
            blocks: self.room.blocks,
        }
    }

    fn fits(&self, blocks: u32) -> bool {
        self.running.len() < self.room.slots && blocks <= self.free
    }

    fn admit(&mut self, now: Duration) {
        while let Some(&id) = self.waiting.front() {
            let Some(seq) = self.seqs.get(&id) else { return };
            let tokens = seq.prompt + seq.produced;
            let blocks = self.room.blocks_for(tokens);
            if !self.fits(blocks) {
                return;
            }
            self.waiting.pop_front();
            let due = now + self.pace.prefill(tokens, self.busy);
            self.running.push(id);
            self.free -= blocks;
            self.busy.sequences += 1;
            self.busy.tokens += u64::from(tokens);
            if let Some(seq) = self.seqs.get_mut(&id) {
                seq.blocks = blocks;
            }
            self.schedule(id, due);
            self.note(now, id, What::Admitted);
        }
    }

    /// The sequence's next token is there.
    fn token(&mut self, at: Duration, id: SeqId) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.due = None;
        seq.produced += 1;
        self.busy.tokens += 1;
        let (produced, done) = (seq.produced, seq.produced >= seq.output);
        let wanted = self.room.blocks_for(seq.prompt + seq.produced);
        let grows = wanted > seq.blocks;
        self.note(at, id, What::Token(produced));
        if done {
            self.release(id);
            self.seqs.remove(&id);
            self.note(at, id, What::Finished);
            self.admit(at);
            return;
        }
        if grows && !self.grow(at, id) {
            return;
        }
        self.schedule(id, at + self.pace.next_token(self.busy));
    }

    /// Gives a running sequence one more block, at the cost of the one admitted last. Returns whether it still runs.
    fn grow(&mut self, at: Duration, id: SeqId) -> bool {
        while self.free == 0 {
            // A sequence that holds blocks runs, so there is a last one; alone, it fits by `submit`'s check.
            let Some(&last) = self.running.last() else { return false };
            self.release(last);
            self.waiting.push_front(last);
            self.note(at, last, What::Preempted);
            if last == id {
                return false;
            }
        }
        self.free -= 1;
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.blocks += 1;
        }
        true
    }

    fn schedule(&mut self, id: SeqId, due: Duration) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.due = Some(due);
            self.due.insert((due, id));
        }
    }

    /// Takes slot, blocks and timer from a sequence.
    fn release(&mut self, id: SeqId) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        if seq.blocks > 0 {
            self.busy.sequences -= 1;
            self.busy.tokens -= u64::from(seq.prompt + seq.produced);
        }
        self.free += std::mem::take(&mut seq.blocks);
        if let Some(due) = seq.due.take() {
            self.due.remove(&(due, id));
        }
        self.running.retain(|&running| running != id);
        debug_assert!(self.free <= self.room.blocks, "blocks were given back twice");
    }

    fn note(&mut self, at: Duration, id: SeqId, what: What) {
        self.events.push(Event { at, id, what });
    }
}

#[cfg(test)]
mod tests;
