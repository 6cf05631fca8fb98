//! What a peer counts.

use crate::telemetry::Metrics;
use otela_proto::entry::Refusal;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

/// One label with few values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Reason {
    reason: &'static str,
}

/// The counters and gauges of a peer.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerMetrics {
    pub(super) streams_refused: Counter,
    pub(super) connections: Gauge,
    pub(super) dials_failed: Counter,
    pub(super) connections_closed_by_ping: Counter,
    pub(super) strangers: Counter,
    pub(super) entries: Gauge,
    pub(super) entries_learned: Counter,
    entries_refused: Family<Reason, Counter>,
    pub(super) frames_sent: Counter,
    pub(super) frames_dropped: Counter,
    pub(super) frames_malformed: Counter,
}

impl PeerMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let m = Self::default();
        metrics.register(|r| {
            let mut add = |name: &str, help: &str, counter: &Counter| r.register(name, help, counter.clone());
            add("otela_peer_streams_refused", "Inbound streams reset because the queue was full", &m.streams_refused);
            add("otela_peer_dials_failed", "Dials that reached nobody", &m.dials_failed);
            add("otela_peer_pings_gave_up", "Connections closed because pings failed", &m.connections_closed_by_ping);
            add("otela_peer_strangers", "Connections closed because the peer is of another mesh", &m.strangers);
            add("otela_registry_entries_learned", "Entries that replaced older ones or were new", &m.entries_learned);
            add("otela_gossip_frames_sent", "Gossip frames handed to neighbours", &m.frames_sent);
            add("otela_gossip_frames_dropped", "Gossip frames dropped because a queue was full", &m.frames_dropped);
            add("otela_gossip_frames_malformed", "Gossip frames that break the protocol", &m.frames_malformed);
            r.register("otela_peer_connections", "Open connections to other peers", m.connections.clone());
            r.register("otela_registry_entries", "Owners in the registry", m.entries.clone());
            let refused = m.entries_refused.clone();
            r.register("otela_registry_entries_refused", "Entries refused, by reason", refused);
        });
        m
    }

    pub(super) fn refused(&self, refusal: Refusal) {
        self.refused_for(refusal.reason());
    }

    pub(super) fn refused_for(&self, reason: &'static str) {
        self.entries_refused.get_or_create(&Reason { reason }).inc();
    }
}
