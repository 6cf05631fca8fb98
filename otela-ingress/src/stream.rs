//! Event streams: where events end, what they say, and what of it is remembered.

pub(crate) mod chunk;
pub(crate) mod dialect;
pub(crate) mod fault;
pub(crate) mod framer;
pub(crate) mod tap;
pub(crate) mod transcript;

pub(crate) use chunk::{Said, Usage};
pub(crate) use dialect::Dialect;
pub(crate) use fault::{Fault, Faults};
pub(crate) use framer::{Framer, Piece};
pub(crate) use tap::Tap;
pub(crate) use transcript::Transcript;
