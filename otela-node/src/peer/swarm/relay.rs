//! Relaying for others: circuit relay v2 with limits made for serving rather than for introductions.

use crate::peer::{config::RelayLimits, defaults::RESERVATION_FOR, metrics::PeerMetrics};
use libp2p::{
    PeerId,
    relay::{Behaviour, Config, Event, Status},
};
use std::{collections::HashSet, io, num::NonZeroU32, time::Duration};

/// Reservations that one peer may ask for at once, and how often after that.
const RESERVATION_RATE: (u32, Duration) = (16, Duration::from_secs(2));
/// The same of circuits: an ingress that starts in a large mesh opens one to every node.
const CIRCUIT_RATE: (u32, Duration) = (1_024, Duration::from_millis(50));
/// Reservations of one peer: one for each of its connections.
const RESERVATIONS_PER_PEER_MAX: usize = 8;

/// The behaviour of a relay. Whoever may connect is a member, so that no address is limited, only peers are: a whole
/// cluster may come from one address.
pub(super) fn behaviour(me: PeerId, limits: &RelayLimits) -> Behaviour {
    let mut config = Config {
        max_reservations: limits.reservations_max,
        max_reservations_per_peer: RESERVATIONS_PER_PEER_MAX,
        reservation_duration: RESERVATION_FOR,
        reservation_rate_limiters: Vec::new(),
        max_circuits: limits.circuits_max,
        max_circuits_per_peer: limits.circuits_per_peer_max,
        // The wire has seconds in 32 bits, and libp2p would panic.
        max_circuit_duration: limits.circuit_for_max.min(Duration::from_secs(u32::MAX.into())),
        // Here no limit is written as zero; of the duration zero would mean to close at once.
        max_circuit_bytes: limits.circuit_bytes_max.unwrap_or(0),
        circuit_src_rate_limiters: Vec::new(),
    };
    let positive = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    config = config.reservation_rate_per_peer(positive(RESERVATION_RATE.0), RESERVATION_RATE.1);
    config = config.circuit_src_per_peer(positive(CIRCUIT_RATE.0), CIRCUIT_RATE.1);
    let mut behaviour = Behaviour::new(me, config);
    behaviour.set_status(Some(Status::Enable));
    behaviour
}

/// Who has a reservation here, for the metrics.
#[derive(Debug, Default)]
pub(super) struct Guests(HashSet<PeerId>);

impl Guests {
    /// Counts an event. `is_connected` tells whether a connection to a peer still stands.
    pub(super) fn on_event(&mut self, event: &Event, is_connected: impl Fn(&PeerId) -> bool, metrics: &PeerMetrics) {
        match event {
            Event::ReservationReqAccepted { src_peer_id, .. } => {
                self.0.insert(*src_peer_id);
            }
            // Said of each connection that ends, whether it had one or not.
            Event::ReservationClosed { src_peer_id } if is_connected(src_peer_id) => {}
            Event::ReservationClosed { src_peer_id } | Event::ReservationTimedOut { src_peer_id } => {
                self.0.remove(src_peer_id);
            }
            Event::ReservationReqDenied { src_peer_id, .. } => {
                metrics.relay_refused("reservation");
                tracing::warn!(peer = %src_peer_id, "reservation refused: too many, or asked for too often");
            }
            Event::CircuitReqDenied { src_peer_id, dst_peer_id, status } => {
                metrics.relay_refused("circuit");
                tracing::debug!(from = %src_peer_id, to = %dst_peer_id, ?status, "circuit refused");
            }
            Event::CircuitReqAccepted { .. } => _ = metrics.circuits.inc(),
            Event::CircuitClosed { error, .. } => {
                metrics.circuits.dec();
                if error.as_ref().is_some_and(is_limit) {
                    metrics.circuits_cut.inc();
                    tracing::warn!(
                        "a circuit was cut at this relay's limit: see --circuit-bytes-max and --circuit-for-max"
                    );
                }
            }
            _ => {}
        }
        metrics.reservations_given.set(i64::try_from(self.0.len()).unwrap_or(i64::MAX));
    }
}

/// What libp2p says when a limit is reached; of peers that went away it says something else.
fn is_limit(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut || error.to_string().contains("Max circuit bytes")
}
