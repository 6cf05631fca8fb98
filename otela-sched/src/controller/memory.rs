//! What a scheduler remembers between two looks: what it has just said, and where something has failed.

use crate::plan::{Avoided, Doing, NodeSeen};
use otela_proto::{assignment::AssignedState, id::Session};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// A node that has taken an order shows it in its entry sooner.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// For so long a model is not placed where it has failed once; twice as long with each further time.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// What was said, and what went wrong.
#[derive(Debug, Default)]
pub(super) struct Memory {
    said: HashMap<Session, Said>,
    /// Where models have failed.
    failed: HashMap<(Session, String), Failed>,
}

/// A model that has failed somewhere.
#[derive(Debug)]
struct Failed {
    /// In which plan it did last.
    ticket: (u64, u64),
    times: u32,
    /// Until then it is not tried there again.
    until: Instant,
}

/// An order that was taken and is not shown yet.
#[derive(Debug)]
struct Said {
    model: Option<String>,
    ticket: (u64, u64),
    at: Instant,
}

impl Memory {
    /// A node has taken an order.
    pub(super) fn said(&mut self, to: Session, ticket: (u64, u64), model: Option<String>) {
        self.said.insert(to, Said { model, ticket, at: Instant::now() });
    }

    /// A node has refused to serve a model, or could not: for how long it is not to be told again, if that is news.
    pub(super) fn failed(
        &mut self,
        by: Session,
        ticket: (u64, u64),
        model: String,
        retry_after: Duration,
    ) -> Option<Duration> {
        let now = Instant::now();
        let failed = self.failed.entry((by, model)).or_insert(Failed { ticket: (0, 0), times: 0, until: now });
        if failed.ticket >= ticket {
            return None;
        }
        let avoided_for = AVOIDED_FOR.saturating_mul(1 << failed.times.min(16)).min(retry_after.max(AVOIDED_FOR));
        *failed = Failed { ticket, times: failed.times + 1, until: now + avoided_for };
        Some(avoided_for)
    }

    /// Puts into `nodes` what they have been told and do not show yet.
    pub(super) fn complete(&mut self, nodes: &mut [NodeSeen]) {
        self.said.retain(|session, said| {
            let Some(node) = nodes.iter_mut().find(|node| node.session == *session) else { return false };
            let is_shown = node.told.is_some_and(|told| told >= said.ticket);
            let is_idle = said.model.is_none() && node.told.is_none();
            if is_shown || is_idle || said.at.elapsed() > SHOWN_WITHIN {
                return false;
            }
            node.doing = match &said.model {
                Some(model) => Doing::Told { model: model.clone(), state: AssignedState::Starting },
                None => Doing::Leaving,
            };
            true
        });
    }

    /// Where models are not to be placed now: for longer each time that they fail, up to `retry_after`. A failure counts from
    /// when it was first seen.
    pub(super) fn avoided(&mut self, nodes: &[NodeSeen], retry_after: Duration) -> Avoided {
        for node in nodes {
            let Doing::Told { model, state: AssignedState::Failed } = &node.doing else { continue };
            let ticket = node.told.unwrap_or_default();
            if let Some(avoided_for) = self.failed(node.session, ticket, model.clone(), retry_after) {
                let (host, node) = (&node.host, node.session.peer);
                tracing::warn!(%node, host, model, "has failed there and is not tried there again for {avoided_for:?}");
            }
        }
        self.failed.retain(|(session, _), _| nodes.iter().any(|node| node.session == *session));
        let now = Instant::now();
        self.failed.iter().filter(|(_, failed)| failed.until > now).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_proto::{Keypair, id::Epoch};

    fn node(n: u8, doing: Doing, told: Option<(u64, u64)>) -> NodeSeen {
        let key = Keypair::ed25519_from_bytes([n; 32]).unwrap();
        let session = Session { peer: key.public().to_peer_id(), epoch: Epoch(1) };
        NodeSeen { session, host: String::new(), cards: None, templates: Vec::new(), doing, told, ends_at_ms: None }
    }

    fn failed(plan: u64) -> NodeSeen {
        node(1, Doing::Told { model: "m".into(), state: AssignedState::Failed }, Some((1, plan)))
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_just_said_counts_until_it_is_shown_or_long_not_shown() {
        let mut memory = Memory::default();
        let idle = node(1, Doing::Nothing, None);
        let starting = Doing::Told { model: "m".into(), state: AssignedState::Starting };
        memory.said(idle.session, (1, 5), Some("m".into()));
        let mut seen = [idle.clone()];
        memory.complete(&mut seen);
        assert_eq!(seen[0].doing, starting);
        // Its entry shows it, and later something else: that counts.
        let mut shown = [node(1, starting, Some((1, 5)))];
        memory.complete(&mut shown);
        let mut seen = [failed(5)];
        memory.complete(&mut seen);
        assert_eq!(seen[0], failed(5));
        memory.said(idle.session, (1, 6), Some("m".into()));
        tokio::time::advance(SHOWN_WITHIN + Duration::from_secs(1)).await;
        let mut seen = [idle.clone()];
        memory.complete(&mut seen);
        assert_eq!(seen[0], idle, "it has not kept its word");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_avoided_for_a_while_and_each_new_one_again() {
        let mut memory = Memory::default();
        let retry_after = Duration::from_secs(100);
        let key = (failed(1).session, "m".to_owned());
        for (plan, seconds) in [(1, 30), (2, 60), (3, 100), (4, 100)] {
            assert!(memory.avoided(&[failed(plan)], retry_after).contains(&key), "it was tried, and has failed");
            tokio::time::advance(Duration::from_secs(seconds - 1)).await;
            assert!(memory.avoided(&[failed(plan)], retry_after).contains(&key));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(memory.avoided(&[failed(plan)], retry_after).is_empty(), "it is over, though it is still shown");
        }
        assert!(memory.avoided(&[failed(5)], Duration::ZERO).contains(&key), "never at once");
        assert!(memory.avoided(&[], retry_after).is_empty());
        assert!(memory.failed.is_empty(), "who is gone is forgotten");
    }
}
