//! What the swarm is made of: transports, behaviours and their limits.

use crate::peer::{
    defaults::{CONNECTIONS_MAX, CONNECTIONS_PENDING_MAX, CONNECTIONS_PER_PEER_MAX, PING_EVERY, PING_WITHIN},
    streams,
    transport::{self, TransportError},
};
use libp2p::{
    Swarm,
    connection_limits::{self, ConnectionLimits},
    core::upgrade::Version,
    identity::Keypair,
    ping,
    swarm::{self, NetworkBehaviour},
};
use std::{
    num::{NonZeroU8, NonZeroUsize},
    time::Duration,
};

/// The behaviours. The limits come first: a connection that they deny is then never seen by the others.
#[derive(NetworkBehaviour)]
pub(super) struct Net {
    pub(super) limits: connection_limits::Behaviour,
    pub(super) streams: streams::Behaviour,
    pub(super) ping: ping::Behaviour,
}

/// A swarm with `streams` as one of its behaviours. It does not listen yet.
pub(super) fn swarm(key: &Keypair, streams: streams::Behaviour) -> Result<Swarm<Net>, TransportError> {
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(CONNECTIONS_PENDING_MAX))
        .with_max_pending_outgoing(Some(CONNECTIONS_PENDING_MAX))
        .with_max_established(Some(CONNECTIONS_MAX))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
    let net = Net {
        limits: connection_limits::Behaviour::new(limits),
        streams,
        ping: ping::Behaviour::new(ping::Config::new().with_interval(PING_EVERY).with_timeout(PING_WITHIN)),
    };
    let config = swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(Duration::from_hours(24))
        .with_substream_upgrade_protocol_override(Version::V1Lazy)
        .with_max_negotiating_inbound_streams(1_024)
        .with_notify_handler_buffer_size(NonZeroUsize::MIN.saturating_add(63))
        .with_per_connection_event_buffer_size(64)
        .with_dial_concurrency_factor(NonZeroU8::MIN.saturating_add(7));
    Ok(Swarm::new(transport::build(key)?, net, key.public().to_peer_id(), config))
}
