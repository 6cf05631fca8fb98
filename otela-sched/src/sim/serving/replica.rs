//! One replica: an engine that batches continuously, in virtual time.

use super::{
    Arrival, Batching, Limits, Served,
    prefix::{Prefixes, Text},
    queue::Waiting,
    running::{Running, Sequence},
    work::Work,
};
use crate::sim::{Step, StepCosts};
use std::collections::VecDeque;

/// A prompt of which a part is done.
#[derive(Debug, Clone, Copy)]
struct Partial {
    waiting: Waiting,
    done: u32,
    admitted: u64,
}

/// How busy a replica is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Sequences that it works on.
    pub running: u32,
    /// Requests that wait in it.
    pub waiting: u32,
    /// Of its room for keys and values, what is taken.
    pub kv_ratio: f64,
}

/// An engine.
#[derive(Debug)]
pub struct Replica {
    costs: StepCosts,
    limits: Limits,
    /// When its next step may begin.
    now: f64,
    waiting: VecDeque<Waiting>,
    partial: Option<Partial>,
    running: Running,
    /// Blocks that sequences have.
    used: u64,
    prefixes: Prefixes,
    admitted: u64,
    work: Work,
    /// Each step is taken by itself, as a check of what is taken together.
    #[cfg(test)]
    pub(super) one_by_one: bool,
}

/// A request is longer than all the room of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request of {tokens} tokens does not fit into the replica's {room} tokens of keys and values")]
pub struct TooLong {
    /// Tokens of prompt and answer.
    pub tokens: u32,
    /// Tokens that fit.
    pub room: u64,
}

impl Replica {
    /// An idle one, from the second `now` on.
    pub fn new(costs: StepCosts, limits: Limits, now: f64) -> Self {
        Self {
            costs,
            limits,
            now,
            waiting: VecDeque::new(),
            partial: None,
            running: Running::new(limits.block_tokens),
            used: 0,
            prefixes: Prefixes::default(),
            admitted: 0,
            work: Work::new(f64::INFINITY),
            #[cfg(test)]
            one_by_one: false,
        }
    }

    /// How busy it is.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.count() + u32::from(self.partial.is_some()),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            #[expect(clippy::cast_precision_loss, reason = "a ratio")]
            kv_ratio: self.used as f64 / self.limits.blocks as f64,
        }
    }

    /// Seconds in which it has worked so far.
    pub fn busy_seconds(&self) -> f64 {
        self.work.busy_seconds()
    }

    /// The same in parts of so many seconds, which is to be told before it works.
    pub(super) fn in_parts(self, seconds: f64) -> Self {
        Self { work: Work::new(seconds), ..self }
    }

    /// Sequences times seconds in each part, to the last in which it worked.
    pub(super) fn work_parts(&self) -> Vec<f64> {
        self.work.parts()
    }

    /// Gives it a request, which is the `request`-th. It must have been advanced to that time.
    ///
    /// # Errors
    /// [`TooLong`]; engines refuse these at once.
    pub fn take(&mut self, request: usize, arrival: &Arrival) -> Result<(), TooLong> {
        self.put(arrival.at, Waiting::new(request, arrival))
    }

    pub(super) fn put(&mut self, at: f64, waiting: Waiting) -> Result<(), TooLong> {
        let tokens = waiting.tokens.saturating_add(waiting.missing);
        if self.limits.blocks_for(tokens) > self.limits.blocks {
            return Err(TooLong { tokens, room: self.limits.blocks * u64::from(self.limits.block_tokens) });
        }
        if self.is_idle() {
            self.now = self.now.max(at);
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.partial.is_none() && self.running.count() == 0
    }

    /// Takes all steps that begin before `until`, and adds to `served` who has its answer.
    pub fn advance(&mut self, until: f64, served: &mut Vec<Served>) {
        while self.now < until && !self.is_idle() {
            let began = self.now;
            // Who has just been put back waits for others to end.
            let is_short = self.make_room();
            let prompts = match self.limits.batching {
                _ if is_short => Vec::new(),
                Batching::WholePrompts => self.whole_prompts(),
                Batching::Chunked => self.chunks(),
            };
            let sequences = self.running.count() + u32::try_from(prompts.len()).unwrap_or(0);
            if prompts.is_empty() {
                self.decode(until, served);
            } else {
                self.prefill(&prompts, served);
            }
            self.work.add(began, self.now, sequences);
        }
    }

    /// Puts back who was admitted last, until everybody else can have one more token. Whether somebody was.
    fn make_room(&mut self) -> bool {
        let mut is_short = false;
        while self.running.steps_in(self.free()) == 0 {
            is_short = true;
            let (waiting, request, done) = if let Some(partial) = self.partial.take() {
                self.used -= self.limits.blocks_for(partial.done);
                let restarts = partial.waiting.restarts + 1;
                (Waiting { restarts, ..partial.waiting }, partial.waiting.request, partial.done)
            } else if let Some(sequence) = self.running.put_back() {
                let done = self.running.tokens_of(&sequence);
                (self.again(&sequence), sequence.waiting.request, done)
            } else {
                break;
            };
            self.keep(Text::Own(request), done);
            self.waiting.push_front(waiting);
        }
        is_short
    }

    /// Frees the blocks of a sequence that has been taken out; what is left of it to do.
    fn again(&mut self, sequence: &Sequence) -> Waiting {
        self.used -= self.limits.blocks_for(self.running.tokens_of(sequence));
        let first = sequence.waiting.first.unwrap_or(sequence.first);
        // The token of the prompt's own step is among those that it has.
        let own = u32::from(!sequence.waiting.is_computed);
        sequence.waiting.again(first, own + self.running.steps_since(sequence))
    }

    fn free(&self) -> u64 {
        self.limits.blocks - self.used
    }

    /// Tokens of a prompt that are there already, all but its last at the most.
    fn found(&self, waiting: &Waiting) -> u32 {
        if waiting.is_computed {
            return waiting.tokens;
        }
        let blocks_in = |tokens: u32| u64::from((waiting.tokens - 1).min(tokens) / self.limits.block_tokens);
        let shared = waiting
            .prefix
            .map_or(0, |prefix| self.prefixes.find(Text::Shared(prefix.id)).min(blocks_in(prefix.tokens)));
        let own = match waiting.restarts {
            0 => 0,
            _ => self.prefixes.find(Text::Own(waiting.request)).min(blocks_in(waiting.tokens)),
        };
        u32::try_from(shared.max(own)).unwrap_or(0) * self.limits.block_tokens
    }

    /// Takes `tokens` of the first who waits as admitted, `done` of them without computing, if there is room.
    fn admit(&mut self, done: u32, tokens: u32) -> Option<Partial> {
        let blocks = self.limits.blocks_for(done + tokens);
        // One more for each that decodes, or else it would be put back at once.
        if blocks > self.free() || self.running.count() + 1 > self.limits.sequences_max {
            return None;
        }
        let waiting = self.waiting.pop_front()?;
        self.used += blocks;
        if waiting.restarts > 0 {
            self.prefixes.forget(Text::Own(waiting.request));
        }
        self.prefixes.shrink(self.free());
        self.admitted += 1;
        Some(Partial { waiting, done, admitted: self.admitted })
    }

    /// Whole prompts for a step of their own, as many as are waiting and fit.
    fn whole_prompts(&mut self) -> Vec<(Partial, u32)> {
        let mut prompts: Vec<(Partial, u32)> = Vec::new();
        let mut tokens = 0;
        while let Some(first) = self.waiting.front() {
            let (found, all) = (self.found(first), first.tokens);
            let fits = prompts.is_empty() || tokens + (all - found) <= self.limits.step_tokens_max;
            let seats = self.limits.sequences_max.saturating_sub(self.running.count());
            if !fits || prompts.len() >= seats as usize {
                break;
            }
            let Some(admitted) = self.admit(found, all - found) else { break };
            if admitted.waiting.is_computed {
                self.join(&admitted);
                continue;
            }
            tokens += all - found;
            prompts.push((admitted, all - found));
        }
        prompts
    }

    /// Parts of prompts for a step that those who decode have a part in as well.
    fn chunks(&mut self) -> Vec<(Partial, u32)> {
        let mut budget = self.limits.step_tokens_max.saturating_sub(self.running.count());
        let mut chunks = Vec::new();
        if let Some(partial) = self.partial {
            let more = (partial.waiting.tokens - partial.done).min(budget);
            let blocks = self.limits.blocks_for(partial.done + more) - self.limits.blocks_for(partial.done);
            if more == 0 || blocks + self.running.blocks_in(1) > self.free() {
                return chunks;
            }
            self.used += blocks;
            self.partial = None;
            budget -= more;
            chunks.push((partial, more));
        }
        while budget > 0
            && let Some(first) = self.waiting.front()
        {
            let (found, all) = (self.found(first), first.tokens);
            let more = (all - found).min(budget);
            let seats = self.limits.sequences_max.saturating_sub(self.running.count());
            // Room for the tokens of those who decode comes first; and there must be room for all of it, or else it would be
            // put back before it is done.
            let own = u64::from(first.is_computed);
            let needed = self.limits.blocks_for(all) + own + self.running.blocks_in(1);
            if needed > self.free() || chunks.len() >= seats as usize {
                break;
            }
            let Some(admitted) = self.admit(found, more) else { break };
            if admitted.waiting.is_computed {
                self.join(&admitted);
                continue;
            }
            budget -= more;
            chunks.push((admitted, more));
        }
        chunks
    }

    /// One whose keys and values have come from elsewhere.
    fn join(&mut self, admitted: &Partial) {
        let Waiting { tokens, missing, arrived, first, .. } = admitted.waiting;
        self.running.join(admitted.waiting, first.unwrap_or(arrived), tokens, missing, admitted.admitted);
    }

    /// A step with prompts, or parts of them; where they are parts, everybody else gets a token too.
    fn prefill(&mut self, prompts: &[(Partial, u32)], served: &mut Vec<Served>) {
        let mut step = Step::default();
        if self.limits.batching == Batching::Chunked {
            self.used += self.running.blocks_in(1);
            self.prefixes.shrink(self.free());
            step = step.decode(f64::from(self.running.count()), exact(self.running.keys()));
            self.running.take(1);
        }
        for (prompt, tokens) in prompts {
            step = step.prefill(f64::from(*tokens), f64::from(prompt.done));
        }
        self.now += self.costs.step_seconds(&step);
        self.end(served);
        for (prompt, tokens) in prompts {
            let partial = Partial { done: prompt.done + tokens, ..*prompt };
            if partial.done < partial.waiting.tokens {
                self.partial = Some(partial);
            } else {
                self.first_token(&partial, served);
            }
        }
    }

    /// Keeps the whole blocks of what has been computed and is let go of.
    fn keep(&mut self, text: Text, tokens: u32) {
        if self.limits.keeps_prefixes {
            self.prefixes.keep(text, u64::from(tokens / self.limits.block_tokens));
            self.prefixes.shrink(self.free());
        }
    }

    /// A prompt is done, and with it there is one token more of the answer.
    fn first_token(&mut self, done: &Partial, served: &mut Vec<Served>) {
        let waiting = done.waiting;
        if let Some(prefix) = waiting.prefix {
            self.keep(Text::Shared(prefix.id), prefix.tokens.min(waiting.tokens));
        }
        let first = waiting.first.unwrap_or(self.now);
        if waiting.missing <= 1 {
            self.used -= self.limits.blocks_for(waiting.tokens);
            served.push(waiting.served(first, self.now));
        } else {
            self.running.join(waiting, first, waiting.tokens, waiting.missing - 1, done.admitted);
        }
    }

    /// As many steps in a row as are alike: until somebody has its last token, the room is used up, or `until`.
    fn decode(&mut self, until: f64, served: &mut Vec<Served>) {
        let Some(to_end) = self.running.steps_to_end() else { return };
        let most = to_end.min(self.running.steps_in(self.free()));
        #[cfg(test)]
        let most = if self.one_by_one { most.min(1) } else { most };
        let (steps, seconds) = self.steps_before(until - self.now, most);
        self.used += self.running.blocks_in(steps);
        self.prefixes.shrink(self.free());
        self.running.take(steps);
        self.now += seconds;
        self.end(served);
    }

    /// How many of the next `most` steps begin within `seconds`, and how long they take together.
    fn steps_before(&self, seconds: f64, most: u64) -> (u64, f64) {
        let batch = f64::from(self.running.count());
        let context = exact(self.running.keys()) / batch;
        let taking = |steps: u64| self.costs.decode_seconds(batch, context, exact(steps));
        let all = taking(most);
        // The last begins within the time if those before it do not fill it.
        if most <= 1 || taking(most - 1) < seconds {
            return (most, all);
        }
        // The smallest number that fills it. Steps grow longer, so a straight line from 0 finds no more than that.
        let (mut low, mut high) = (0, most - 1);
        while high - low > 1 {
            let (at_low, at_high) = (taking(low), taking(high));
            let along = (seconds - at_low) / (at_high - at_low) * exact(high - low);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between low and high")]
            let guess = (low + along as u64).clamp(low + 1, high - 1);
            if taking(guess) < seconds {
                low = guess;
            } else {
                high = guess;
            }
            // The line comes from below: the next is likely to be enough.
            if high - low > 1 && low == guess {
                if taking(guess + 1) < seconds { low = guess + 1 } else { high = guess + 1 }
            }
        }
        (high, taking(high))
    }

    /// Lets go of those that have their last token.
    fn end(&mut self, served: &mut Vec<Served>) {
        while let Some(sequence) = self.running.ended() {
            self.used -= self.limits.blocks_for(self.running.tokens_of(&sequence));
            served.push(sequence.waiting.served(sequence.first, self.now));
        }
    }

    /// Takes out everything that it has not finished, as far as it has come.
    pub(super) fn lose(&mut self) -> Vec<Waiting> {
        let mut lost: Vec<_> = self.waiting.drain(..).map(Waiting::uncomputed).collect();
        lost.extend(self.partial.take().map(|partial| partial.waiting));
        while let Some(sequence) = self.running.put_back() {
            lost.push(self.again(&sequence));
        }
        self.used = 0;
        lost.sort_by(|one, other| one.arrived.total_cmp(&other.arrived));
        lost
    }
}

/// Counts here are far below what a float can count.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn exact(count: u64) -> f64 {
    count as f64
}
