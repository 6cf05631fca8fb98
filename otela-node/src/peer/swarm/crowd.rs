//! A bound on the handshakes that one address may have under way, so that one host which opens connections and says
//! nothing cannot keep members out.

use crate::peer::{defaults::CONNECTIONS_PENDING_PER_HOST_MAX, transport::socket_of};
use libp2p::{
    Multiaddr, PeerId,
    core::{Endpoint, transport::PortUse},
    swarm::{
        ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
        ToSwarm, dummy,
    },
};
use prometheus_client::metrics::counter::Counter;
use std::{
    collections::HashMap,
    convert::Infallible,
    net::{IpAddr, Ipv6Addr},
    task::{Context, Poll},
};

/// A host has too many handshakes under way.
#[derive(Debug, thiserror::Error)]
#[error("too many handshakes of {0} are under way")]
struct Crowded(IpAddr);

/// Denies connections of hosts that have too many under way.
#[derive(Debug)]
pub(super) struct Behaviour {
    pending: HashMap<ConnectionId, IpAddr>,
    of_host: HashMap<IpAddr, usize>,
    denied: Counter,
}

impl Behaviour {
    /// `denied` counts what is denied.
    pub(super) fn new(denied: Counter) -> Self {
        Self { pending: HashMap::new(), of_host: HashMap::new(), denied }
    }

    fn begins(&mut self, id: ConnectionId, remote: &Multiaddr) -> Result<(), Crowded> {
        // One at a relay has no address of its own; the relay counts those that it carries. And this machine is no
        // stranger to itself.
        let Some((socket, _)) = socket_of(remote).filter(|(socket, _)| !socket.ip().to_canonical().is_loopback())
        else {
            return Ok(());
        };
        let host = host(socket.ip());
        let under_way = self.of_host.entry(host).or_default();
        if *under_way >= CONNECTIONS_PENDING_PER_HOST_MAX {
            self.denied.inc();
            return Err(Crowded(host));
        }
        *under_way += 1;
        self.pending.insert(id, host);
        Ok(())
    }

    fn ends(&mut self, id: ConnectionId) {
        let Some(host) = self.pending.remove(&id) else { return };
        if let Some(under_way) = self.of_host.get_mut(&host) {
            *under_way -= 1;
            if *under_way == 0 {
                self.of_host.remove(&host);
            }
        }
    }
}

/// Whoever has an IPv6 address has a network of them.
fn host(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        id: ConnectionId,
        _local: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.begins(id, remote).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        _peer: PeerId,
        _local: &Multiaddr,
        _remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.ends(id);
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _id: ConnectionId,
        _peer: PeerId,
        _address: &Multiaddr,
        _role: Endpoint,
        _port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        if let FromSwarm::ListenFailure(failure) = event {
            self.ends(failure.connection_id);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_its_share_and_no_more() {
        let mut crowd = Behaviour::new(Counter::default());
        let at = |host: &str, n: usize| format!("{host}/tcp/{}", 1_000 + n).parse::<Multiaddr>().unwrap();
        for n in 0..CONNECTIONS_PENDING_PER_HOST_MAX {
            crowd.begins(ConnectionId::new_unchecked(n), &at("/ip4/192.0.2.1", n)).unwrap();
        }
        let next = ConnectionId::new_unchecked(9_999);
        assert!(crowd.begins(next, &at("/ip4/192.0.2.1", 9)).is_err());
        assert!(crowd.begins(next, &at("/ip4/192.0.2.2", 9)).is_ok(), "another one");
        assert_eq!(crowd.denied.get(), 1);
        crowd.ends(ConnectionId::new_unchecked(0));
        assert!(crowd.begins(ConnectionId::new_unchecked(0), &at("/ip4/192.0.2.1", 9)).is_ok(), "one has ended");
        for n in 0..CONNECTIONS_PENDING_PER_HOST_MAX {
            crowd.ends(ConnectionId::new_unchecked(n));
        }
        crowd.ends(next);
        assert!(crowd.of_host.is_empty() && crowd.pending.is_empty(), "nothing is kept of those that are through");
    }

    #[test]
    fn an_ipv6_host_is_its_network() {
        let ip = |text: &str| host(text.parse().unwrap());
        assert_eq!(ip("2001:db8::1"), ip("2001:db8::ffff"));
        assert_ne!(ip("2001:db8::1"), ip("2001:db8:0:1::1"));
        assert_eq!(ip("::ffff:192.0.2.1"), ip("192.0.2.1"));
    }
}
