//! Which models run where: placements, found exactly.

mod bound;
mod choice;
mod combine;
mod explain;
mod file;
mod knapsack;
mod makespan;
mod problem;
mod serve;
mod share;
mod spread;
mod total;

pub use explain::{Explanation, More, explain};
pub use file::{ModelLoad, ProblemError, ProblemFile};
pub use makespan::{Infeasible, Solution, least_makespan};
pub use problem::{Demand, Load, Options, Placement, Pool, Problem, Replicas, taken};
pub use serve::serve_seconds;
pub use share::{Instance, Shares, largest_share};
pub use total::{Slot, Total, total};

#[cfg(test)]
mod tests;
