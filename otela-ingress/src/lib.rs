//! What clients see: the OpenAI surface, and the way of a request to an engine.
//!
//! The way of one request, top down: `api::inference` reads it, `forward` is the whole path in one
//! function, `balance` picks a replica, `otela_node::peer::tunnel` carries it to the node, whose agent and engine
//! client take it from there. Whatever else a request touches is called from `forward` by name.

mod answer;
mod api;
mod attempt;
mod balance;
mod budget;
mod candidate;
mod client_io;
mod config;
mod defaults;
mod events;
mod forward;
mod headers;
mod listen;
mod metrics;

pub use balance::{Policy, UnknownPolicy};
pub use config::IngressConfig;
pub use listen::{Ingress, ListenError};
