//! What is to be changed in a mesh: a pure function of what was seen of it.
//!
//! [`decide()`] takes a [`Policy`], which an operator has written, and an [`Observation`], and returns what idle nodes are to
//! serve. Running models are never moved: what they can bear counts, and only what is missing is placed, on as little as
//! will do. What idle nodes cannot give is asked of Slurm, by the kinds of jobs that the operator allows. The [`Plan`] that comes of it is a record with its reasons: numbered, and never changed.

mod capacity;
mod decide;
mod give;
mod jobs;
mod kinds;
mod observation;
mod policy;
mod record;
mod wanted;

pub use decide::{Avoided, Decision, decide};
pub use kinds::{JobKind, SlurmPolicy};
pub use observation::{Card, Doing, KindSeen, Measured, NodeSeen, Observation};
pub use policy::{ModelPolicy, Policy, PolicyError};
pub use record::{IdleNode, ModelPlan, Plan, Serve, Step, Submit};

#[cfg(test)]
mod tests;
