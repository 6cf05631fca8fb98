//! What a scheduler sees: the registry, and what ingresses count.

mod load;
mod nodes;

pub use load::{Counted, Loads, read_counters};
pub use nodes::{JobNode, job_nodes, nodes};
