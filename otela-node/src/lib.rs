//! How an otela peer lives, and the provider's agent.

pub mod http1;
pub mod peer;
pub mod tasks;
pub mod telemetry;
