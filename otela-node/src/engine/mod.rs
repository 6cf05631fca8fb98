//! An inference engine as a supervised child process.
//!
//! [`Process`] starts it behind a [`guard`], which outlives the agent just long enough to leave nothing behind;
//! [`Output`] keeps its pipes empty; [`Kind`] tells from the command line what it is; [`wait_ready`] says when
//! it truly serves. Restarting, and what a failure means for the node, are the agent's business.

mod ask;
mod client;
mod control;
pub mod guard;
mod kind;
mod listening;
mod orphans;
mod output;
mod process;
mod ready;
mod serving;
mod tree;

pub use client::Client;
pub use control::Exit;
pub use kind::{Engine, Kind};
pub use listening::{Holder, Listener, Listening, listening};
pub use output::{Echo, Output};
pub use process::{DEFAULT_GRACE, Launch, LaunchError, Process};
pub use ready::{NotReady, Progress, Ready, ReadyOptions, Stage, wait_ready};
pub use serving::{ModelInfo, Task};
