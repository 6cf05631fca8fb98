//! What is to be changed in a mesh: a pure function of what was seen of it.
//!
//! [`decide()`] takes a [`Policy`], which an operator has written, and an [`Observation`], and returns what idle nodes are to
//! serve. Running models are never moved: what they can bear counts, and only what is missing is placed, on as little as
//! will do. The [`Plan`] that comes of it is a record with its reasons: numbered, and never changed.

mod capacity;
mod decide;
mod observation;
mod policy;
mod record;

pub use decide::{Avoided, Decision, decide};
pub use observation::{Card, Doing, Measured, NodeSeen, Observation};
pub use policy::{ModelPolicy, Policy, PolicyError};
pub use record::{IdleNode, ModelPlan, Plan, Serve, Step};

#[cfg(test)]
mod tests;
