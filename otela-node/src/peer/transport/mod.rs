//! The ways a peer talks: TCP with Noise and yamux, QUIC, and for sites that let neither out WebSocket and the site's
//! HTTP proxy.
//!
//! Built by hand rather than by libp2p's builder, so that every connection, whatever its transport, passes one
//! place before the swarm sees it.

mod answers;
mod certificate;
mod connect;
mod counted;
mod proven;
mod proxy;
mod target;
mod tls;
mod wss;

pub(super) use answers::Answers;
pub(super) use counted::Carried;
pub(super) use proxy::is_proxied;
pub use proxy::{Proxy, ProxyError};
pub use tls::{Tls, TlsError};

use super::{
    admission::Admission,
    defaults::{HANDSHAKE_WITHIN, MUXER_STREAMS_MAX, QUIC_SILENCE_MAX},
};
use answers::Followed;
use connect::{Connect, Inside};
use futures::{AsyncRead, AsyncWrite, future::Either};
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{ConnectedPoint, muxing::StreamMuxerBox, transport::Boxed, upgrade::Version},
    identity::Keypair,
    noise, quic, relay, tcp, yamux,
};
use std::{
    error::Error,
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
};
use target::Target;

/// The transport cannot be set up: the key does not suit it.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up encryption with this key")]
pub struct TransportError(#[source] noise::Error);

/// What there is beside plain TCP and QUIC to get out of a site.
#[derive(Debug, Clone, Default)]
pub struct Egress {
    /// The site's HTTP proxy: for what cannot be reached without it.
    pub proxy: Option<Proxy>,
    /// The certificates of WebSocket connections.
    pub tls: Tls,
}

/// Proven to be of a peer, and multiplexed.
type Proven = Boxed<(PeerId, StreamMuxerBox)>;

/// Every transport, encrypted, multiplexed and behind the door of `admission`. What they
/// carry is counted, if wished, and `answers` tells where somebody is. And the behaviour that belongs to the one over
/// relays.
pub(super) fn build(
    key: &Keypair,
    egress: &Egress,
    admission: &Admission,
    carried: Option<Carried>,
    answers: &Answers,
) -> Result<(Proven, relay::client::Behaviour), TransportError> {
    let noise = noise::Config::new(key).map_err(TransportError)?;
    let (circuits, client) = relay::client::new(key.public().to_peer_id());
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let wss = wss::over(wss::Named::new(), &egress.tls);
    // Circuits come first: the others would take an address through a relay for that of the relay. What leads through
    // a proxy follows, for the same reason, and TCP has what is left.
    let mut transport = proven(circuits, &noise);
    if let Some(proxy) = &egress.proxy {
        let connect = Connect::new(proxy.clone());
        let proxied = Inside(wss::over(connect.clone(), &egress.tls).map_err(wss::explained).or_transport(connect));
        transport = either(transport, proven(proxied, &noise));
    }
    let transport = either(transport, proven(wss.map_err(wss::explained), &noise));
    let answered = answers.clone();
    let tcp = tcp.map(move |stream, endpoint| {
        if let ConnectedPoint::Dialer { address, .. } = endpoint {
            answered.answered(&address);
        }
        stream
    });
    let transport = either(transport, proven(tcp, &noise));
    let transport = either(transport, over_quic(key));
    let transport = transport.and_then(|connected, endpoint| proven::by_address(connected, &endpoint)).map(
        move |(peer, muxer), _| match carried {
            Some(carried) => (peer, carried.count(muxer)),
            None => (peer, muxer),
        },
    );
    let inner = admission.guard(transport.boxed());
    Ok((Followed { inner, answers: answers.clone() }.boxed(), client))
}

/// Streams of bytes as connections of peers.
fn proven<T>(transport: T, noise: &noise::Config) -> Proven
where
    T: Transport + Send + Unpin + 'static,
    T::Output: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    T::Error: Error + Send + Sync + 'static,
    T::Dial: Send + 'static,
    T::ListenerUpgrade: Send + 'static,
{
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(MUXER_STREAMS_MAX);
    let proven = transport.upgrade(Version::V1Lazy).authenticate(noise.clone()).multiplex(muxer);
    proven.timeout(HANDSHAKE_WITHIN).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed()
}

fn over_quic(key: &Keypair) -> Proven {
    let mut config = quic::Config::new(key);
    config.max_concurrent_stream_limit = MUXER_STREAMS_MAX as u32;
    // A process that is killed sends no reset over UDP: silence is all that tells.
    config.max_idle_timeout = QUIC_SILENCE_MAX.as_millis() as u32;
    config.keep_alive_interval = QUIC_SILENCE_MAX / 3;
    quic::tokio::Transport::new(config).map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))).boxed()
}

/// The first one, and the second for what the first does not take.
fn either(first: Proven, second: Proven) -> Proven {
    let out = |either, _| match either {
        Either::Left(out) | Either::Right(out) => out,
    };
    first.or_transport(second).map(out).boxed()
}

/// libp2p listens with `SO_REUSEPORT`, so two processes of one user can bind the same port and the kernel deals
/// connections out at random. A bind without that option tells whether the port is free.
///
/// # Errors
/// As the system gives them.
pub fn check_free(address: &Multiaddr) -> io::Result<()> {
    match socket_of(address) {
        Some((socket, true)) if socket.port() != 0 => TcpListener::bind(socket).map(drop),
        Some((socket, false)) if socket.port() != 0 => UdpSocket::bind(socket).map(drop),
        _ => Ok(()),
    }
}

/// The socket of an address and whether it is TCP.
pub(super) fn socket_of(address: &Multiaddr) -> Option<(SocketAddr, bool)> {
    use libp2p::multiaddr::Protocol;
    let mut parts = address.iter();
    let ip = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some((SocketAddr::new(ip, port), true)),
        Protocol::Udp(port) => Some((SocketAddr::new(ip, port), false)),
        _ => None,
    }
}

/// Whether a TCP connection to `remote` may be one to this address. Of a name only the port is known.
pub(super) fn may_lead_to(address: &Multiaddr, remote: &SocketAddr) -> bool {
    Target::of(address).is_some_and(|target| target.port == remote.port() && target.host.may_be(remote.ip()))
}

#[cfg(test)]
mod tests;
