//! How a plan's steps are carried out.

mod overlay;
mod slurm;

pub use overlay::Overlay;
pub use slurm::{Batch, Job, NoSlurm, Slurm, Submitted};

use otela_proto::assignment::Directive;
use std::future::Future;

/// Carries out orders. To give one twice does no more than once, and one of an older plan is refused.
pub trait Actuator: Send + Sync {
    /// Gives an order to whom it names.
    fn apply(&self, order: &Directive) -> impl Future<Output = Result<(), NotApplied>> + Send;
}

/// Why an order has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotApplied {
    /// Whoever it was for does not follow it.
    #[error("refused: {message}")]
    Refused {
        /// The cause, as a word.
        reason: String,
        /// The same in words of the one that refuses.
        message: String,
    },
    /// It may not have arrived: to give it again costs nothing.
    #[error("not reached: {0}")]
    NotReached(String),
}

impl NotApplied {
    /// The cause as a metric label.
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused { reason, .. } => reason,
            Self::NotReached(_) => "not_reached",
        }
    }
}
