//! What is to be placed where.

use crate::catalog::{Accelerator, Model};
use serde::Deserialize;

/// What one model has to serve: so many requests at once, all alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Requests.
    pub requests: u64,
    /// Tokens of each prompt.
    pub prompt: f64,
    /// Tokens of each answer.
    pub answer: f64,
}

/// A model and its load.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    /// The model.
    pub model: &'a Model,
    /// What it has to serve.
    pub load: Load,
}

/// Accelerators of one type.
#[derive(Debug, Clone, Copy)]
pub struct Pool<'a> {
    /// The type.
    pub accelerator: &'a Accelerator,
    /// How many there are.
    pub count: u32,
    /// Over how many of them a replica may be at most, where it is known how many are together ([`super::blocks()`]); where
    /// it is not, the usual shape of nodes counts, if the options say so.
    pub block: Option<u32>,
}

/// What becomes of accelerators of which the least makespan has no need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spare {
    /// Nothing.
    Idle,
    /// They go to the slowest model that they help, where they save most time each.
    #[default]
    Slowest,
    /// They go to each model that they help in turn, to whom has been given the fewest so far.
    Evenly,
}

/// What replicas may look like.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Over how many accelerators a replica may be.
    pub tps: Vec<u32>,
    /// A replica serves no more requests at once than this, if there is such a limit.
    pub batch_max: Option<u64>,
    /// Whether keys and values of all requests of a replica must fit at once. Autopoiesis' Eq. 7 looks at weights alone.
    pub holds_kv: bool,
    /// Whether the model's heads must divide evenly, as engines demand.
    pub divides: bool,
    /// Whether a replica must fit into one node of the usual shape.
    pub within_nodes: bool,
    /// What becomes of accelerators of which the least makespan has no need.
    pub spare: Spare,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tps: vec![1, 2, 4, 8],
            batch_max: None,
            holds_kv: true,
            divides: true,
            within_nodes: true,
            spare: Spare::default(),
        }
    }
}

/// Models, accelerators, and what replicas may look like.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    /// The models.
    pub demands: Vec<Demand<'a>>,
    /// The accelerators.
    pub pools: Vec<Pool<'a>>,
    /// What replicas may look like.
    pub options: Options,
}

/// Equal replicas of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replicas {
    /// Of which pool, by its place in the problem.
    pub pool: usize,
    /// Accelerators of each.
    pub tp: u32,
    /// How many.
    pub count: u32,
}

/// What is placed: for each model of the problem its replicas.
pub type Placement = Vec<Vec<Replicas>>;

/// Accelerators of each pool that a placement takes.
pub fn taken(placement: &Placement, pools: usize) -> Vec<u32> {
    let mut taken = vec![0; pools];
    for replicas in placement.iter().flatten() {
        taken[replicas.pool] += replicas.tp * replicas.count;
    }
    taken
}
