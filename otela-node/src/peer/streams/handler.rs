//! The half of the stream behaviour that lives in each connection's task.

use super::{EndingIo, Inbound, OpenError, ending::Life};
use futures::future::{Ready, ready};
use libp2p::{
    PeerId, Stream, StreamProtocol,
    core::upgrade::{InboundUpgrade, ReadyUpgrade, UpgradeInfo},
    swarm::{
        ConnectionHandler, ConnectionHandlerEvent, StreamUpgradeError, SubstreamProtocol,
        handler::{ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound},
    },
};
use prometheus_client::metrics::counter::Counter;
use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{mpsc, oneshot};

/// A request for a substream.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) protocol: StreamProtocol,
    pub(super) reply: oneshot::Sender<Result<Stream, OpenError>>,
}

/// The protocols of our substreams.
#[derive(Debug, Clone)]
pub(super) struct Substreams {
    /// Those that we accept.
    pub(super) accepted: Arc<[StreamProtocol]>,
    /// The one whose substreams do not make a connection one that is in use.
    pub(super) background: StreamProtocol,
}

impl Substreams {
    /// Whether a connection with such a substream is in use.
    pub(super) fn counts(&self, protocol: &StreamProtocol) -> bool {
        *protocol != self.background
    }
}

/// Opens and accepts the substreams of one connection. Each open travels with its own reply, so any number are
/// under way at once.
#[derive(Debug)]
pub(crate) struct Handler {
    requests: mpsc::Receiver<Open>,
    accepting: Accepting,
}

/// What happens to the substreams that a remote opens.
#[derive(Debug)]
pub(super) struct Accepting {
    pub(super) peer: PeerId,
    pub(super) protocols: Substreams,
    pub(super) inbound: mpsc::Sender<Inbound>,
    pub(super) refused: Counter,
    pub(super) life: Life,
}

impl Handler {
    pub(super) fn new(requests: mpsc::Receiver<Open>, accepting: Accepting) -> Self {
        Self { requests, accepting }
    }
}

impl Accepting {
    fn accept(&self, stream: Stream, protocol: StreamProtocol) {
        let peer = self.peer;
        let stream = EndingIo::new(stream, &self.life, self.protocols.counts(&protocol));
        if self.inbound.try_send(Inbound { peer, protocol, stream }).is_err() {
            // Dropping resets the substream, so the remote learns at once.
            self.refused.inc();
            tracing::warn!(%peer, "inbound stream refused: the queue is full");
        }
    }
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Infallible;
    type ToBehaviour = Infallible;
    type InboundProtocol = Accept;
    type OutboundProtocol = ReadyUpgrade<StreamProtocol>;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = (StreamProtocol, oneshot::Sender<Result<Stream, OpenError>>);

    fn listen_protocol(&self) -> SubstreamProtocol<Accept> {
        SubstreamProtocol::new(Accept(Arc::clone(&self.accepting.protocols.accepted)), ())
    }

    fn connection_keep_alive(&self) -> bool {
        // Which connections to keep is the driver's decision, not an idle timer's.
        true
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectionHandlerEvent<Self::OutboundProtocol, Self::OutboundOpenInfo, Infallible>> {
        match self.requests.poll_recv(cx) {
            Poll::Ready(Some(Open { protocol, reply })) => {
                let upgrade = ReadyUpgrade::new(protocol.clone());
                let protocol = SubstreamProtocol::new(upgrade, (protocol, reply));
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol })
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, event: Infallible) {
        match event {}
    }

    fn on_connection_event(
        &mut self,
        event: ConnectionEvent<Self::InboundProtocol, Self::OutboundProtocol, (), Self::OutboundOpenInfo>,
    ) {
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol: (stream, name), .. }) => {
                self.accepting.accept(stream, name);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info: (_, reply) }) => {
                // A caller that has gone drops the stream, which resets it.
                let _ = reply.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info: (name, reply), error }) => {
                let error = match error {
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported(name),
                    StreamUpgradeError::Timeout => OpenError::Timeout,
                    StreamUpgradeError::Io(error) => OpenError::Io(error),
                    StreamUpgradeError::Apply(never) => match never {},
                };
                let _ = reply.send(Err(error));
            }
            _ => {}
        }
    }
}

/// Accepts any of a peer's protocols and tells which it was.
#[derive(Debug, Clone)]
pub(crate) struct Accept(Arc<[StreamProtocol]>);

impl UpgradeInfo for Accept {
    type Info = StreamProtocol;
    type InfoIter = std::vec::IntoIter<StreamProtocol>;

    fn protocol_info(&self) -> Self::InfoIter {
        Vec::from(&*self.0).into_iter()
    }
}

impl InboundUpgrade<Stream> for Accept {
    type Output = (Stream, StreamProtocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, name: StreamProtocol) -> Self::Future {
        ready(Ok((stream, name)))
    }
}
