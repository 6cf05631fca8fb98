//! Which models run where: placements, found exactly.

mod beside;
mod blocks;
mod bound;
mod candidates;
mod choice;
mod combine;
mod cost;
mod cover;
mod curves;
mod enough;
mod explain;
mod file;
mod judged;
mod knapsack;
mod latency;
mod makespan;
mod problem;
mod reschedule;
mod resolve;
mod serve;
mod several;
mod share;
mod simulated;
mod spread;
mod tokens;
mod total;

pub use beside::{Change, change, changes};
pub use blocks::{NoRoom, Running, blocks, settle};
pub use cost::{Cheapest, least_cost};
pub use cover::TooManyTypes;
pub use curves::Curves;
pub use enough::{Gives, Kind, least_enough};
pub use explain::{Explanation, More, NextBest, explain};
pub use file::{Judge, KnownStock, ModelLoad, Objective, ProblemError, ProblemFile, RunningReplicas, Stock, Workload};
pub use judged::{Judged, least_judged};
pub use latency::{Evaluate, Fastest, Form, Queueing, least_latency, mean_seconds};
pub use makespan::{Infeasible, Solution, least_makespan};
pub use problem::{Demand, Load, Options, Placement, Pool, Problem, Replicas, Spare, taken};
pub use reschedule::{follow, greedy, worthwhile};
pub use serve::serve_seconds;
pub use several::{Effort, NotPlaced, Several, least_sum};
pub use share::{Bearing, Instance, Shares, largest_bearing, largest_share};
pub use simulated::{Requests, Simulated, Simulation};
pub use tokens::Tokens;
pub use total::{Slot, Total, total};

/// Work for one question that is about a second's on one core.
pub const USUAL_WORK: u64 = 100_000_000;

#[cfg(test)]
mod tests;
