//! The ways a peer talks: TCP with Noise and yamux, and QUIC.
//!
//! Built by hand rather than by libp2p's builder, so that every connection, whatever its transport, passes one
//! place before the swarm sees it.

mod proven;

use super::defaults::{HANDSHAKE_WITHIN, MUXER_STREAMS_MAX, QUIC_SILENCE_MAX};
use futures::future::Either;
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{muxing::StreamMuxerBox, transport::Boxed, upgrade::Version},
    identity::Keypair,
    noise, quic, relay, tcp, yamux,
};
use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
};

/// The transport cannot be set up: the key does not suit it.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up encryption with this key")]
pub struct TransportError(#[source] noise::Error);

/// Every transport, encrypted and multiplexed, and the behaviour that belongs to the one over relays.
pub(super) fn build(
    key: &Keypair,
) -> Result<(Boxed<(PeerId, StreamMuxerBox)>, relay::client::Behaviour), TransportError> {
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(MUXER_STREAMS_MAX);
    let noise = noise::Config::new(key).map_err(TransportError)?;
    let (circuits, client) = relay::client::new(key.public().to_peer_id());
    let circuits = circuits
        .upgrade(Version::V1Lazy)
        .authenticate(noise.clone())
        .multiplex(muxer.clone())
        .timeout(HANDSHAKE_WITHIN);
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(muxer)
        .timeout(HANDSHAKE_WITHIN);
    let mut quic_config = quic::Config::new(key);
    quic_config.max_concurrent_stream_limit = MUXER_STREAMS_MAX as u32;
    // A process that is killed sends no reset over UDP: silence is all that tells.
    quic_config.max_idle_timeout = QUIC_SILENCE_MAX.as_millis() as u32;
    quic_config.keep_alive_interval = QUIC_SILENCE_MAX / 3;
    let quic = quic::tokio::Transport::new(quic_config);
    // Circuits come first: the others would take an address through a relay for that of the relay.
    let transport = circuits
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .or_transport(tcp.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))))
        .or_transport(quic.map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer))))
        .map(|either, _| match either {
            Either::Left(Either::Left(out) | Either::Right(out)) | Either::Right(out) => out,
        })
        .and_then(|connected, endpoint| proven::by_address(connected, &endpoint))
        .boxed();
    Ok((transport, client))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_noticed() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let taken = format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
        assert_eq!(check_free(&taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(holder);
        check_free(&taken).unwrap();
        check_free(&"/ip4/0.0.0.0/tcp/0".parse().unwrap()).unwrap();
    }
}
