//! The sequences of a replica that decode: each gets one token in each step.
//!
//! Nothing is done for each sequence and step. When a sequence ends is known when it joins, counted in steps; the keys that
//! a step reads grow by one for each sequence; and where in its last block a sequence stands, seen from the count of steps,
//! never changes. So what any number of steps needs in blocks and keys is known without taking them.

use super::queue::Waiting;
use std::{cmp::Reverse, collections::BinaryHeap};

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sequence {
    /// What it is part of.
    pub(super) waiting: Waiting,
    /// When its first token was there.
    pub(super) first: f64,
    /// Tokens with keys and values when it joined.
    tokens_joined: u32,
    /// The count of steps when it joined.
    joined: u64,
    /// Its place among all that were ever admitted.
    admitted: u64,
}

#[derive(Debug)]
pub(super) struct Running {
    sequences: Vec<Option<Sequence>>,
    vacant: Vec<u32>,
    /// After which step whose turn it is to end. Those that were put back are still among them.
    ends: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// Whom to put back first is last. Those that have ended are still among them.
    order: Vec<(u64, u32)>,
    /// Steps so far.
    steps: u64,
    count: u32,
    /// Tokens with keys and values, of all together.
    tokens: u64,
    /// How many sequences begin a block in the step whose number, counted down, ends in this.
    phases: Vec<u32>,
}

impl Running {
    pub(super) fn new(block_tokens: u32) -> Self {
        Self {
            sequences: Vec::new(),
            vacant: Vec::new(),
            ends: BinaryHeap::new(),
            order: Vec::new(),
            steps: 0,
            count: 0,
            tokens: 0,
            phases: vec![0; block_tokens.max(1) as usize],
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Keys that the next step reads: each sequence's own new one is among them.
    pub(super) fn keys(&self) -> u64 {
        self.tokens + u64::from(self.count)
    }

    /// Takes in one that has `tokens` keys and values and needs `steps` more tokens.
    pub(super) fn join(&mut self, waiting: Waiting, first: f64, tokens: u32, steps: u32, admitted: u64) {
        let sequence = Sequence { waiting, first, tokens_joined: tokens, joined: self.steps, admitted };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.sequences.push(None);
            u32::try_from(self.sequences.len() - 1).unwrap_or(u32::MAX)
        });
        self.sequences[slot as usize] = Some(sequence);
        self.ends.push(Reverse((self.steps + u64::from(steps), admitted, slot)));
        self.order.push((admitted, slot));
        self.count += 1;
        self.tokens += u64::from(tokens);
        let phase = self.phase(&sequence);
        self.phases[phase] += 1;
    }

    /// Tokens of it that have keys and values now.
    pub(super) fn tokens_of(&self, sequence: &Sequence) -> u32 {
        sequence.tokens_joined + self.steps_since(sequence)
    }

    /// Tokens that it has been given since it joined.
    pub(super) fn steps_since(&self, sequence: &Sequence) -> u32 {
        u32::try_from(self.steps - sequence.joined).unwrap_or(u32::MAX)
    }

    /// Steps until the next of them has its last token.
    pub(super) fn steps_to_end(&mut self) -> Option<u64> {
        while let Some(&Reverse((step, admitted, slot))) = self.ends.peek() {
            if self.is_there(admitted, slot) {
                return Some(step - self.steps);
            }
            self.ends.pop();
        }
        None
    }

    /// How many steps `free` blocks are enough for.
    pub(super) fn steps_in(&self, free: u64) -> u64 {
        if self.count == 0 {
            return u64::MAX;
        }
        let (cycles, mut left) = (free / u64::from(self.count), free % u64::from(self.count));
        let before = cycles.saturating_mul(self.phases.len() as u64);
        for step in 0..self.phases.len() as u64 {
            let needed = self.blocks_in_step(step);
            if needed > left {
                return before + step;
            }
            left -= needed;
        }
        before + self.phases.len() as u64
    }

    /// Blocks that the next `steps` steps need.
    pub(super) fn blocks_in(&self, steps: u64) -> u64 {
        let cycle = self.phases.len() as u64;
        let rest: u64 = (0..steps % cycle).map(|step| self.blocks_in_step(step)).sum();
        steps / cycle * u64::from(self.count) + rest
    }

    /// Gives everybody `steps` tokens. Nobody may have its last one before the last of them.
    pub(super) fn take(&mut self, steps: u64) {
        self.steps += steps;
        self.tokens += steps * u64::from(self.count);
    }

    /// One that has its last token now.
    pub(super) fn ended(&mut self) -> Option<Sequence> {
        if self.steps_to_end() != Some(0) {
            return None;
        }
        let Reverse((_, _, slot)) = self.ends.pop()?;
        self.remove(slot)
    }

    /// Takes out the one that was admitted last.
    pub(super) fn put_back(&mut self) -> Option<Sequence> {
        while let Some((admitted, slot)) = self.order.pop() {
            if self.is_there(admitted, slot) {
                return self.remove(slot);
            }
        }
        None
    }

    fn remove(&mut self, slot: u32) -> Option<Sequence> {
        let sequence = self.sequences[slot as usize].take()?;
        self.vacant.push(slot);
        self.count -= 1;
        self.tokens -= u64::from(self.tokens_of(&sequence));
        let phase = self.phase(&sequence);
        self.phases[phase] -= 1;
        // Those who have ended are left in the order until there are more of them than of others.
        if self.order.len() > 64 + 2 * self.count as usize {
            let sequences = &self.sequences;
            self.order.retain(|(admitted, slot)| is_there(sequences, *admitted, *slot));
        }
        Some(sequence)
    }

    fn is_there(&self, admitted: u64, slot: u32) -> bool {
        is_there(&self.sequences, admitted, slot)
    }

    fn phase(&self, sequence: &Sequence) -> usize {
        let cycle = self.phases.len() as u64;
        let ahead = cycle - sequence.joined % cycle;
        usize::try_from((u64::from(sequence.tokens_joined) + ahead) % cycle).unwrap_or(0)
    }

    /// Blocks that begin in the step after `step` further ones.
    fn blocks_in_step(&self, step: u64) -> u64 {
        let cycle = self.phases.len() as u64;
        let phase = (cycle - (self.steps + step) % cycle) % cycle;
        self.phases.get(usize::try_from(phase).unwrap_or(0)).map_or(0, |count| u64::from(*count))
    }
}

fn is_there(sequences: &[Option<Sequence>], admitted: u64, slot: u32) -> bool {
    sequences[slot as usize].is_some_and(|sequence| sequence.admitted == admitted)
}
