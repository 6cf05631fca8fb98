//! Which replica gets a request: the paper's three hooks (OpenTela section 3.4), one file for each policy.

mod random;

use otela_proto::registry::Replica;
use std::{fmt, str::FromStr, sync::Arc};

/// A balancing policy. Implementations see candidates that have passed every filter already, never an empty list.
pub(crate) trait Balancer: Send + Sync + fmt::Debug {
    /// The index of the candidate to use.
    fn pick(&self, candidates: &[Arc<Replica>]) -> usize;

    /// An attempt on `replica` begins. Called by [`InFlight`] only.
    fn on_request_start(&self, replica: &Replica);

    /// That attempt has ended, however. Called by [`InFlight`] only.
    fn on_request_end(&self, replica: &Replica);
}

/// The policies that can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Uniformly at random: the paper's default.
    #[default]
    Random,
}

/// A name that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown balancing policy {0:?}: known is random")]
pub struct UnknownPolicy(String);

impl Policy {
    pub(crate) fn balancer(self) -> Arc<dyn Balancer> {
        match self {
            Self::Random => Arc::new(random::Random),
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "random" => Ok(Self::Random),
            _ => Err(UnknownPolicy(name.to_owned())),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
        }
    }
}

/// One attempt in flight: the only caller of the hooks. It lives in the answer's body, so that an attempt ends
/// exactly when its last byte has gone or its client has.
#[derive(Debug)]
pub(crate) struct InFlight {
    balancer: Arc<dyn Balancer>,
    replica: Arc<Replica>,
}

impl InFlight {
    pub(crate) fn start(balancer: Arc<dyn Balancer>, replica: Arc<Replica>) -> Self {
        balancer.on_request_start(&replica);
        Self { balancer, replica }
    }

    /// The replica that it is on.
    pub(crate) fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.balancer.on_request_end(&self.replica);
    }
}
