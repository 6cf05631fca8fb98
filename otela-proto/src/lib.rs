//! What otela peers say and agree on.
//!
//! Pure by construction: no sockets, no tokio, no clock and no randomness of its own. Time arrives as a
//! [`std::time::Duration`] since the caller's own start (monotonic), wall time as milliseconds since the Unix
//! epoch, chance as a seeded generator; whatever has to be sent leaves as a return value. The same code
//! therefore runs in production and in simulation.
//!
//! Read in this order: [`id`], [`lifecycle`], [`payload`], [`entry`], [`accusation`], [`provider`], [`registry`],
//! [`gossip`]. [`assignment`] is what schedulers tell nodes. [`admission`] stands by itself: who may connect at all.

pub mod accusation;
pub mod admission;
pub mod anthropic;
pub mod assignment;
pub mod clock;
pub mod engine_path;
pub mod entry;
pub mod gossip;
pub mod id;
pub mod lifecycle;
pub mod liveness;
pub mod measure;
pub mod member;
pub mod own;
pub mod payload;
pub mod provider;
pub mod registry;
mod sign;
pub mod step;
pub mod wire;

pub use libp2p_identity::{Keypair, PeerId};
pub use multiaddr::Multiaddr;
