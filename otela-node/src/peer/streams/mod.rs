//! Our own stream behaviour: substreams on a *chosen* connection, opened concurrently, none lost silently.
//!
//! [`Streams`] is the cloneable handle: a table of the open connections to each peer, and a way to open a
//! substream on one of them without going through the swarm's task. [`Behaviour`] keeps the table true. Inbound
//! substreams go to one bounded queue; when it is full they are reset and counted.

mod connection;
mod ending;
mod handler;
mod limit;
mod table;

pub(super) use connection::Carrier;
pub use connection::{Connection, Inbound, OpenError, Path};
pub use ending::EndingIo;
pub(super) use ending::now_ms;
pub(super) use limit::CircuitLimit;
pub(super) use table::{Relays, Streams};

use ending::Life;
use handler::{Accepting, Handler, Open, Substreams};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{ConnectedPoint, Endpoint, transport::PortUse},
    swarm::{ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, ToSwarm},
};
use prometheus_client::metrics::counter::Counter;
use std::{
    collections::HashMap,
    convert::Infallible,
    task::{Context, Poll},
};
use tokio::sync::mpsc;

/// Inbound substreams that wait to be taken up.
const INBOUND_QUEUE: usize = 4_096;
/// Requests to open that one connection has not looked at yet.
const OPEN_QUEUE: usize = 1_024;

/// Keeps [`Streams`] true and gives inbound substreams out.
#[derive(Debug)]
pub(super) struct Behaviour {
    streams: Streams,
    protocols: Substreams,
    inbound: mpsc::Sender<Inbound>,
    refused: Counter,
    /// Connections whose establishment a sibling behaviour may still deny: not in the table yet.
    pending: HashMap<ConnectionId, (mpsc::Sender<Open>, Life)>,
}

impl Behaviour {
    /// A behaviour that accepts `protocols`. Substreams of `background` do not make a connection one that is in use.
    /// `refused` counts inbound substreams that found the queue full.
    pub(super) fn new(
        protocols: Vec<StreamProtocol>,
        background: StreamProtocol,
        refused: Counter,
    ) -> (Self, Streams, mpsc::Receiver<Inbound>) {
        let (inbound, accepted) = mpsc::channel(INBOUND_QUEUE);
        let streams = Streams::default();
        let protocols = Substreams { accepted: protocols.into(), background };
        let behaviour = Self { streams: streams.clone(), protocols, inbound, refused, pending: HashMap::new() };
        (behaviour, streams, accepted)
    }

    fn handler(&mut self, id: ConnectionId, peer: PeerId) -> Handler {
        let (opens, requests) = mpsc::channel(OPEN_QUEUE);
        let life = Life::default();
        self.pending.insert(id, (opens, life.clone()));
        let protocols = self.protocols.clone();
        let accepting =
            Accepting { peer, protocols, inbound: self.inbound.clone(), refused: self.refused.clone(), life };
        Handler::new(requests, accepting)
    }

    fn established(&mut self, id: ConnectionId, peer: PeerId, endpoint: &ConnectedPoint) {
        let Some((opens, life)) = self.pending.remove(&id) else { return };
        self.streams.add(Connection::new(id, peer, endpoint, (opens, self.protocols.clone()), life));
    }

    fn closed(&mut self, id: ConnectionId, peer: &PeerId) {
        self.streams.give_up(peer, id);
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _local: &Multiaddr,
        _remote: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(id, peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _address: &Multiaddr,
        _role: Endpoint,
        _port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler(id, peer))
    }

    fn on_swarm_event(&mut self, event: FromSwarm) {
        match event {
            FromSwarm::ConnectionEstablished(e) => self.established(e.connection_id, e.peer_id, e.endpoint),
            FromSwarm::ConnectionClosed(e) => self.closed(e.connection_id, &e.peer_id),
            FromSwarm::DialFailure(e) => drop(self.pending.remove(&e.connection_id)),
            FromSwarm::ListenFailure(e) => drop(self.pending.remove(&e.connection_id)),
            _ => {}
        }
    }

    fn on_connection_handler_event(&mut self, _peer: PeerId, _id: ConnectionId, event: Infallible) {
        match event {}
    }

    fn poll(&mut self, _cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}
