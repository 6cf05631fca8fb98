//! What an ingress is told at its start, and what of it may change while it runs.

use crate::{balance::Policy, cors::Origins, defaults, tls::TlsFiles};
use otela_node::telemetry::trace::Traces;
use std::{collections::HashMap, net::SocketAddr, path::PathBuf, time::Duration};

/// The settings of one ingress.
#[derive(Debug, Clone)]
pub struct IngressConfig {
    /// Where clients connect. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// A socket through which ingresses on this machine take over from each other.
    pub handover: Option<PathBuf>,
    /// Certificate and key, to speak TLS.
    pub tls: Option<TlsFiles>,
    /// All request bodies held at once, in bytes, and at least the largest that is allowed. More wait.
    pub bodies_bytes_max: usize,
    /// Client connections at once. More wait in the operating system's queue.
    pub connections_max: usize,
    /// Where the spans of requests go.
    pub traces: Traces,
    /// What may change while it runs.
    pub settings: Settings,
}

impl IngressConfig {
    /// The defaults, listening on `listen`.
    #[must_use]
    pub fn new(listen: SocketAddr) -> Self {
        Self {
            listen,
            handover: None,
            tls: None,
            bodies_bytes_max: defaults::BODIES_BYTES_MAX,
            connections_max: defaults::CONNECTIONS_MAX,
            traces: Traces::default(),
            settings: Settings::default(),
        }
    }
}

/// Settings that may be replaced while requests run; each request keeps those that it began with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest request body in bytes, after decoding.
    pub body_bytes_max: usize,
    /// Silence on an event stream after which the client is sent a comment.
    pub keep_alive_every: Duration,
    /// A client must have sent the head of its request by then.
    pub head_within: Duration,
    /// A body must make some progress in this time.
    pub body_stall_max: Duration,
    /// Whose pages may call from a browser.
    pub origins: Origins,
    /// Whether a request may choose its own balancing policy with `X-Otela-Policy`.
    pub policy_by_request: bool,
    /// What holds for every model that has no settings of its own.
    pub usual: ModelSettings,
    /// Models with settings of their own, by their id.
    pub models: HashMap<String, ModelSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_bytes_max: defaults::BODY_BYTES_MAX,
            keep_alive_every: defaults::KEEP_ALIVE_EVERY,
            head_within: defaults::HEAD_WITHIN,
            body_stall_max: defaults::BODY_STALL_MAX,
            origins: Origins::default(),
            policy_by_request: false,
            usual: ModelSettings::default(),
            models: HashMap::new(),
        }
    }
}

impl Settings {
    /// What holds for `model`.
    #[must_use]
    pub fn of(&self, model: &str) -> &ModelSettings {
        self.models.get(model).unwrap_or(&self.usual)
    }
}

/// How requests for a model are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSettings {
    /// How replicas are picked.
    pub policy: Policy,
    /// Attempts of one request on further nodes after the first.
    pub retries_max: u32,
    /// How long a node may take until the head of its answer; `None` for as long as it takes.
    pub answer_within: Option<Duration>,
    /// How long an answer that has begun may pause; `None` for as long as it likes.
    pub stall_within: Option<Duration>,
    /// A request that has waited so long for its first byte is also given to a second node; `None` never.
    pub hedge_after: Option<Duration>,
    /// Requests in flight on one replica, from this ingress. More wait in the queue.
    pub in_flight_max: u32,
    /// Requests that may wait for a place.
    pub queue_max: usize,
    /// How long they may wait.
    pub queue_within: Duration,
    /// Whether streams that break are continued on another node where that is possible.
    pub resume: bool,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            retries_max: defaults::RETRIES_MAX,
            answer_within: None,
            stall_within: Some(defaults::STALL_WITHIN),
            hedge_after: None,
            in_flight_max: defaults::IN_FLIGHT_MAX,
            queue_max: defaults::QUEUE_MAX,
            queue_within: defaults::QUEUE_WITHIN,
            resume: true,
        }
    }
}
