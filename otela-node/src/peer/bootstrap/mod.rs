//! Where a peer joins its mesh: at addresses, or at those that a name in DNS or a list on the web stands for.
//!
//! Names and lists are followed in the background and for ever: start-up waits for nobody, a list that cannot be read
//! is read again, and the last good one stays in use.

mod dns;
mod follow;
mod form;
mod troubles;
mod web;

pub use dns::Dns;
pub use form::{AddressError, address};

pub(super) use follow::{Lists, Shared, Told, follow};
pub(super) use form::peer_of;
pub(super) use troubles::Troubles;

use multiaddr::{Multiaddr, Protocol};
use otela_proto::PeerId;
use std::{fmt, str::FromStr};
use url::Url;

/// Where an otela that is asked over HTTP has a list of bootstraps.
const LIST_PATH: &str = "/v1/dnt/bootstraps";

/// One way into a mesh, as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bootstrap {
    /// A peer's address; without an id at its end, whoever is there.
    Address(Multiaddr),
    /// A name whose TXT records name addresses: `/dnsaddr/HOST`.
    DnsAddr {
        /// The name.
        host: String,
        /// Of all that are found there, only this peer.
        peer: Option<PeerId>,
    },
    /// A list on the web.
    List(Url),
}

/// A text that is no bootstrap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    /// It is no address either.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It is only a part of one.
    #[error("{0} lacks what leads to a peer: after the host, /tcp/PORT or /udp/PORT/quic-v1")]
    Incomplete(Multiaddr),
    /// It begins like a name in DNS and goes on otherwise.
    #[error("after /dnsaddr/HOST nothing but /p2p/ID may follow")]
    DnsAddr,
    /// It begins like a URL and is none.
    #[error("not a URL ({0}); an example: https://example.org/bootstraps")]
    Url(url::ParseError),
    /// Passwords would be in logs.
    #[error("a user or password in a URL is not supported")]
    Password,
}

/// Names or a list could not be read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NotRead(#[from] follow::FollowError);

impl Bootstrap {
    /// The addresses that it stands for now.
    ///
    /// # Errors
    /// [`NotRead`].
    pub async fn addresses(&self, dns: &Dns) -> Result<Vec<Multiaddr>, NotRead> {
        Ok(follow::read(self, dns).await?.addresses)
    }

    /// Whether it stands for addresses that have to be found out first.
    pub(super) fn is_list(&self) -> bool {
        !matches!(self, Self::Address(_))
    }
}

impl FromStr for Bootstrap {
    type Err = BootstrapError;

    /// An address as [`address`] takes it, `/dnsaddr/HOST`, or the URL of a list (`http` or `https`); that of a server
    /// alone is taken for one of an otela.
    fn from_str(text: &str) -> Result<Self, BootstrapError> {
        let text = text.trim();
        if text.starts_with("http://") || text.starts_with("https://") {
            let url: Url = text.parse().map_err(BootstrapError::Url)?;
            let bare = url.username().is_empty() && url.password().is_none();
            return if bare { Ok(Self::List(of_an_otela(url))) } else { Err(BootstrapError::Password) };
        }
        let address = address(text)?;
        let mut parts = address.iter();
        let Some(Protocol::Dnsaddr(host)) = parts.next() else {
            let whole = form::can_be_dialled(&address);
            return if whole { Ok(Self::Address(address)) } else { Err(BootstrapError::Incomplete(address)) };
        };
        match (parts.next(), parts.next()) {
            (None, _) => Ok(Self::DnsAddr { host: host.into_owned(), peer: None }),
            (Some(Protocol::P2p(peer)), None) => Ok(Self::DnsAddr { host: host.into_owned(), peer: Some(peer) }),
            _ => Err(BootstrapError::DnsAddr),
        }
    }
}

/// Where every otela has its list.
fn of_an_otela(mut url: Url) -> Url {
    if url.path() == "/" && url.query().is_none() {
        url.set_path(LIST_PATH);
    }
    url
}

impl From<Multiaddr> for Bootstrap {
    fn from(address: Multiaddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::DnsAddr { host, peer: None } => write!(f, "/dnsaddr/{host}"),
            Self::DnsAddr { host, peer: Some(peer) } => write!(f, "/dnsaddr/{host}/p2p/{peer}"),
            Self::List(url) => write!(f, "{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstraps_in_every_form() {
        let peer = PeerId::random();
        for (text, again) in [
            ("relay.example:7411", "/dns/relay.example/tcp/7411".to_owned()),
            ("/ip4/192.0.2.1/tcp/7411", "/ip4/192.0.2.1/tcp/7411".to_owned()),
            ("/dnsaddr/example.org", "/dnsaddr/example.org".to_owned()),
            (&format!("/dnsaddr/example.org/p2p/{peer}"), format!("/dnsaddr/example.org/p2p/{peer}")),
            ("http://10.0.0.1:8080/v1/dnt/bootstraps", "http://10.0.0.1:8080/v1/dnt/bootstraps".to_owned()),
            ("https://example.org", "https://example.org/v1/dnt/bootstraps".to_owned()),
            ("https://example.org/?mesh=a", "https://example.org/?mesh=a".to_owned()),
        ] {
            let bootstrap: Bootstrap = text.parse().unwrap();
            assert_eq!(bootstrap.to_string(), again);
            assert_eq!(bootstrap.is_list(), again.contains("example.org") || again.starts_with("http"), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, word) in [
            ("relay", "HOST:PORT"),
            ("/ip4/1", "not a multiaddress"),
            ("/dnsaddr/example.org/tcp/1", "/p2p/ID"),
            ("https://", "not a URL"),
            ("https://me:secret@example.org/list", "password"),
            ("ftp://example.org/list", "HOST:PORT"),
            ("/ip4/192.0.2.1", "/tcp/PORT"),
            ("/ip4/192.0.2.1/udp/7411", "quic-v1"),
        ] {
            let error = text.parse::<Bootstrap>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
