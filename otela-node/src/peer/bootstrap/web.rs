//! Lists on the web.

use super::form::{BYTES_MAX, List, ListError};
use std::time::Duration;
use url::{Host, Url};

/// From the name of the server to a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The whole answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Redirections that are followed.
const REDIRECTIONS_MAX: usize = 5;

/// Why a list was not had.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebError {
    /// It could not be asked for, or its answer broke off.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// Nothing new begins any more.
    #[error("this process is ending")]
    Ending,
    /// The server says something else.
    #[error("it answers {0}")]
    Status(reqwest::StatusCode),
    /// What it says is of no use.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Asks for the list at `url`: through the proxy that the environment names, except on this machine, and trusting whom
/// the system trusts.
pub(super) async fn fetch(url: &Url) -> Result<List, WebError> {
    // Reading the system's roots takes a moment. They are read anew each time, which is once in an hour.
    let whom = url.clone();
    let client = tokio::task::spawn_blocking(move || client(&whom)).await.map_err(|_| WebError::Ending)??;
    let mut answer = client.get(url.clone()).send().await.map_err(reqwest::Error::without_url)?;
    if answer.status() != reqwest::StatusCode::OK {
        return Err(WebError::Status(answer.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
        body.extend_from_slice(&chunk);
        if body.len() > BYTES_MAX {
            return Err(ListError::TooLong.into());
        }
    }
    Ok(List::read(&body)?)
}

fn client(url: &Url) -> reqwest::Result<reqwest::Client> {
    let is_secure = url.scheme() == "https";
    let setup = || {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("otela/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .redirect(reqwest::redirect::Policy::limited(REDIRECTIONS_MAX))
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
