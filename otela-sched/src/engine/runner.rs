//! Runs the [`Batch`] on tokio's clock and hands tokens to the requests that wait for them.
//!
//! One mutex holds the whole state and is never held over an await. A request holds a [`Ticket`]; dropping it takes
//! the sequence out of the batch at once, wherever it is. What travels to the request is a count of tokens, not
//! text: however slowly a client reads, nothing piles up, and the batch is not held back, as in vLLM.

use super::{
    batch::{Batch, Event, Load, Refused, SeqId, What},
    metrics::Meters,
    prose::Finish,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// One sequence to compute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    /// How the answer will end; `None` for an embedding, which has no answer.
    pub(crate) finish: Option<Finish>,
}

#[derive(Debug)]
struct Seat {
    job: Job,
    tokens: watch::Sender<u32>,
    arrived: Duration,
    /// When the last token came.
    last: Option<Duration>,
    admitted: bool,
}

#[derive(Debug)]
struct State {
    batch: Batch,
    seats: HashMap<SeqId, Seat>,
}

/// The running scheduler.
#[derive(Debug)]
pub(crate) struct Runner {
    state: Mutex<State>,
    /// Something was submitted or removed: the next event may be another one.
    changed: Notify,
    started: Instant,
    meters: Arc<Meters>,
}

impl Runner {
    pub(crate) fn new(batch: Batch, meters: Arc<Meters>) -> Self {
        let state = State { batch, seats: HashMap::new() };
        Self { state: Mutex::new(state), changed: Notify::new(), started: Instant::now(), meters }
    }

    /// Keeps time until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let due = {
                let mut state = self.lock();
                self.catch_up(&mut state);
                state.batch.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    () = tokio::time::sleep_until(self.started + due) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    /// Queues a sequence.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<Ticket, Refused> {
        let (sender, tokens) = watch::channel(0);
        let mut state = self.lock();
        let now = self.catch_up(&mut state);
        let id = state.batch.submit(now, job.prompt, job.output)?;
        state.seats.insert(id, Seat { job, tokens: sender, arrived: now, last: None, admitted: false });
        self.catch_up(&mut state);
        drop(state);
        self.changed.notify_one();
        Ok(Ticket { runner: Arc::clone(self), id, tokens, seen: 0, output: job.output.max(1) })
    }

    pub(crate) fn load(&self) -> Load {
        let mut state = self.lock();
        self.catch_up(&mut state);
        state.batch.load()
    }

    fn leave(&self, id: SeqId) {
        let mut state = self.lock();
        let now = self.catch_up(&mut state);
        state.seats.remove(&id);
        if state.batch.remove(now, id) {
            self.meters.sequence_aborted();
            self.catch_up(&mut state);
            drop(state);
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the batch's time come up to now, and tells everyone concerned.
    fn catch_up(&self, state: &mut State) -> Duration {
        let now = self.started.elapsed();
        for event in state.batch.advance(now) {
            if let Some(seat) = state.seats.get_mut(&event.id) {
                self.tell(seat, event);
                if event.what == What::Finished {
                    state.seats.remove(&event.id);
                }
            }
        }
        now
    }

    fn tell(&self, seat: &mut Seat, event: Event) {
        let since = |then: Duration| event.at.saturating_sub(then);
        let generates = seat.job.finish.is_some();
        match event.what {
            What::Admitted if !seat.admitted => {
                seat.admitted = true;
                self.meters.queued(since(seat.arrived));
            }
            What::Admitted => {}
            What::Preempted => {
                self.meters.preemptions.inc();
            }
            What::Token(count) => {
                match seat.last.replace(event.at) {
                    None => {
                        self.meters.prompt_tokens.inc_by(u64::from(seat.job.prompt));
                        if generates {
                            self.meters.first_token(since(seat.arrived));
                        }
                    }
                    Some(last) => self.meters.next_token(since(last)),
                }
                if generates {
                    self.meters.generation_tokens.inc();
                }
                // The ticket may be on its way out; `leave` follows.
                let _ = seat.tokens.send(count);
            }
            What::Finished => {
                let output = if generates { seat.job.output } else { 0 };
                let finish = seat.job.finish.unwrap_or(Finish::Stop);
                self.meters.finished(finish, since(seat.arrived), seat.job.prompt, output);
            }
        }
    }
}

/// A request's place in the batch. Dropping it gives slot and blocks back.
#[derive(Debug)]
pub(crate) struct Ticket {
    runner: Arc<Runner>,
    id: SeqId,
    tokens: watch::Receiver<u32>,
    seen: u32,
    output: u32,
}

impl Ticket {
    /// Waits for the next token and gives its number; `None` when all have come. Always one at a time, although vLLM
    /// puts several into one event for a reader that is late: so the events of an answer are always the same.
    pub(crate) async fn next(&mut self) -> Option<u32> {
        if self.seen >= self.output {
            return None;
        }
        let token = self.seen;
        // The sender goes when the last token has been sent, and the count stays readable.
        self.tokens.wait_for(|&count| count > token).await.ok()?;
        self.seen += 1;
        Some(token)
    }

    /// Waits for all tokens.
    pub(crate) async fn all(mut self) {
        while self.next().await.is_some() {}
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.seen < self.output {
            self.runner.leave(self.id);
        }
    }
}
