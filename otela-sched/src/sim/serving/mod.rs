//! Requests over virtual time: OpenTela's second stage (section 3.5).
//!
//! [`Replica`] is an engine that batches continuously: whole prompts or parts of them, blocks for keys and values, waiting,
//! putting back for lack of room, heads of prompts that are kept. [`serve`] runs any number of them under a [`Dispatch`],
//! with replicas that come, drain and are lost, and with prompts and answers on different ones. [`Workload`] draws requests.
//!
//! **What is exact.** Steps that are alike are taken together: as long as nobody comes, ends or lacks room, a step differs
//! from the one before by one key for each sequence, and the sum over any number of them is a closed form. So the outcome is
//! that of taking every step by itself, up to rounding, at a cost that does not depend on the length of answers.

mod dispatch;
mod fleet;
mod limits;
mod outcome;
mod prefix;
mod queue;
mod replica;
mod request;
mod running;
mod work;
mod workload;

pub use dispatch::{Dispatch, LeastLoaded, Open, Random, RoundRobin, TwoChoices, Weighted};
pub use fleet::{Member, Role, Rules, serve};
pub use limits::{Batching, Limits};
pub use outcome::{Outcome, Slo, Spread, Summary};
pub use replica::{Load, Replica, TooLong};
pub use request::{Arrival, Prefix, Served};
pub use workload::{Arrivals, Length, Shared, Workload, WorkloadError};

#[cfg(test)]
mod tests;
