//! The HTTP proxy of a site: which addresses it may be asked for, and how such an address is written.
//!
//! An address through the proxy is written as what it is, HTTP at the proxy and inside it the address itself:
//! `/dns/proxy.site/tcp/3128/http/dns4/relay.example/tcp/443`. No peer announces such an address.

use super::target::{Host, Target};
use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use libp2p::{Multiaddr, multiaddr::Protocol};
use std::sync::Arc;

/// The port of a proxy that names none.
const PORT: u16 = 80;

/// An HTTP proxy, and whom it is not for. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Proxy {
    target: Target,
    auth: Option<HeaderValue>,
    matcher: Arc<Matcher>,
}

/// Why what was given as a proxy is not used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProxyError {
    /// It is no URL.
    #[error("not the URL of a proxy, an example: http://proxy.example:3128")]
    NotUrl,
    /// It is of another kind.
    #[error("otela speaks to http:// proxies only, and this is {0}://")]
    Scheme(String),
}

impl Proxy {
    /// The proxy at `url`, with name and password in it if it wants any, for all but what `no_proxy` lists: names (and
    /// all below them), addresses, networks as `10.0.0.0/8`, or `*`.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub fn new(url: &str, no_proxy: &str) -> Result<Self, ProxyError> {
        let known = |no_proxy: &str| Matcher::builder().all(url.to_owned()).no(no_proxy.to_owned()).build();
        let intercept = known("").intercept(&Uri::from_static("https://otela.invalid")).ok_or(ProxyError::NotUrl)?;
        let uri = intercept.uri();
        let scheme = uri.scheme_str().unwrap_or_default();
        if scheme != "http" {
            return Err(ProxyError::Scheme(scheme.to_owned()));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(ProxyError::NotUrl)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = host.parse().map_or_else(|_| Host::Name(host.to_owned(), None), Host::Ip);
        let target = Target { host, port: uri.port_u16().unwrap_or(PORT) };
        Ok(Self { target, auth: intercept.basic_auth().cloned(), matcher: Arc::new(known(no_proxy)) })
    }

    /// Where it is, without what it is told of who asks.
    #[must_use]
    pub fn place(&self) -> String {
        self.target.to_string()
    }

    /// Where the proxy is.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// What is said to a proxy that wants to know who asks.
    pub(super) fn auth(&self) -> Option<&HeaderValue> {
        self.auth.as_ref()
    }

    /// An address as it is reached through the proxy, names unresolved; `None` if the proxy is not for it: it is not
    /// TCP, it is near, or `no_proxy` has it. Of an address at a relay the way to the relay is meant.
    #[must_use]
    pub fn through(&self, address: &Multiaddr) -> Option<Multiaddr> {
        let target = Target::of(address).filter(|target| !target.is_near() && !is_proxied(address))?;
        let uri: Uri = format!("https://{target}/").parse().ok()?;
        self.matcher.intercept(&uri)?;
        let host = match &self.target.host {
            Host::Ip(ip) => Protocol::from(*ip),
            Host::Name(name, _) => Protocol::Dns(name.into()),
        };
        let proxy = [host, Protocol::Tcp(self.target.port), Protocol::Http];
        Some(proxy.into_iter().chain(address).collect())
    }
}

/// Whether an address leads through a proxy.
pub(in crate::peer) fn is_proxied(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::Http)
}

/// What is reached through the proxy; `None` if the address leads through none.
pub(super) fn inside(address: &Multiaddr) -> Option<Multiaddr> {
    let proxy = address.iter().position(|part| part == Protocol::Http)?;
    Some(address.iter().skip(proxy + 1).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(proxy: &Proxy, address: &str) -> Option<String> {
        proxy.through(&address.parse().unwrap()).map(|address| address.to_string())
    }

    #[test]
    fn p52_whom_the_proxy_is_for() {
        let no_proxy = "10.0.0.0/8, fd00::/8,site.example,.cluster.local,192.0.2.9";
        let proxy = Proxy::new("http://proxy.site:3128", no_proxy).unwrap();
        for (address, inside) in [
            ("/ip4/192.0.2.1/tcp/443", "/ip4/192.0.2.1/tcp/443"),
            ("/dns4/relay.example/tcp/443/wss", "/dns4/relay.example/tcp/443/wss"),
            ("/ip6/2001:db8::1/tcp/443", "/ip6/2001:db8::1/tcp/443"),
            ("/dns/notsite.example.org/tcp/1", "/dns/notsite.example.org/tcp/1"),
        ] {
            assert_eq!(through(&proxy, address), Some(format!("/dns/proxy.site/tcp/3128/http{inside}")));
        }
        for never in [
            "/ip4/127.0.0.1/tcp/443",
            "/ip4/127.9.9.9/tcp/443",
            "/ip6/::1/tcp/443",
            "/ip6/::ffff:127.0.0.1/tcp/443",
            "/dns/localhost/tcp/443",
            "/dns4/a.LOCALHOST./tcp/443",
            "/ip4/169.254.1.1/tcp/443",
            "/ip6/fe80::1/tcp/443",
            "/ip4/10.1.2.3/tcp/443",
            "/ip6/fd00::7/tcp/443",
            "/ip4/192.0.2.9/tcp/443",
            "/dns/site.example/tcp/443",
            "/dns/a.site.example/tcp/443",
            "/dns/a.cluster.local/tcp/443",
            "/ip4/192.0.2.1/udp/443/quic-v1",
        ] {
            assert_eq!(through(&proxy, never), None, "{never}");
        }
        assert_eq!(through(&Proxy::new("http://p:1", "*").unwrap(), "/dns/relay.example/tcp/443"), None);
        let twice = proxy.through(&"/ip4/192.0.2.1/tcp/443".parse().unwrap()).unwrap();
        assert_eq!(proxy.through(&twice), None, "once is enough");
        assert_eq!(inside(&twice).unwrap().to_string(), "/ip4/192.0.2.1/tcp/443");
    }

    #[test]
    fn what_a_proxy_is_given_as() {
        let target = |url: &str| Proxy::new(url, "").map(|proxy| proxy.target().to_string());
        assert_eq!(target("http://proxy.site:3128/").unwrap(), "proxy.site:3128");
        assert_eq!(target("proxy.site:3128").unwrap(), "proxy.site:3128");
        assert_eq!(target("http://[2001:db8::1]:3128").unwrap(), "[2001:db8::1]:3128");
        assert_eq!(target("http://proxy.site").unwrap(), "proxy.site:80");
        assert_eq!(target("https://proxy.site:3128"), Err(ProxyError::Scheme("https".into())));
        assert_eq!(target("socks5://proxy.site:1080"), Err(ProxyError::Scheme("socks5".into())));
        for wrong in ["", "a b", "http://", "ftp://proxy.site:1"] {
            assert_eq!(target(wrong), Err(ProxyError::NotUrl), "{wrong:?}");
        }
        let known = Proxy::new("http://us%40er:pass@proxy.site:3128", "").unwrap();
        // us@er:pass
        assert_eq!(known.auth().unwrap(), "Basic dXNAZXI6cGFzcw==");
        assert!(!format!("{known:?}").contains("dXNAZXI6cGFzcw"), "nobody reads it in a log");
        let address = known.through(&"/ip4/192.0.2.1/tcp/443".parse().unwrap()).unwrap();
        assert!(!address.to_string().contains("pass"));
    }
}
