//! A plan as it is kept and shown.

use serde::{Deserialize, Serialize};

/// A plan. Once it has a number it never changes; to apply it twice does no more than once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its number, one more than that of the plan before.
    pub number: u64,
    /// The generation of the scheduler that has made it.
    pub generation: u64,
    /// That scheduler.
    pub scheduler: String,
    /// The mesh.
    pub mesh: String,
    /// When it was made, in milliseconds since the Unix epoch.
    pub made_at_ms: u64,
    /// What is known of each model, and what it gets.
    pub models: Vec<ModelPlan>,
    /// What is to be done.
    pub steps: Vec<Step>,
    /// Nodes that stay as they are though they serve nothing, and why.
    pub idle: Vec<IdleNode>,
    /// Jobs that are to be submitted.
    #[serde(default)]
    pub submit: Vec<Submit>,
}

impl Plan {
    /// How many jobs are to be submitted, of all kinds.
    pub fn jobs(&self) -> u32 {
        self.submit.iter().map(|submit| submit.count).sum()
    }
}

/// One model in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelPlan {
    /// The model.
    pub model: String,
    /// Requests a second that are reckoned with.
    pub rate: f64,
    /// Tokens of a prompt.
    pub prompt: f64,
    /// Tokens of an answer.
    pub answer: f64,
    /// Whether rate and lengths were measured, or are the operator's.
    pub is_measured: bool,
    /// Nodes that serve it, or will.
    pub nodes: u32,
    /// Those that are told to by this plan.
    pub nodes_added: u32,
    /// Requests a second that all of them can do at most, by the cost model.
    pub bears: f64,
    /// What it lacks, if it does; with what would help.
    pub lacks: Option<String>,
}

/// Something that one node is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The node's peer id.
    pub node: String,
    /// Which run of it.
    pub epoch: u64,
    /// Its machine.
    pub host: String,
    /// Its accelerators.
    pub accelerators: String,
    /// What it is to serve; nothing, if it is to be idle.
    pub serve: Option<Serve>,
    /// Why.
    pub why: String,
}

/// What a node is to serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serve {
    /// The model.
    pub model: String,
    /// The launch template.
    pub template: String,
    /// Accelerators that one copy of the model is spread over.
    pub tensor_parallel: u32,
    /// Copies of the model.
    pub data_parallel: u32,
}

/// A node that stays idle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdleNode {
    /// The node's peer id.
    pub node: String,
    /// Its machine.
    pub host: String,
    /// Its accelerators.
    pub accelerators: String,
    /// Why nothing is placed on it.
    pub why: String,
}

/// Slurm jobs of one kind that are to be submitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submit {
    /// The kind, by its name in the policy.
    pub kind: String,
    /// How many.
    pub count: u32,
    /// Why.
    pub why: String,
}
