//! A TCP port that stays a test's own while its process is started, ended and started again.

use std::{io, net::SocketAddr};
use tokio::net::TcpSocket;

/// A port of 127.0.0.1 that nothing listens on and that the system gives to no other socket. A process that is told to
/// listen on it can, as often as it likes; until then connections to it are refused.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: TcpSocket,
    address: SocketAddr,
}

impl ReservedPort {
    /// Reserves a port until this is dropped.
    ///
    /// # Panics
    /// If the system has none.
    #[must_use]
    pub fn new() -> Self {
        Self::reserve().expect("the system has a free port")
    }

    /// Binds a socket that shares its address with a later listener, and never listens itself.
    fn reserve() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = socket.local_addr()?;
        Ok(Self { _socket: socket, address })
    }

    /// The address that is reserved.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Default for ReservedPort {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_listener_comes_and_goes_and_comes_again() {
        let port = ReservedPort::new();
        for _ in 0..2 {
            let refused = TcpStream::connect(port.address()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(port.address()).unwrap();
            let _client = TcpStream::connect(port.address()).unwrap();
            drop(listener.accept().unwrap());
        }
    }
}
