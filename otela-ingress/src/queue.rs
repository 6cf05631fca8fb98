//! Requests that wait for a place because all candidates are full: one queue for each model, fair between callers.
//!
//! Start-time fair queueing: each caller's requests follow each other at equal distances in virtual time, so a caller
//! with a thousand waiting requests is not ahead of one with a single one. Whoever is first in its queue is called when
//! anything changes that may let it in.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::Notify;

/// Whose request it is, for fairness only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Caller(pub(crate) u64);

/// All queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// Requests that wait, in whatever queue: read before the lock is taken.
    waiting: AtomicUsize,
    queues: Mutex<HashMap<String, Queue>>,
}

/// A request's turn: by virtual time, then by order of arrival.
type Turn = (u64, u64);

#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Turn, (Caller, Arc<Notify>)>,
    /// The turn up to which requests have left.
    now: u64,
    /// When the next request of a caller has its turn at the earliest.
    next: HashMap<Caller, u64>,
    arrivals: u64,
}

/// The queue is as long as it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueFull;

impl Queues {
    /// Whether nobody waits for `model`.
    pub(crate) fn is_empty(&self, model: &str) -> bool {
        self.waiting.load(Ordering::Acquire) == 0 || self.lock().get(model).is_none_or(|queue| queue.waiting.is_empty())
    }

    /// How many requests wait for `model`.
    pub(crate) fn depth(&self, model: &str) -> usize {
        self.lock().get(model).map_or(0, |queue| queue.waiting.len())
    }

    /// All requests that wait.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits for `model` from now on, if no more than `most` do already.
    pub(crate) fn join(self: &Arc<Self>, model: &str, caller: Caller, most: usize) -> Result<Ticket, QueueFull> {
        let mut queues = self.lock();
        let queue = queues.entry(model.to_owned()).or_default();
        if queue.waiting.len() >= most {
            return Err(QueueFull);
        }
        let start = queue.next.get(&caller).copied().unwrap_or_default().max(queue.now);
        queue.next.insert(caller, start + 1);
        queue.arrivals += 1;
        let (turn, called) = ((start, queue.arrivals), Arc::new(Notify::new()));
        queue.waiting.insert(turn, (caller, Arc::clone(&called)));
        self.waiting.fetch_add(1, Ordering::Release);
        Ok(Ticket { queues: Arc::clone(self), model: model.to_owned(), turn, called })
    }

    /// Something has changed that may let somebody in: whoever is first looks again.
    pub(crate) fn look_again(&self) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.lock().values().for_each(Queue::call_first);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn call_first(&self) {
        if let Some((_, (_, called))) = self.waiting.first_key_value() {
            called.notify_one();
        }
    }
}

/// A place in a queue; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    queues: Arc<Queues>,
    model: String,
    turn: Turn,
    called: Arc<Notify>,
}

impl Ticket {
    /// Whether nobody is before it.
    pub(crate) fn is_first(&self) -> bool {
        let queues = self.queues.lock();
        let first = queues.get(&self.model).and_then(|queue| queue.waiting.first_key_value());
        first.is_some_and(|(turn, _)| *turn == self.turn)
    }

    /// Resolves when it is first and should look again.
    pub(crate) async fn called(&self) {
        self.called.notified().await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&self.model) else { return };
        queue.waiting.remove(&self.turn);
        queue.now = queue.now.max(self.turn.0);
        self.queues.waiting.fetch_sub(1, Ordering::Release);
        if queue.waiting.is_empty() {
            queues.remove(&self.model);
            return;
        }
        let now = queue.now;
        if queue.next.len() > 2 * queue.waiting.len() + 64 {
            // Whoever has had its turn begins anew.
            queue.next.retain(|_, next| *next > now);
        }
        // There may be room for more than one.
        queue.call_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    /// Lets all in, one after the other, and says whose they were.
    fn order(tickets: Vec<(char, Ticket)>) -> String {
        let mut waiting = tickets;
        let mut order = String::new();
        while !waiting.is_empty() {
            let first = waiting.iter().position(|(_, ticket)| ticket.is_first()).expect("somebody is");
            order.push(waiting.remove(first).0);
        }
        order
    }

    #[test]
    fn callers_take_turns_whoever_has_more() {
        let queues = Arc::new(Queues::default());
        let join = |name: char| (name, queues.join("m", Caller(name as u64), 100).unwrap());
        let many: Vec<_> = "aaaaaabbc".chars().map(join).collect();
        assert_eq!(order(many), "abcabaaaa");
        assert!(queues.is_empty("m") && queues.waiting() == 0 && queues.lock().is_empty());
        // Who comes later is not behind all that the other has asked for, nor before what is first.
        let mut waiting: Vec<_> = "aaaa".chars().map(join).collect();
        drop(waiting.remove(0));
        waiting.extend("bb".chars().map(join));
        assert_eq!(order(waiting), "baba a".replace(' ', ""));
    }

    #[test]
    fn queues_are_bounded_and_models_apart() {
        let queues = Arc::new(Queues::default());
        let held = [queues.join("m", Caller(1), 2).unwrap(), queues.join("m", Caller(2), 2).unwrap()];
        assert_eq!(queues.join("m", Caller(3), 2).err(), Some(QueueFull));
        assert!(queues.join("other", Caller(3), 2).is_ok());
        assert_eq!((queues.depth("m"), queues.waiting()), (2, 2));
        drop(held);
        assert_eq!((queues.depth("m"), queues.waiting()), (0, 0));
    }

    #[tokio::test]
    async fn the_first_is_called_and_then_the_next() {
        let queues = Arc::new(Queues::default());
        let (first, second) = (queues.join("m", Caller(1), 9).unwrap(), queues.join("m", Caller(2), 9).unwrap());
        queues.look_again();
        first.called().await;
        tokio::task::yield_now().await;
        assert!(second.called().now_or_never().is_none(), "it is not its turn");
        drop(first);
        second.called().await;
        assert!(second.is_first());
    }
}
