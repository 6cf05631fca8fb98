//! Another way to nodes that could not be reached.

use crate::{
    candidate::{Candidate, NoCandidate},
    defaults::WAY_WITHIN,
};
use otela_proto::id::Session;
use std::sync::Arc;
use tokio::{sync::watch, time::Instant};

/// The nodes that one request did not reach, and until when it waits for another way to any of them.
///
/// A relay that stops takes away the way to all nodes behind it, and the registry learns only a moment later by which
/// relay they are reached now.
#[derive(Debug, Default)]
pub(crate) struct Unreached {
    of: Vec<Arc<Candidate>>,
    until: Option<Instant>,
}

/// Whether nodes that were not tried yet will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// They will.
    Too,
    /// As many as may have been tried.
    Not,
}

impl Unreached {
    /// `candidate` was not reached with what the registry said of it.
    pub(crate) fn note(&mut self, candidate: &Arc<Candidate>) {
        self.of.push(Arc::clone(candidate));
    }

    /// Waits until the registry says something new of somebody who was not reached, who is then taken off those `tried`; or,
    /// if they may be tried too, until there are `others`. `false` if there is nobody to wait for, or the time is over.
    pub(crate) async fn another_way<F>(
        &mut self,
        mut changes: watch::Receiver<u64>,
        tried: &mut Vec<Session>,
        others: Others,
        candidates: F,
    ) -> bool
    where
        F: Fn() -> Result<Arc<[Arc<Candidate>]>, NoCandidate>,
    {
        let until = *self.until.get_or_insert_with(|| Instant::now() + WAY_WITHIN);
        if Instant::now() >= until {
            return false;
        }
        loop {
            let Ok(all) = candidates() else { return false };
            let is_new = |now: &&Arc<Candidate>| self.of.iter().all(|then| !Arc::ptr_eq(then, now));
            let unreached = |now: &&Arc<Candidate>| self.of.iter().any(|then| then.session() == now.session());
            if let Some(changed) = all.iter().filter(unreached).find(is_new) {
                tried.retain(|session| *session != changed.session());
                self.of.retain(|then| then.session() != changed.session());
                return true;
            }
            if others == Others::Too && all.iter().any(|now| !tried.contains(&now.session())) {
                return true;
            }
            let is_awaited = all.iter().any(|now| unreached(&now));
            if !is_awaited || !matches!(tokio::time::timeout_at(until, changes.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::tests::candidate;
    use std::sync::Mutex;

    type Fleet = Mutex<Result<Arc<[Arc<Candidate>]>, NoCandidate>>;

    fn fleet<const N: usize>(of: [&Arc<Candidate>; N]) -> Result<Arc<[Arc<Candidate>]>, NoCandidate> {
        Ok(of.map(Arc::clone).into())
    }

    /// What comes of waiting while the registry, a second later, says `then`; and how long it took.
    async fn waiting(
        (unreached, others): (&mut Unreached, Others),
        tried: &mut Vec<Session>,
        now: &Fleet,
        then: Result<Arc<[Arc<Candidate>]>, NoCandidate>,
    ) -> (bool, u128) {
        let (generation, changes) = watch::channel(1);
        let began = Instant::now();
        let change = async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            *now.lock().unwrap() = then;
            generation.send_replace(2);
            std::future::pending::<()>().await;
        };
        let way = unreached.another_way(changes, tried, others, || now.lock().unwrap().clone());
        tokio::select! {
            found = way => (found, began.elapsed().as_millis()),
            () = change => unreachable!(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_registry_says_anew_of_an_unreached_node_is_tried() {
        let [a, b] = [1, 2].map(|n| Arc::new(candidate(n, |_| ())));
        let elsewhere = Arc::new(candidate(1, |_| ()));
        let mut tried = vec![a.session(), b.session()];
        let mut unreached = Unreached::default();
        unreached.note(&a);
        unreached.note(&b);
        let now = Mutex::new(fleet([&a, &b]));
        assert_eq!(
            waiting((&mut unreached, Others::Too), &mut tried, &now, fleet([&elsewhere, &b])).await,
            (true, 1_000)
        );
        assert_eq!(tried, [b.session()], "the other is still where it was");
        // In vain again: there are two seconds for all of it.
        tried.push(a.session());
        unreached.note(&elsewhere);
        assert_eq!(
            waiting((&mut unreached, Others::Too), &mut tried, &now, fleet([&elsewhere, &b])).await,
            (false, 1_000)
        );
        // It is over, whatever is said then.
        assert_eq!(waiting((&mut unreached, Others::Too), &mut tried, &now, fleet([&a, &b])).await, (false, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn once_as_many_as_may_were_tried_only_those_are_tried_again() {
        let [a, b, c] = [1, 2, 3].map(|n| Arc::new(candidate(n, |_| ())));
        let elsewhere = Arc::new(candidate(2, |_| ()));
        let mut tried = vec![a.session(), b.session()];
        let mut unreached = Unreached::default();
        unreached.note(&a);
        unreached.note(&b);
        let now = Mutex::new(fleet([&a, &b, &c]));
        let not = (&mut unreached, Others::Not);
        assert_eq!(waiting(not, &mut tried, &now, fleet([&a, &elsewhere, &c])).await, (true, 1_000));
        assert_eq!(tried, [a.session()]);
        assert_eq!(waiting((&mut unreached, Others::Too), &mut tried, &now, fleet([&a, &c])).await, (true, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_nodes_that_are_gone_or_that_were_reached() {
        let [a, b] = [1, 2].map(|n| Arc::new(candidate(n, |_| ())));
        let mut tried = vec![a.session(), b.session()];
        let mut unreached = Unreached::default();
        unreached.note(&a);
        let now = Mutex::new(fleet([&b]));
        assert_eq!(waiting((&mut unreached, Others::Too), &mut tried, &now, fleet([&b])).await, (false, 0));
        *now.lock().unwrap() = fleet([&a, &b]);
        assert_eq!(
            waiting((&mut unreached, Others::Too), &mut tried, &now, Err(NoCandidate::NotReady)).await,
            (false, 1_000)
        );
        // Somebody new has come meanwhile.
        let c = Arc::new(candidate(3, |_| ()));
        let mut unreached = Unreached::default();
        unreached.note(&a);
        *now.lock().unwrap() = fleet([&a, &b]);
        assert_eq!(waiting((&mut unreached, Others::Too), &mut tried, &now, fleet([&a, &b, &c])).await, (true, 1_000));
    }
}
