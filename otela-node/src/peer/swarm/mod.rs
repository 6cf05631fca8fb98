//! The swarm, which owns every connection: whom to dial and when, what we listen on, and which addresses to tell.

mod addresses;
mod dialer;
mod driver;
mod net;

pub use driver::ListenError;
pub(super) use driver::{Channels, Command, Driver};
