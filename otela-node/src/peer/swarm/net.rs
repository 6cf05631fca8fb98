//! What the swarm is made of: transports, behaviours and their limits.

use super::{crowd, kademlia, pings, relay};
use crate::peer::{
    admission::Admission,
    config::PeerConfig,
    defaults::{
        CONNECTIONS_MAX, CONNECTIONS_PENDING_MAX, CONNECTIONS_PENDING_WIDE, CONNECTIONS_PER_PEER_MAX, IDENTIFY_EVERY,
    },
    metrics::PeerMetrics,
    streams,
    transport::{self, Answers, TransportError},
};
use libp2p::{
    StreamProtocol, Swarm,
    connection_limits::{self, ConnectionLimits},
    core::upgrade::Version,
    dcutr, identify,
    swarm::{self, NetworkBehaviour, behaviour::toggle::Toggle},
};
use otela_proto::payload::Role;
use rustix::process::{Resource, getrlimit};
use std::{
    num::{NonZeroU8, NonZeroUsize},
    time::Duration,
};

/// The behaviours. The limits come first: a connection that they deny is then never seen by the others.
#[derive(NetworkBehaviour)]
pub(super) struct Net {
    pub(super) limits: connection_limits::Behaviour,
    pub(super) crowd: crowd::Behaviour,
    pub(super) streams: streams::Behaviour,
    pub(super) pings: pings::Behaviour,
    /// Tells peers how they look from here, which is what they can be dialled at behind a NAT.
    pub(super) identify: identify::Behaviour,
    pub(super) relay: Toggle<libp2p::relay::Behaviour>,
    pub(super) relay_client: libp2p::relay::client::Behaviour,
    pub(super) dcutr: dcutr::Behaviour,
    pub(super) kademlia: kademlia::Behaviour,
}

/// Incoming handshakes under way: each has a file, and those of members and requests need theirs.
fn pending_incoming() -> u32 {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let part = u32::try_from(files / 8).unwrap_or(u32::MAX);
    part.clamp(CONNECTIONS_PENDING_MAX, CONNECTIONS_PENDING_WIDE)
}

/// A swarm with `streams` as one of its behaviours. It does not listen yet.
pub(super) fn swarm(
    config: &PeerConfig,
    (streams, kademlia): (streams::Behaviour, StreamProtocol),
    admission: &Admission,
    metrics: &PeerMetrics,
    answers: &Answers,
) -> Result<Swarm<Net>, TransportError> {
    let key = config.identity.keypair();
    let me = key.public().to_peer_id();
    let relays = config.roles.contains(&Role::Relay);
    let carried = relays.then(|| metrics.carried.clone());
    let (transport, relay_client) = transport::build(key, &config.egress, admission, carried, answers)?;
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(pending_incoming()))
        .with_max_pending_outgoing(Some(CONNECTIONS_PENDING_MAX))
        .with_max_established(Some(CONNECTIONS_MAX))
        .with_max_established_per_peer(Some(CONNECTIONS_PER_PEER_MAX));
    // Listen addresses are told in the registry, signed and filtered.
    let identify = identify::Config::new(format!("/otela/{}", config.mesh), key.public())
        .with_agent_version(format!("otela/{}", config.software))
        .with_hide_listen_addrs(true)
        .with_cache_size(0)
        .with_interval(IDENTIFY_EVERY);
    let net = Net {
        limits: connection_limits::Behaviour::new(limits),
        crowd: crowd::Behaviour::new(metrics.connections_denied.clone()),
        streams,
        pings: pings::Behaviour::new(),
        identify: identify::Behaviour::new(identify),
        relay: relays.then(|| relay::behaviour(me, &config.relay)).into(),
        relay_client,
        dcutr: dcutr::Behaviour::new(me),
        kademlia: kademlia::Behaviour::new(me, kademlia, config.is_public(), metrics.clone()),
    };
    let swarm_config = swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(Duration::from_hours(24))
        .with_substream_upgrade_protocol_override(Version::V1Lazy)
        .with_max_negotiating_inbound_streams(1_024)
        .with_notify_handler_buffer_size(NonZeroUsize::MIN.saturating_add(63))
        .with_per_connection_event_buffer_size(64)
        .with_dial_concurrency_factor(NonZeroU8::MIN.saturating_add(7));
    Ok(Swarm::new(transport, net, me, swarm_config))
}
