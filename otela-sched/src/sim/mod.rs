//! What serving costs: how long prompts and tokens take, what fits into memory, what a change of placement costs.
//!
//! Two cost models over the same operators:
//!
//! - [`Roofline`] is that of Autopoiesis, appendix B (Eq. 2 to 7), as printed: a whole static batch, nothing measured.
//! - [`StepCosts`] is the per-operator stage of OpenTela, section 3.5: one step of an engine that batches continuously,
//!   with whatever mix of prompts and decoding sequences, and with [`Factors`] that measurements have taught
//!   ([`crate::calibrate`]).
//!
//! Both take a [`Variant`] (a model, on an accelerator, over so many of them), compute once what does not depend on the
//! batch, and then answer in well under a microsecond: sums over the tokens of an answer are closed forms. Times are in
//! seconds, sizes in bytes, work in FLOP, all `f64`; counts of tokens and requests are `f64` too where the formulas are
//! smooth in them. What is not modelled: biases, norms' parameters, routers, sliding windows (they count as full
//! attention), pipeline parallelism, and tiles (a GEMM of 129 rows costs what 128 cost, and a little).

mod affine;
mod factors;
mod operators;
mod reconfigure;
mod roofline;
pub mod serving;
mod step;
mod variant;

pub use factors::Factors;
pub use reconfigure::{Group, LoadScope, Reconfiguration, reconfiguration, transfer_coefficient, transfer_seconds};
pub use roofline::{Roofline, operator_seconds};
pub use step::{Step, StepCosts};
pub use variant::{MEMORY_RATIO, Variant, VariantError, WEIGHTS_RATIO};

#[cfg(test)]
mod tests;
