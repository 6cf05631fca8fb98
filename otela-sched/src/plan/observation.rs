//! What was seen of a mesh.

use otela_proto::{
    assignment::{AssignedState, OfferedTemplate},
    id::Session,
};
use std::collections::BTreeMap;

/// A mesh at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// Nodes that are there, in the order of their ids.
    pub nodes: Vec<NodeSeen>,
    /// What ingresses have measured, by model.
    pub loads: BTreeMap<String, Measured>,
    /// When this was, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Jobs in Slurm's queue, by the kinds of the policy; none, if nobody knows.
    pub queue: Option<BTreeMap<String, KindSeen>>,
}

/// The jobs of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindSeen {
    /// All of them, in whatever state.
    pub queued: u32,
    /// Those whose node is still to join.
    pub coming: u32,
    /// Why no further one is to be submitted now, if so.
    pub paused: Option<String>,
}

/// A node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSeen {
    /// Which run of it.
    pub session: Session,
    /// The name of its machine.
    pub host: String,
    /// Its accelerators of the kind that it has most of; none, if it has none.
    pub cards: Option<Card>,
    /// What it can be told to start; nothing, if it takes no orders of this scheduler.
    pub templates: Vec<OfferedTemplate>,
    /// What it does.
    pub doing: Doing,
    /// Generation and plan of the last order that it shows.
    pub told: Option<(u64, u64)>,
    /// When its allocation ends, in milliseconds since the Unix epoch.
    pub ends_at_ms: Option<u64>,
}

/// Equal accelerators, in the node's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Their kind, such as `A100-80GB`.
    pub kind: String,
    /// Their name, as the driver tells it.
    pub name: String,
    /// How many.
    pub count: u32,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    /// Nothing.
    Nothing,
    /// What a scheduler has told it, or is just telling it.
    Told {
        /// The model.
        model: String,
        /// How far it is.
        state: AssignedState,
    },
    /// It serves or loads what its provider has started.
    Own(Vec<String>),
    /// It takes nothing new: it drains, or is suspected of being gone.
    Leaving,
}

/// The load of one model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Requests a second.
    pub rate: f64,
    /// Tokens of a prompt, and of an answer, on average; none, if too few were counted.
    pub tokens: Option<(f64, f64)>,
}
