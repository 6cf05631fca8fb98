//! WebSocket, with TLS or without: what looks like the web, for sites that let nothing else out.

use super::{certificate::BadCertificate, target::Target, tls::Tls};
use crate::peer::defaults::WSS_FRAME_MAX;
use futures::{FutureExt, future::BoxFuture};
use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
    tcp,
};
use std::{
    error::Error,
    io,
    pin::Pin,
    task::{Context, Poll},
};

/// WebSocket over the connections of `below`, which is to leave names in addresses alone: certificates are for them.
pub(super) fn over<T>(below: T, tls: &Tls) -> libp2p_websocket::Config<T>
where
    T: Transport + Send + Unpin + 'static,
    T::Error: Send + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
    T::Output: futures::AsyncRead + futures::AsyncWrite + Send + Unpin + 'static,
{
    let mut websocket = libp2p_websocket::Config::new(below);
    websocket.set_tls_config(tls.config().clone()).set_max_data_size(WSS_FRAME_MAX);
    websocket
}

/// A WebSocket connection does not come about.
#[derive(Debug, thiserror::Error)]
pub(super) enum WssError<E: Error + 'static> {
    #[error(transparent)]
    Certificate(BadCertificate),
    #[error(transparent)]
    Other(libp2p_websocket::error::Error<E>),
}

/// Says what to do about an error.
pub(super) fn explained<E: Error + 'static>(error: libp2p_websocket::error::Error<E>) -> WssError<E> {
    match error {
        libp2p_websocket::error::Error::Tls(error) => WssError::Certificate(error.into()),
        other => WssError::Other(other),
    }
}

/// TCP that resolves names itself.
pub(super) struct Named(tcp::tokio::Transport);

impl Named {
    pub(super) fn new() -> Self {
        Self(tcp::tokio::Transport::new(tcp::Config::default().nodelay(true)))
    }
}

impl Transport for Named {
    type Output = tcp::tokio::TcpStream;
    type Error = io::Error;
    type ListenerUpgrade = <tcp::tokio::Transport as Transport>::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<Self::Output>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.0.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.0.remove_listener(id)
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<io::Error>> {
        match Target::of(&address) {
            Some(to) => Ok(async move { to.connect().await.map(tcp::tokio::TcpStream) }.boxed()),
            None => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.0).poll(cx)
    }
}
