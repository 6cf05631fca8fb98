//! What should run where in an otela mesh.
//!
//! Today this is the simulated engine; placement, autoscaling and the evolving policies come beside it.

pub mod engine;
