//! What should run where in an otela mesh.
//!
//! [`catalog`] knows models and accelerators, [`engine`] is the simulated engine. Cost model, placement, autoscaling and the
//! evolving policies come beside them.

pub mod catalog;
pub mod engine;
