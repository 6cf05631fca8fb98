//! What a peer counts.

use super::{admission::Tally, defaults::REFUSED_LOG_EVERY, transport::Carried};
use crate::telemetry::Metrics;
use libp2p::PeerId;
use otela_proto::{
    measure,
    provider::Provider,
    registry::{Belief, Registry, View},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};
use tokio::time::Instant;

/// One label with few values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Reason {
    reason: &'static str,
}

/// The same for what is believed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HolePunch {
    transport: &'static str,
    result: &'static str,
}

/// How a connection has come about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Opened {
    carrier: &'static str,
    through: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// The counters and gauges of a peer.
#[derive(Debug, Clone, Default)]
pub(super) struct PeerMetrics {
    pub(super) streams_refused: Counter,
    pub(super) connections: Gauge,
    connections_opened: Family<Opened, Counter>,
    pub(super) dials_failed: Counter,
    pub(super) connections_closed_by_ping: Counter,
    pub(super) strangers: Counter,
    pub(super) probes: Counter,
    probes_refused: Family<Reason, Counter>,
    pub(super) connections_retired: Counter,
    pub(super) connections_denied: Counter,
    pub(super) lists_failed: Counter,
    pub(super) lookups: Counter,
    pub(super) lookup_peers: Gauge,
    pub(super) lookups_answered: Counter,
    pub(super) lookups_refused: Counter,
    pub(super) peers_found: Counter,
    pub(super) reservations: Gauge,
    pub(super) reservations_lost: Counter,
    pub(super) reservations_refused: Counter,
    hole_punches: Family<HolePunch, Counter>,
    incoming_failed: Family<Reason, Counter>,
    pub(super) reservations_given: Gauge,
    pub(super) circuits: Gauge,
    pub(super) circuits_cut: Counter,
    relay_refused: Family<What, Counter>,
    entries: Gauge,
    beliefs: Family<State, Gauge>,
    providers: Family<State, Gauge>,
    departed: Gauge,
    graves: Gauge,
    pub(super) skew_s: Gauge<f64, AtomicU64>,
    pub(super) evicted_self: Counter,
    pub(super) entries_learned: Counter,
    entries_refused: Family<Reason, Counter>,
    pub(super) frames_sent: Counter,
    pub(super) bytes_sent: Counter,
    pub(super) parcels_dropped: Counter,
    pub(super) reads_throttled: Counter,
    pub(super) frames_malformed: Counter,
    pub(super) state_files_set_aside: Counter,
    pub(super) state_writes_failed: Counter,
    pub(super) carried: Carried,
    pub(super) tally: Tally,
    /// The reasons that were counted, when each was logged last, and how many came since.
    refusals_logged: Arc<Mutex<BTreeMap<&'static str, (Instant, u64)>>>,
}

impl PeerMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let m = Self { tally: Tally::register(metrics), ..Self::default() };
        metrics.register(|r| {
            let mut add = |name: &str, help: &str, counter: &Counter| r.register(name, help, counter.clone());
            add("otela_peer_streams_refused", "Inbound streams reset because the queue was full", &m.streams_refused);
            add("otela_peer_dials_failed", "Dials that reached nobody", &m.dials_failed);
            add("otela_peer_pings_gave_up", "Connections closed because pings failed", &m.connections_closed_by_ping);
            add("otela_peer_strangers", "Connections closed because the peer does not speak our gossip", &m.strangers);
            add("otela_peer_probes", "Orders of other peers that measure the way here", &m.probes);
            add("otela_peer_connections_retired", "Connections closed beside better ones", &m.connections_retired);
            add(
                "otela_peer_connections_denied",
                "Connections of hosts with too many handshakes",
                &m.connections_denied,
            );
            add("otela_peer_bootstrap_lists_failed", "Lists of bootstraps that could not be read", &m.lists_failed);
            add("otela_kademlia_searches", "Searches for peers since no bootstrap answers", &m.lookups);
            add("otela_kademlia_found", "Peers that a search has found and that are tried", &m.peers_found);
            add("otela_kademlia_answered", "Searches of others answered", &m.lookups_answered);
            add("otela_kademlia_refused", "Records that others wanted to store here", &m.lookups_refused);
            add("otela_peer_reservations_lost", "Relays that relay for us no more", &m.reservations_lost);
            add("otela_peer_reservations_refused", "Relays that would not relay for us", &m.reservations_refused);
            add("otela_relay_circuits_cut", "Circuits ended by this relay's limits", &m.circuits_cut);
            add("otela_relay_received_bytes", "Bytes that came to this relay, its own included", &m.carried.received);
            add("otela_relay_sent_bytes", "Bytes that this relay has sent, its own included", &m.carried.sent);
            add("otela_registry_entries_learned", "Entries that replaced older ones or were new", &m.entries_learned);
            add("otela_gossip_frames_sent", "Gossip frames handed to neighbours", &m.frames_sent);
            add("otela_gossip_sent_bytes", "Bytes of gossip frames, without what the transport adds", &m.bytes_sent);
            add("otela_gossip_dropped", "Entries and messages dropped since a neighbour was slow", &m.parcels_dropped);
            add("otela_gossip_throttled", "Pauses in reading from neighbours that send too much", &m.reads_throttled);
            add("otela_peer_evictions_of_self", "New sessions because the mesh had evicted the old", &m.evicted_self);
            add("otela_gossip_frames_malformed", "Gossip frames that break the protocol", &m.frames_malformed);
            add("otela_state_files_set_aside", "State files that could not be used", &m.state_files_set_aside);
            add("otela_state_writes_failed", "Writes of the state that failed", &m.state_writes_failed);
            let opened = m.connections_opened.clone();
            r.register("otela_peer_connections_opened", "Connections that were set up, by what carries them", opened);
            r.register("otela_peer_connections", "Open connections to other peers", m.connections.clone());
            r.register("otela_peer_reservations", "Relays that relay for us", m.reservations.clone());
            let incoming = m.incoming_failed.clone();
            r.register(
                "otela_peer_incoming_failed",
                "Connections of others that came to nothing: denied, not admitted, or no handshake",
                incoming,
            );
            let punches = m.hole_punches.clone();
            r.register("otela_peer_hole_punches", "Tries at a direct way beside a relayed one, by result", punches);
            let public = m.lookup_peers.clone();
            r.register("otela_kademlia_peers", "Public peers that are remembered, present or not", public);
            let refused = m.probes_refused.clone();
            r.register("otela_peer_probes_refused", "The same, refused, by reason", refused);
            r.register("otela_relay_reservations", "Peers that we relay for", m.reservations_given.clone());
            r.register("otela_relay_circuits", "Connections that we relay now", m.circuits.clone());
            r.register("otela_relay_refused", "Reservations and circuits refused", m.relay_refused.clone());
            r.register("otela_registry_entries", "Owners in the registry", m.entries.clone());
            r.register("otela_registry_departed", "Owners that have left or were evicted", m.departed.clone());
            r.register("otela_registry_tombstones", "Owners of whom only a tombstone is kept", m.graves.clone());
            r.register("otela_registry_believed", "Present nodes, by what is believed of them", m.beliefs.clone());
            let providers = m.providers.clone();
            r.register("otela_registry_providers", "Present nodes that tell their provider, proven or not", providers);
            r.register("otela_peer_clock_skew_seconds", "Median of neighbours' clocks ahead of ours", m.skew_s.clone());
            let refused = m.entries_refused.clone();
            r.register("otela_registry_entries_refused", "Entries and accusations refused, by reason", refused);
        });
        m
    }

    /// Counts a connection by what carries it and what it leads through.
    pub(super) fn opened(&self, carrier: &'static str, through: &'static str) {
        self.connections_opened.get_or_create(&Opened { carrier, through }).inc();
    }

    /// Counts what came to us and was no connection in the end.
    pub(super) fn incoming_failed(&self, reason: &'static str) {
        self.incoming_failed.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a try at a hole punch.
    pub(super) fn hole_punched(&self, transport: &'static str, result: &'static str) {
        self.hole_punches.get_or_create(&HolePunch { transport, result }).inc();
    }

    /// Counts a measurement that was refused.
    pub(super) fn probe_refused(&self, reason: &'static str) {
        self.probes_refused.get_or_create(&Reason { reason }).inc();
    }

    /// Counts what a relay has refused.
    pub(super) fn relay_refused(&self, what: &'static str) {
        self.relay_refused.get_or_create(&What { what }).inc();
    }

    /// Counts a refusal, and now and then says so: whoever floods us must not flood the log.
    pub(super) fn refused(&self, reason: &'static str, from: &PeerId) {
        self.entries_refused.get_or_create(&Reason { reason }).inc();
        let mut logged = self.refusals_logged.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (at, since) = logged.entry(reason).or_insert((now - REFUSED_LOG_EVERY, 0));
        *since += 1;
        if *at + REFUSED_LOG_EVERY <= now {
            tracing::warn!(%from, reason, count = *since, "refused what a neighbour passed on");
            (*at, *since) = (now, 0);
        }
    }

    /// Sets the gauges from what is known now.
    pub(super) fn seen(&self, registry: &Registry, view: &View) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.entries.set(number(registry.len()));
        self.departed.set(number(registry.departed()));
        self.graves.set(number(registry.graves()));
        let mut counts = [(Belief::Alive.name(), 0), ("unreachable", 0), ("suspect", 0)];
        let (mut verified, mut unverified) = (0, 0);
        for (_, node) in view.nodes().filter(|(_, node)| node.is_listed()) {
            match node.provider {
                Provider::Verified { .. } => verified += 1,
                Provider::Unverified { .. } => unverified += 1,
                Provider::None => {}
            }
            for (name, count) in &mut counts {
                *count += usize::from(*name == node.belief.name());
            }
        }
        for (state, count) in counts {
            self.beliefs.get_or_create(&State { state }).set(number(count));
        }
        for (state, count) in [("verified", verified), ("unverified", unverified)] {
            self.providers.get_or_create(&State { state }).set(number(count));
        }
    }

    /// What was refused, given up or dropped since the start: of what, why, how often. What never happened is left
    /// out.
    pub(super) fn refusals(&self) -> Vec<(&'static str, &'static str, u64)> {
        let reasons: Vec<_> =
            self.refusals_logged.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let entries = reasons.into_iter().map(|reason| {
            let counted = self.entries_refused.get(&Reason { reason }).map_or(0, |counter| counter.get());
            ("entries", reason, counted)
        });
        let others = [
            ("streams", "queue_full", &self.streams_refused),
            ("strangers", "no_gossip", &self.strangers),
            ("gossip", "queue_full", &self.parcels_dropped),
            ("gossip", "throttled", &self.reads_throttled),
            ("frames", "malformed", &self.frames_malformed),
            ("connections", "pings_failed", &self.connections_closed_by_ping),
            ("dials", "nobody_answers", &self.dials_failed),
            ("bootstrap_lists", "not_read", &self.lists_failed),
            ("kademlia", "stores_nothing", &self.lookups_refused),
        ];
        let others = others.map(|(what, reason, counter)| (what, reason, counter.get()));
        let incoming = ["denied", "handshake", "listener"].map(|reason| {
            ("incoming", reason, self.incoming_failed.get(&Reason { reason }).map_or(0, |counter| counter.get()))
        });
        let probes = measure::Refusal::ALL.map(|refusal| {
            let reason = refusal.reason();
            ("probes", reason, self.probes_refused.get(&Reason { reason }).map_or(0, |counter| counter.get()))
        });
        entries.chain(others).chain(incoming).chain(probes).filter(|(_, _, count)| *count > 0).collect()
    }
}
