//! HTTP CONNECT: bytes through the proxy of a site, to wherever it lets them.

use super::{
    proxy::{Proxy, inside},
    target::Target,
};
use futures::{
    FutureExt,
    future::{BoxFuture, Pending},
};
use http::{Method, Request, StatusCode, header};
use http_body_util::Empty;
use hyper::{body::Bytes, client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use libp2p::{
    Multiaddr, Transport,
    core::transport::{DialOpts, ListenerId, TransportError, TransportEvent},
};
use std::{
    convert::Infallible,
    future::pending,
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

/// What goes through the proxy.
pub(super) type Tunnel = Compat<TokioIo<Upgraded>>;

/// Why the proxy leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("cannot reach the proxy {proxy}")]
    NotReached { proxy: String, source: io::Error },
    #[error("the proxy {proxy} wants name and password: give them as http://NAME:PASSWORD@{proxy} in https_proxy")]
    WhoAsks { proxy: String },
    #[error("the proxy {proxy} does not lead to {to}: {status}")]
    Refused { proxy: String, to: String, status: StatusCode },
    #[error("the proxy {proxy} does not speak HTTP")]
    NotHttp { proxy: String, source: hyper::Error },
}

/// Dials whatever TCP address it is given by asking the proxy for it. Nobody is listened for.
#[derive(Debug, Clone)]
pub(super) struct Connect(Proxy);

impl Connect {
    pub(super) fn new(proxy: Proxy) -> Self {
        Self(proxy)
    }
}

/// Asks the proxy for a tunnel to `to`. Names are its to resolve.
async fn connect(proxy: Proxy, to: Target) -> Result<Tunnel, ConnectError> {
    let (proxy_name, to) = (|| proxy.target().to_string(), to.to_string());
    let tcp = proxy.target().connect().await;
    let tcp = tcp.map_err(|source| ConnectError::NotReached { proxy: proxy_name(), source })?;
    let not_http = |source| ConnectError::NotHttp { proxy: proxy_name(), source };
    let mut request = Request::builder().method(Method::CONNECT).uri(&to).header(header::HOST, &to);
    if let Some(auth) = proxy.auth() {
        request = request.header(header::PROXY_AUTHORIZATION, auth);
    }
    let request = request.body(Empty::<Bytes>::new()).expect("an authority is a URI");
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(not_http)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(not_http)?;
        match answer.status() {
            status if status.is_success() => hyper::upgrade::on(answer).await.map_err(not_http),
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(ConnectError::WhoAsks { proxy: proxy_name() }),
            status => Err(ConnectError::Refused { proxy: proxy_name(), to: to.clone(), status }),
        }
    };
    // What ends it is told by the answer.
    let carried = async {
        let _ = connection.with_upgrades().await;
        pending::<Infallible>().await
    };
    tokio::select! {
        answer = answer => answer.map(|upgraded| TokioIo::new(upgraded).compat()),
        never = carried => match never {},
    }
}

impl Transport for Connect {
    type Output = Tunnel;
    type Error = ConnectError;
    type ListenerUpgrade = Pending<Result<Tunnel, ConnectError>>;
    type Dial = BoxFuture<'static, Result<Tunnel, ConnectError>>;

    fn listen_on(&mut self, _: ListenerId, address: Multiaddr) -> Result<(), TransportError<ConnectError>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(&mut self, address: Multiaddr, _: DialOpts) -> Result<Self::Dial, TransportError<ConnectError>> {
        match Target::of(&address) {
            Some(to) => Ok(connect(self.0.clone(), to).boxed()),
            None => Err(TransportError::MultiaddrNotSupported(address)),
        }
    }

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<TransportEvent<Self::ListenerUpgrade, ConnectError>> {
        Poll::Pending
    }
}

/// Takes the addresses that lead through a proxy, and dials what is inside them with the transport it has, which is to
/// go through the proxy.
#[derive(Debug)]
pub(super) struct Inside<T>(pub(super) T);

impl<T: Transport + Unpin> Transport for Inside<T> {
    type Output = T::Output;
    type Error = T::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = T::Dial;

    fn listen_on(&mut self, _: ListenerId, address: Multiaddr) -> Result<(), TransportError<T::Error>> {
        Err(TransportError::MultiaddrNotSupported(address))
    }

    fn remove_listener(&mut self, _: ListenerId) -> bool {
        false
    }

    fn dial(&mut self, address: Multiaddr, opts: DialOpts) -> Result<T::Dial, TransportError<T::Error>> {
        let Some(inside) = inside(&address) else { return Err(TransportError::MultiaddrNotSupported(address)) };
        self.0.dial(inside, opts).map_err(|error| match error {
            TransportError::MultiaddrNotSupported(_) => TransportError::MultiaddrNotSupported(address),
            other => other,
        })
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TransportEvent<T::ListenerUpgrade, T::Error>> {
        Pin::new(&mut self.0).poll(cx)
    }
}
