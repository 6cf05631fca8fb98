//! Many peers in virtual time: the very core that runs in production, on hosts with clocks of their own, over
//! connections that delay, lose, stall and break. Shared by the tests in `tests/simulation` and by the benchmarks.
//!
//! Read in this order: `network`, `link`, `host`, `world`, `operation`, `invariant`, `schedule`.

pub(crate) mod deliver;
pub(crate) mod dial;
pub(crate) mod driver;
pub(crate) mod forge;
pub(crate) mod host;
pub(crate) mod invariant;
pub(crate) mod link;
pub(crate) mod measure;
pub(crate) mod network;
pub(crate) mod operation;
pub(crate) mod schedule;
pub(crate) mod traffic;
pub(crate) mod verify;
pub(crate) mod world;
