//! The provider's agent: what this machine offers, and the engine it runs.

pub mod hardware;
