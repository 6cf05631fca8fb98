//! Whose pages may call from a browser (the Fetch standard's CORS protocol).
//!
//! It stands before everything else: a preflight has no credentials, and errors must be readable too.

use crate::forward::App;
use axum::http::{HeaderName, HeaderValue, Method, request};
use std::{str::FromStr, sync::Arc, time::Duration};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer};
use url::Url;

/// How long a browser may remember what it was told.
const REMEMBERED: Duration = Duration::from_hours(1);
/// What a page may read of our answers besides what it always may.
const EXPOSED: [&str; 8] = [
    "retry-after",
    "server-timing",
    "x-client-request-id",
    "x-otela-node",
    "x-otela-path",
    "x-otela-session",
    "x-otela-simulated",
    "x-request-id",
];

/// The origins whose pages may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origins(Vec<Origin>);

/// One origin, or any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Every page may.
    Any,
    /// Pages of this scheme, host and port.
    Of(String),
}

/// A text that is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin: one looks like https://chat.example.org or http://localhost:3000, or is * for all")]
pub struct InvalidOrigin(String);

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        let invalid = || InvalidOrigin(text.to_owned());
        if text == "*" {
            return Ok(Self::Any);
        }
        let url = Url::parse(text).map_err(|_| invalid())?;
        let origin = url.origin();
        if !origin.is_tuple() || !matches!(url.path(), "" | "/") || url.query().is_some() || !url.username().is_empty()
        {
            return Err(invalid());
        }
        Ok(Self::Of(origin.ascii_serialization()))
    }
}

impl FromIterator<Origin> for Origins {
    fn from_iter<I: IntoIterator<Item = Origin>>(origins: I) -> Self {
        Self(origins.into_iter().collect())
    }
}

impl Origins {
    fn allow(&self, origin: &HeaderValue) -> bool {
        self.0.iter().any(|allowed| match allowed {
            Origin::Any => true,
            Origin::Of(allowed) => origin.as_bytes().eq_ignore_ascii_case(allowed.as_bytes()),
        })
    }
}

/// Answers preflights and marks all other answers, by the settings of the moment.
pub(crate) fn layer(app: Arc<App>) -> CorsLayer {
    let allowed = move |origin: &HeaderValue, _: &request::Parts| app.settings.load().origins.allow(origin);
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allowed))
        .allow_methods(AllowMethods::list([
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ]))
        // Clients send headers of their own, as the `x-stainless-*` of OpenAI's.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .max_age(REMEMBERED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p02_origins_are_compared_as_browsers_write_them() {
        let origins: Origins =
            ["https://chat.example.org/", "http://localhost:3000"].iter().map(|text| text.parse().unwrap()).collect();
        let allows = |origin| origins.allow(&HeaderValue::from_static(origin));
        assert!(allows("https://chat.example.org") && allows("http://localhost:3000"));
        for other in ["http://chat.example.org", "https://chat.example.org:8443", "https://evil.org", "null", "*"] {
            assert!(!allows(other), "{other}");
        }
        assert!(!Origins::default().allow(&HeaderValue::from_static("https://a.org")));
        assert!(Origins::from_iter([Origin::Any]).allow(&HeaderValue::from_static("null")));
        for bad in ["chat.example.org", "https://a.org/path", "https://u@a.org", "data:x", ""] {
            assert!(bad.parse::<Origin>().unwrap_err().to_string().contains("is not an origin"), "{bad}");
        }
    }
}
