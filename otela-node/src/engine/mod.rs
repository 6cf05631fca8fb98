//! An inference engine as a supervised child process.
//!
//! [`Process`] starts it behind a [`guard`], which outlives the agent just long enough to leave nothing behind;
//! [`Output`] keeps its pipes empty; [`Kind`] tells from the command line what it is; [`wait_ready`] says when
//! it truly serves. Restarting, and what a failure means for the node, are the agent's business.

mod ask;
mod client;
mod control;
mod fatal;
pub mod guard;
mod kind;
mod listening;
mod load;
mod orphans;
mod output;
mod process;
mod ready;
mod serving;
mod told;
mod tree;
mod watched;

pub use client::Client;
pub use control::Exit;
pub use fatal::{Belief, FatalLine, FatalPatterns, PatternError};
pub use kind::{Engine, Kind};
pub use listening::{Holder, Listener, Listening, listening};
pub use load::EngineLoad;
pub use output::{Echo, Output, Page};
pub use process::{DEFAULT_GRACE, Launch, LaunchError, Process};
pub use ready::{NotReady, Progress, Reached, Ready, ReadyOptions, Stage, wait_ready};
pub use serving::{ModelInfo, Task};
pub use told::{Told, free_port};
pub use watched::Watched;
