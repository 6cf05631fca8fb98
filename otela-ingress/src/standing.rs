//! What this ingress knows of a session from its own requests: how much is in flight there, how fast it answers, and
//! whether it has failed. One [`Standing`] for each session, shared by all of its models and all policies.

mod health;
mod load;

pub(crate) use health::{Health, Strike};
pub(crate) use load::{InFlightCount, Load};

use otela_proto::{id::Session, registry::View};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::time::Instant;

/// A session's standing.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) load: Load,
    pub(crate) health: Health,
}

/// The standings of all sessions that are in the registry or have requests in flight.
#[derive(Debug)]
pub(crate) struct Standings {
    began: Instant,
    known: Mutex<HashMap<Session, Arc<Standing>>>,
}

impl Default for Standings {
    fn default() -> Self {
        Self { began: Instant::now(), known: Mutex::default() }
    }
}

impl Standings {
    /// The standing of `session`: a clean one, if it is new.
    pub(crate) fn of(&self, session: Session) -> Arc<Standing> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let clean = || Arc::new(Standing { load: Load::new(self.began), health: Health::new() });
        Arc::clone(known.entry(session).or_insert_with(clean))
    }

    /// Forgets the sessions that are not in `view`, unless somebody still holds their standing.
    pub(crate) fn keep(&self, view: &View) {
        let is_listed = |session: &Session| {
            view.node(&session.peer).is_some_and(|node| node.is_listed() && node.entry.session() == *session)
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|session, standing| Arc::strong_count(standing) > 1 || is_listed(session));
    }
}
