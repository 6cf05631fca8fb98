//! How an otela peer lives, and the provider's agent.

pub mod tasks;
pub mod telemetry;
