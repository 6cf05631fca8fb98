//! From a model's name to the replicas that may be picked.

use otela_node::peer::Peer;
use otela_proto::{id::Session, registry::Replica};
use std::sync::Arc;

/// Why there is no candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoCandidate {
    /// Nobody has ever announced the model: asking again is pointless.
    Unknown,
    /// This ingress has not heard of its mesh yet: asking again may help.
    Joining,
    /// It is known, but nobody is ready to serve it now: asking again may help.
    NotReady,
}

/// The replicas that are ready to serve `model` and were not `tried`, ordered by session. Case counts.
pub(crate) fn of(peer: &Peer, model: &str, tried: &[Session]) -> Result<Vec<Arc<Replica>>, NoCandidate> {
    let view = peer.view();
    let (_, state) = view.model(model).ok_or_else(|| unknown(peer))?;
    let untried: Vec<_> = state.ready.iter().filter(|r| !tried.contains(&r.session())).cloned().collect();
    if untried.is_empty() { Err(NoCandidate::NotReady) } else { Ok(untried) }
}

/// What it means that the registry knows no model of a name.
pub(crate) fn unknown(peer: &Peer) -> NoCandidate {
    if peer.has_joined() { NoCandidate::Unknown } else { NoCandidate::Joining }
}
