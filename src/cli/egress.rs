//! Flags of ways out of a site, and of certificates.

use crate::exit::CommandError;
use multiaddr::{Multiaddr, Protocol};
use otela_node::peer::{Egress, Proxy, ProxyError, Tls};
use std::path::PathBuf;

/// What gets a peer out of a site that lets little out.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Mesh")]
pub(crate) struct EgressArgs {
    /// Certificates to show to those that connect with wss (PEM); for addresses such as /ip4/0.0.0.0/tcp/443/tls/ws with
    /// --peer-listen.
    #[arg(long, env = "OTELA_PEER_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of these certificates (PEM).
    #[arg(long, env = "OTELA_PEER_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Certificates of an authority to accept besides the system's (PEM); several times, or separated by commas.
    #[arg(long, env = "OTELA_PEER_TLS_CA", value_name = "FILE", value_delimiter = ',')]
    tls_ca: Vec<PathBuf>,
    #[arg(long, env = "https_proxy", hide = true, default_value = "")]
    https_proxy: String,
    #[arg(long, env = "HTTPS_PROXY", hide = true, default_value = "")]
    https_proxy_upper: String,
    #[arg(long, env = "all_proxy", hide = true, default_value = "")]
    all_proxy: String,
    #[arg(long, env = "ALL_PROXY", hide = true, default_value = "")]
    all_proxy_upper: String,
    #[arg(long, env = "no_proxy", hide = true, default_value = "")]
    no_proxy: String,
    #[arg(long, env = "NO_PROXY", hide = true, default_value = "")]
    no_proxy_upper: String,
}

/// An address cannot be listened on without a certificate.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} is with TLS: give a certificate with --tls-cert and --tls-key, or leave /tls out behind a server that has one"
)]
pub(crate) struct NoCertificate(Multiaddr);

impl EgressArgs {
    /// The settings, for a peer that is to listen there.
    pub(crate) fn egress(&self, listen: &[Multiaddr]) -> Result<Egress, CommandError> {
        let own = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let tls = Tls::load(own, &self.tls_ca)?;
        let is_tls = |address: &&Multiaddr| address.iter().any(|part| matches!(part, Protocol::Tls | Protocol::Wss(_)));
        match listen.iter().find(is_tls) {
            Some(address) if own.is_none() => Err(NoCertificate(address.clone()).into()),
            _ => Ok(Egress { proxy: self.proxy(), tls }),
        }
    }

    /// The proxy that the environment names. What cannot be used is said, and no more: a cluster's variables must not
    /// keep from starting whoever needs no proxy.
    fn proxy(&self) -> Option<Proxy> {
        let (variable, proxy) = self.named_proxy()?;
        proxy.inspect_err(|error| tracing::warn!(%error, "the proxy in {variable} is not used")).ok()
    }

    /// Why the proxy that the environment names cannot be used, if so, and where it is named.
    pub(crate) fn unusable_proxy(&self) -> Option<(&'static str, ProxyError)> {
        let (variable, proxy) = self.named_proxy()?;
        Some((variable, proxy.err()?))
    }

    /// What the environment says of proxies, as it is: for each variable what it says in small letters and in capitals.
    pub(crate) fn spelled(&self) -> [(&'static str, &str, &str); 3] {
        [
            ("https_proxy", &self.https_proxy, &self.https_proxy_upper),
            ("all_proxy", &self.all_proxy, &self.all_proxy_upper),
            ("no_proxy", &self.no_proxy, &self.no_proxy_upper),
        ]
    }

    fn named_proxy(&self) -> Option<(&'static str, Result<Proxy, ProxyError>)> {
        let named = [
            ("https_proxy", &self.https_proxy),
            ("HTTPS_PROXY", &self.https_proxy_upper),
            ("all_proxy", &self.all_proxy),
            ("ALL_PROXY", &self.all_proxy_upper),
        ];
        let (variable, url) = named.into_iter().find(|(_, url)| !url.is_empty())?;
        let no_proxy = if self.no_proxy.is_empty() { &self.no_proxy_upper } else { &self.no_proxy };
        Some((variable, Proxy::new(url, no_proxy)))
    }
}

/// The only way out of a site.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Mesh")]
pub(crate) struct ViaArgs {
    /// A relay to join through and be reached through, as the only way out of this site: an `otela relay` on its login
    /// node. As HOST:PORT or multiaddress; several times, or separated by commas.
    #[arg(long, env = "OTELA_PEER_VIA", value_name = "ADDR", value_parser = super::parse::address, value_delimiter = ',')]
    pub(crate) via: Vec<Multiaddr>,
}
