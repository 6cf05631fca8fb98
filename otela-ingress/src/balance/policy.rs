//! The names of the policies, and what is said of them to people.

use std::{fmt, str::FromStr};

/// The policies that can be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Policy {
    /// Uniformly at random: the paper's default.
    #[default]
    Random,
    /// Each in turn, in the order of their sessions.
    RoundRobin,
    /// At random, by accelerator class and measured speed.
    Weighted,
    /// Whoever has the least to do.
    LeastLoaded,
    /// The less loaded of two random ones.
    P2c,
    /// Requests that begin alike meet again, within a bound on load.
    Affinity,
}

/// A name that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown balancing policy {0:?}: known are random, round-robin, weighted, least-loaded, p2c and affinity")]
pub struct UnknownPolicy(String);

impl Policy {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Random, Self::RoundRobin, Self::Weighted, Self::LeastLoaded, Self::P2c, Self::Affinity];

    /// As it is configured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::RoundRobin => "round-robin",
            Self::Weighted => "weighted",
            Self::LeastLoaded => "least-loaded",
            Self::P2c => "p2c",
            Self::Affinity => "affinity",
        }
    }

    /// What it does and when to choose it, in a paragraph.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Random => {
                "Uniformly at random. Needs no state and no agreement between ingresses. The default; good where all \
                 replicas are alike and requests are many and small."
            }
            Self::RoundRobin => {
                "Each replica in turn, in the order of their sessions, counted for each model. Spreads a steady stream \
                 of like requests evenly."
            }
            Self::Weighted => {
                "At random, in proportion to the accelerators' class until a replica's own speed has been measured \
                 (tokens per second of its answers), and to that from then on. For fleets of unequal machines."
            }
            Self::LeastLoaded => {
                "The replica with the fewest requests in flight: this ingress' own, counted exactly, and what the node \
                 reports of others, which counts less as it ages. Several ingresses may pick the same one for a moment."
            }
            Self::P2c => {
                "The less loaded of two that were drawn at random. Nearly as even as least-loaded, and does not herd \
                 when there are several ingresses. A good choice for most meshes."
            }
            Self::Affinity => {
                "Requests of one conversation (X-Otela-Conversation), with one prompt_cache_key, or that begin alike go \
                 to the same replica, whose prefix cache is warm; every ingress makes the same choice without talking \
                 to others (rendezvous hashing). A replica with more than 1.25 times the mean load is passed over. \
                 For chats and agents."
            }
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
