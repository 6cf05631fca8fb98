//! Clients for other people's web servers.

use std::time::Duration;
use url::{Host, Url};

/// From the name of the server to a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The whole answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A client for the server of `url`: through the proxy that the environment names, except on this machine, and trusting
/// whom the system trusts. Reading the system's roots takes a moment: not for an asynchronous task.
///
/// # Errors
/// There are no roots, and the server wants TLS.
pub(crate) fn client(url: &Url, redirections_max: usize) -> reqwest::Result<reqwest::Client> {
    let is_secure = url.scheme() == "https";
    let setup = || {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("otela/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .redirect(match redirections_max {
                0 => reqwest::redirect::Policy::none(),
                most => reqwest::redirect::Policy::limited(most),
            })
            .https_only(is_secure);
        if is_here(url) { builder.no_proxy() } else { builder }
    };
    match setup().build() {
        // A container without any roots can still read a list that needs none.
        Err(_) if !is_secure => setup().tls_certs_only([]).build(),
        built => built,
    }
}

/// Whether a proxy would look for it on another machine than is meant.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_asked_without_a_proxy() {
        for (url, here) in [
            ("http://127.0.0.1:8080/x", true),
            ("http://[::1]/x", true),
            ("http://localhost/x", true),
            ("https://example.org/x", false),
            ("http://10.0.0.1/x", false),
        ] {
            assert_eq!(is_here(&url.parse().unwrap()), here, "{url}");
        }
    }
}
