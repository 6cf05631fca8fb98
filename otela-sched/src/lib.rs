//! What should run where in an otela mesh.
//!
//! [`catalog`] knows models and accelerators, [`sim`] what serving one on the other costs, [`calibrate`] what measurements
//! say about that, [`scenario`] what comes of replicas and requests in a file, [`place`] finds the best placement, and
//! [`plan`] decides what is to be changed in a mesh. These are pure. What acts stands on them: [`view`] looks at a mesh,
//! [`controller`] plans for it as long as it is its turn, [`actuator`] carries out. [`engine`] is the simulated engine.

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
