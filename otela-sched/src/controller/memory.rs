//! What a scheduler remembers between two looks: what it has just said, and where something has failed.

use crate::plan::{Avoided, Doing, NodeSeen};
use otela_proto::{assignment::AssignedState, id::Session};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// A node that has taken an order shows it in its entry sooner.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);
/// A node that has refused an order, for other reasons than age, is left alone for this long at least.
const REFUSED_FOR: Duration = Duration::from_mins(1);

/// What was said, and what went wrong.
#[derive(Debug, Default)]
pub(super) struct Memory {
    said: HashMap<Session, Said>,
    /// Where a model has failed: in which plan, and until when it is not tried there again.
    failed: HashMap<(Session, String), ((u64, u64), Instant)>,
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

    /// A node has refused to serve a model.
    pub(super) fn refused(&mut self, by: Session, ticket: (u64, u64), model: String, retry_after: Duration) {
        self.failed.insert((by, model), (ticket, Instant::now() + retry_after.max(REFUSED_FOR)));
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

    /// Where models are not to be placed now. A failure counts from when it was first seen.
    pub(super) fn avoided(&mut self, nodes: &[NodeSeen], retry_after: Duration) -> Avoided {
        for node in nodes {
            let Doing::Told { model, state: AssignedState::Failed } = &node.doing else { continue };
            let (key, plan) = ((node.session, model.clone()), node.told.unwrap_or_default());
            if self.failed.get(&key).is_none_or(|(before, _)| *before < plan) {
                self.failed.insert(key, (plan, Instant::now() + retry_after));
            }
        }
        self.failed.retain(|(session, _), _| nodes.iter().any(|node| node.session == *session));
        let now = Instant::now();
        self.failed.iter().filter(|(_, (_, until))| *until > now).map(|(key, _)| key.clone()).collect()
    }
}
