//! What should run where in an otela mesh.
//!
//! [`catalog`] knows models and accelerators, [`sim`] what serving one on the other costs, [`calibrate`] what measurements
//! say about that, [`scenario`] what comes of replicas and requests in a file. [`engine`] is the simulated engine. Placement, autoscaling and the evolving policies come beside them.

pub mod actuator;
pub mod calibrate;
pub mod catalog;
pub mod controller;
pub mod engine;
pub mod place;
pub mod plan;
pub mod scenario;
pub mod sim;
mod text;
pub mod view;
