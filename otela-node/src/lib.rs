//! How an otela peer lives, and the provider's agent.

pub mod agent;
pub mod engine;
pub mod tasks;
pub mod telemetry;
