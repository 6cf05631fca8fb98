//! Nodes as the registry shows them.

use crate::plan::{Card, Doing, NodeSeen};
use otela_proto::{
    PeerId,
    assignment::AssignedState,
    lifecycle::Lifecycle,
    payload::{Payload, Role},
    registry::{Belief, Node, View},
};
use std::collections::BTreeMap;

/// By this label a node says in which Slurm job it runs.
const JOB_LABEL: &str = "slurm_job_id";

/// The nodes of a mesh that are there. `scheduler` is whose orders are to be given: what takes none of them offers nothing;
/// without it whoever takes anybody's counts.
pub fn nodes(view: &View, scheduler: Option<&PeerId>) -> Vec<NodeSeen> {
    let present = view.nodes().filter(|(_, node)| node.is_listed() && node.entry.payload().has_role(Role::Node));
    present.map(|(_, node)| seen(node, scheduler)).collect()
}

/// The node that a Slurm job has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobNode {
    /// Whether it is there, and not gone again.
    pub is_present: bool,
    /// Whether its accelerators are known.
    pub has_cards: bool,
}

/// By the numbers of Slurm jobs, the nodes that they have brought: those that the registry still remembers as gone too.
pub fn job_nodes(view: &View) -> BTreeMap<u64, JobNode> {
    let mut all: BTreeMap<u64, JobNode> = BTreeMap::new();
    for (_, node) in view.nodes() {
        let payload = node.entry.payload();
        let Some(job) = payload.labels.get(JOB_LABEL).and_then(|job| job.trim().parse().ok()) else { continue };
        let has_cards = payload.hardware.as_ref().is_some_and(|hardware| !hardware.accelerators.is_empty());
        let of = all.entry(job).or_insert(JobNode { is_present: false, has_cards: false });
        of.is_present |= node.is_listed();
        of.has_cards |= node.is_listed() && has_cards;
    }
    all
}

fn seen(node: &Node, scheduler: Option<&PeerId>) -> NodeSeen {
    let payload = node.entry.payload();
    let hardware = payload.hardware.as_ref();
    let most = hardware.and_then(|hardware| hardware.accelerators.iter().max_by_key(|kind| kind.count));
    let trusts = |keys: &[Vec<u8>]| scheduler.is_none_or(|key| keys.contains(&key.to_bytes()));
    let offer = payload.offer.as_ref().filter(|offer| trusts(&offer.schedulers));
    NodeSeen {
        session: node.entry.session(),
        host: hardware.map(|hardware| hardware.hostname.clone()).unwrap_or_default(),
        cards: most.map(|kind| Card { kind: kind.kind.clone(), name: kind.name.clone(), count: kind.count }),
        templates: offer.map(|offer| offer.templates.clone()).unwrap_or_default(),
        doing: doing(node, payload),
        told: payload.assigned.as_ref().map(|told| (told.generation, told.plan)),
        ends_at_ms: payload.ends_at_ms,
    }
}

fn doing(node: &Node, payload: &Payload) -> Doing {
    let stays = node.belief == Belief::Alive && !payload.draining && node.entry.rank().lifecycle != Lifecycle::Down;
    match &payload.assigned {
        _ if !stays => Doing::Leaving,
        Some(told) if told.stage() == AssignedState::Stopping => Doing::Leaving,
        Some(told) => Doing::Told { model: told.model.clone(), state: told.stage() },
        None if payload.services.is_empty() => Doing::Nothing,
        None => Doing::Own(payload.models().map(|(_, model)| model.id.clone()).collect()),
    }
}
