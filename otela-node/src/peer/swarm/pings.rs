//! Pings: rare ones for most connections, and frequent ones for those that look like the web, since proxies and web
//! servers cut what is silent for half a minute or more.

use super::addresses::is_relayed;
use crate::peer::{
    defaults::{PING_EVERY, PING_WITHIN, WEB_PING_EVERY},
    streams::Carrier,
    transport::is_proxied,
};
use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    ping::{self, Event},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
        ToSwarm,
    },
};
use std::{
    task::{Context, Poll},
    time::Duration,
};

/// libp2p's pings, at two rates.
pub(super) struct Behaviour {
    /// Passes on what is reported of all connections.
    rare: ping::Behaviour,
    frequent: ping::Behaviour,
}

impl Behaviour {
    pub(super) fn new() -> Self {
        let every = |interval: Duration| ping::Config::new().with_interval(interval).with_timeout(PING_WITHIN);
        Self { rare: ping::Behaviour::new(every(PING_EVERY)), frequent: ping::Behaviour::new(every(WEB_PING_EVERY)) }
    }
}

/// Whether a connection to this address may be cut by somebody between when it is silent. One over a relay runs on another
/// connection, which is pinged itself.
fn is_watched(address: &Multiaddr) -> bool {
    !is_relayed(address) && (is_proxied(address) || Carrier::of(address) == Carrier::Wss)
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = <ping::Behaviour as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        // Who has dialled pings often enough, and is answered.
        self.rare.handle_established_inbound_connection(id, peer, local, remote)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        address: &Multiaddr,
        role: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        let pings = if is_watched(address) { &mut self.frequent } else { &mut self.rare };
        pings.handle_established_outbound_connection(id, peer, address, role, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        self.rare.on_swarm_event(event);
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<Self>) {
        self.rare.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        self.rare.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_the_web_is_pinged_often() {
        let relay = PeerId::random();
        for (address, watched) in [
            ("/ip4/192.0.2.1/tcp/443".to_owned(), false),
            ("/ip4/192.0.2.1/udp/443/quic-v1".to_owned(), false),
            ("/dns4/relay.example/tcp/443/wss".to_owned(), true),
            ("/ip4/192.0.2.1/tcp/443/tls/ws".to_owned(), true),
            ("/dns/proxy.site/tcp/3128/http/ip4/192.0.2.1/tcp/443".to_owned(), true),
            (format!("/dns4/relay.example/tcp/443/wss/p2p/{relay}/p2p-circuit"), false),
        ] {
            assert_eq!(is_watched(&address.parse().unwrap()), watched, "{address}");
        }
    }
}
