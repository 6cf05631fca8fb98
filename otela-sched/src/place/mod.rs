//! Which models run where: placements, found exactly.

mod beside;
mod blocks;
mod bound;
mod choice;
mod combine;
mod cost;
mod cover;
mod enough;
mod explain;
mod file;
mod knapsack;
mod latency;
mod makespan;
mod problem;
mod resolve;
mod serve;
mod several;
mod share;
mod spread;
mod total;

pub use beside::{Change, change, changes};
pub use blocks::{NoRoom, Running, blocks, settle};
pub use cost::{Cheapest, least_cost};
pub use cover::TooManyTypes;
pub use enough::{Gives, Kind, least_enough};
pub use explain::{Explanation, More, explain};
pub use file::{KnownStock, ModelLoad, Objective, ProblemError, ProblemFile, RunningReplicas, Stock, Workload};
pub use latency::{Evaluate, Fastest, Form, Queueing, forms, least_latency};
pub use makespan::{Infeasible, Solution, least_makespan};
pub use problem::{Demand, Load, Options, Placement, Pool, Problem, Replicas, taken};
pub use serve::serve_seconds;
pub use several::{Effort, NotPlaced, Several, least_sum};
pub use share::{Instance, Shares, largest_share};
pub use total::{Slot, Total, total};

/// Work for one question that is about a second's on one core.
pub const USUAL_WORK: u64 = 100_000_000;

#[cfg(test)]
mod tests;
