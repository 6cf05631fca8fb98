//! Each replica in turn. The order is that of the sessions and the place is remembered as a session, so that nodes that
//! come and go do not make others miss their turn.

use super::{Balancer, Hints};
use crate::candidate::Candidate;
use otela_proto::id::Session;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Models whose place is remembered. Names come from the registry, so there are only ever so many; should there be
/// more, all begin anew.
const MODELS_MAX: usize = 4_096;

/// For each model, who was last.
#[derive(Debug, Default)]
pub(super) struct RoundRobin(Mutex<HashMap<String, Session>>);

impl Balancer for RoundRobin {
    fn pick(&self, candidates: &[Arc<Candidate>], request: Hints<'_>) -> usize {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = match last.get(request.model) {
            None => 0,
            Some(last) => candidates.partition_point(|candidate| candidate.session() <= *last) % candidates.len(),
        };
        let session = candidates[index].session();
        match last.get_mut(request.model) {
            Some(last) => *last = session,
            None => {
                if last.len() >= MODELS_MAX {
                    last.clear();
                }
                last.insert(request.model.to_owned(), session);
            }
        }
        index
    }
}
