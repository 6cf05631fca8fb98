//! How an otela peer lives ([`peer`]), and the provider's agent ([`agent`]) that supervises an engine ([`engine`]).
//!
//! `peer` knows nothing of the other two: an ingress or a scheduler builds on it alone.

pub mod agent;
pub mod collect;
pub mod engine;
pub mod http1;
pub mod peer;
pub mod tasks;
pub mod telemetry;
mod web;
