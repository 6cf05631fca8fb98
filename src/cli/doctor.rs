//! Flags of `otela doctor`.

use super::PeerArgs;
use clap::ValueEnum;
use std::time::Duration;

/// What is to run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum As {
    /// A node: `otela start`.
    Node,
    /// An ingress.
    Ingress,
    /// A relay.
    Relay,
}

/// Flags of `otela doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// What is to run here.
    #[arg(long = "as", value_name = "ROLE", default_value = "node")]
    pub(crate) role: As,
    /// How long to wait for the mesh, and for its relays.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) within: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) proxies: ProxyArgs,
}

/// What the environment says of proxies, in both spellings.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ProxyArgs {
    #[arg(long, env = "https_proxy", hide = true)]
    https_proxy: Option<String>,
    #[arg(long, env = "HTTPS_PROXY", hide = true)]
    https_proxy_upper: Option<String>,
    #[arg(long, env = "no_proxy", hide = true)]
    no_proxy: Option<String>,
    #[arg(long, env = "NO_PROXY", hide = true)]
    no_proxy_upper: Option<String>,
}

impl ProxyArgs {
    /// The proxy that is set, without the credentials in its address.
    pub(crate) fn proxy(&self) -> Option<String> {
        let set = set(&self.https_proxy).or_else(|| set(&self.https_proxy_upper))?;
        let (scheme, rest) = set.split_once("://").map_or((None, set), |(scheme, rest)| (Some(scheme), rest));
        let host = rest.rsplit_once('@').map_or(rest, |(_credentials, host)| host);
        Some(scheme.map_or_else(|| host.to_owned(), |scheme| format!("{scheme}://{host}")))
    }

    /// What is not to go through it.
    pub(crate) fn exceptions(&self) -> Option<&str> {
        set(&self.no_proxy).or_else(|| set(&self.no_proxy_upper))
    }
}

/// Empty is as good as not set.
fn set(value: &Option<String>) -> Option<&str> {
    value.as_deref().map(str::trim).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_shown_without_their_credentials() {
        let of = |text: &str| ProxyArgs { https_proxy: Some(text.into()), ..ProxyArgs::default() }.proxy();
        assert_eq!(of("http://user:secret@proxy:3128").as_deref(), Some("http://proxy:3128"));
        assert_eq!(of("proxy:3128").as_deref(), Some("proxy:3128"));
        assert_eq!(of(" "), None);
        let upper = ProxyArgs { https_proxy_upper: Some("http://p:1".into()), ..ProxyArgs::default() };
        assert_eq!(upper.proxy().as_deref(), Some("http://p:1"));
    }
}
