//! The swarm, which owns every connection: whom to dial and when, what we listen on, and which addresses to tell.

mod addresses;
mod asked;
mod complaints;
mod crowd;
mod dialer;
mod dials;
mod direct;
mod driver;
mod events;
mod kademlia;
mod limits;
mod lookup;
mod net;
mod pings;
mod relay;
mod reservations;
mod upkeep;
mod via;
mod why;

pub use addresses::LeftOut;
pub(super) use addresses::{is_relayed, relay_of, resolve_all};
pub(super) use asked::OneDial;
pub(super) use dialer::Contact;
pub(super) use driver::{Channels, Command, Driver, Published, Seen};
pub use driver::{ListenError, Observed, Reach};
