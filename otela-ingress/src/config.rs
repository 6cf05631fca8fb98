//! What an ingress is told at its start.

use crate::{balance::Policy, defaults};
use std::{net::SocketAddr, time::Duration};

/// The settings of one ingress.
#[derive(Debug, Clone)]
pub struct IngressConfig {
    /// Where clients connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// How replicas are picked.
    pub policy: Policy,
    /// Largest request body in bytes, after decoding.
    pub body_bytes_max: usize,
    /// All request bodies held at once, in bytes. More wait.
    pub bodies_bytes_max: usize,
    /// Client connections at once. More wait in the operating system's queue.
    pub connections_max: usize,
    /// Attempts of one request on further nodes after the first.
    pub retries_max: u32,
    /// How long a node may take until the head of its answer; `None` for as long as it takes.
    pub answer_within: Option<Duration>,
    /// Silence on an event stream after which the client is sent a comment.
    pub keep_alive_every: Duration,
}

impl IngressConfig {
    /// The defaults, listening on `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            policy: Policy::default(),
            body_bytes_max: defaults::BODY_BYTES_MAX,
            bodies_bytes_max: defaults::BODIES_BYTES_MAX,
            connections_max: defaults::CONNECTIONS_MAX,
            retries_max: defaults::RETRIES_MAX,
            answer_within: None,
            keep_alive_every: defaults::KEEP_ALIVE_EVERY,
        }
    }
}
