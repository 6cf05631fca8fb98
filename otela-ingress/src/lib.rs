//! What clients see: the OpenAI surface, and the way of a request to an engine.
//!
//! The way of one request, top down: `api::inference` reads it, `forward` is the whole path in one
//! function, `balance` picks a replica, `otela_node::peer::tunnel` carries it to the node, whose agent and engine
//! client take it from there. Whatever else a request touches is called from `forward` by name.

mod account;
mod answer;
mod api;
mod aside;
mod attempt;
mod balance;
mod budget;
mod candidate;
mod client_io;
mod config;
mod connection;
mod cors;
mod defaults;
mod failure;
mod forward;
mod handover;
mod headers;
mod hedge;
mod listen;
mod metrics;
mod pace;
mod picker;
mod place;
mod queue;
mod request;
mod require;
mod resume;
mod splice;
mod standing;
mod stream;
mod tls;
mod trial;
mod trust;
mod wait;
mod way;

pub use balance::{Policy, UnknownPolicy};
pub use config::{IngressConfig, ModelSettings, Settings};
pub use cors::{InvalidOrigin, Origin, Origins};
pub use handover::HandoverError;
pub use listen::{Ingress, ListenError};
pub use picker::{Ask, InvalidFilter, NotPicked, Picked, Picker};
pub use tls::{TlsError, TlsFiles};
