//! What an address of TCP leads to.

use libp2p::{Multiaddr, multiaddr::Protocol};
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};
use tokio::net::TcpStream;

/// A host, as an address names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    Ip(IpAddr),
    /// With the family of its addresses that is wanted, if only one is.
    Name(String, Option<Family>),
}

/// The families of IP addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// A port of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
}

impl Target {
    /// What the first two parts of an address lead to; `None` if that is not TCP.
    pub(super) fn of(address: &Multiaddr) -> Option<Self> {
        let mut parts = address.iter();
        let host = match parts.next()? {
            Protocol::Ip4(ip) => Host::Ip(ip.into()),
            Protocol::Ip6(ip) => Host::Ip(ip.into()),
            Protocol::Dns(name) => Host::Name(name.into_owned(), None),
            Protocol::Dns4(name) => Host::Name(name.into_owned(), Some(Family::V4)),
            Protocol::Dns6(name) => Host::Name(name.into_owned(), Some(Family::V6)),
            _ => return None,
        };
        match parts.next()? {
            Protocol::Tcp(port) => Some(Self { host, port }),
            _ => None,
        }
    }

    /// Whether it is this machine, or one on the same cable: nobody else can lead there.
    pub(super) fn is_near(&self) -> bool {
        match &self.host {
            Host::Ip(ip) => match ip.to_canonical() {
                IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
                IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified(),
            },
            Host::Name(name, _) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                name == "localhost" || name.ends_with(".localhost")
            }
        }
    }

    /// Connects to it. A name is resolved by the system, and all its addresses are tried in turn.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let tcp = match &self.host {
            Host::Ip(ip) => TcpStream::connect((*ip, self.port)).await?,
            Host::Name(name, family) => {
                let found = tokio::net::lookup_host((name.as_str(), self.port)).await?;
                let sockets: Vec<_> = found.filter(|socket| family.is_none_or(|family| family.has(socket))).collect();
                TcpStream::connect(&sockets[..]).await?
            }
        };
        tcp.set_nodelay(true)?;
        Ok(tcp)
    }
}

impl Host {
    /// Whether it may have this address.
    pub(super) fn may_be(&self, ip: IpAddr) -> bool {
        match self {
            Self::Ip(own) => own.to_canonical() == ip.to_canonical(),
            Self::Name(..) => true,
        }
    }
}

impl Family {
    fn has(self, socket: &SocketAddr) -> bool {
        socket.is_ipv4() == (self == Self::V4)
    }
}

/// As in the authority of a URL.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => write!(f, "{}", SocketAddr::new(*ip, self.port)),
            Host::Name(name, _) => write!(f, "{name}:{}", self.port),
        }
    }
}
