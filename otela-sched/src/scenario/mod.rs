//! What if: a file that says which replicas there are, what comes to them and what they lose on the way, and what the
//! simulator makes of it.

mod file;
mod run;
mod timeline;

pub use file::{Loss, Objective, Part, Policy, Replicas, Scenario, ScenarioError, Served, Steps};
pub use run::{ModelReport, ReplicaReport, Report};
pub use timeline::Moment;

#[cfg(test)]
mod tests;
