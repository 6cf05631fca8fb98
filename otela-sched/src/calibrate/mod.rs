//! What measurements teach: [`crate::sim::Factors`] for each accelerator and engine, and how well they foretell what they
//! have not seen.
//!
//! Measurements are a table of whole batches ([`Measurement::read`]) or a recorded run of an engine ([`Recording`]). Rows
//! that say nothing about the cost model are left out with a reason ([`LeftOut`]). [`learn()`] and [`learn_run`] find the
//! factors, [`by_subject`] tells the errors. What comes with the program ([`Table::builtin`]) was fitted on Llama-2 and
//! Mistral alone and tested on all other models; the measurements themselves are not in this repository.

mod case;
mod errors;
mod fit;
mod learn;
mod measurement;
mod recording;
mod replay;
mod report;
mod table;

pub use case::{Case, LeftOut, Sorted, sort};
pub use errors::{Errors, relative_speed};
pub use fit::{Evidence, fit};
pub use learn::{learn, learn_run};
pub use measurement::{Measurement, MeasurementError};
pub use recording::{Recording, RecordingError, Request, Timeline};
pub use replay::Means;
pub use report::{Predicted, Row, Subject, by_subject, errors, predict, speeds};
pub use table::{Basis, Fitted, Quality, Table, TableError};

#[cfg(test)]
mod tests;
