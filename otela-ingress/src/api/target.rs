//! Where a path leads: to whoever serves the model of its body, to a service, or to one node.

use super::error::ApiError;
use axum::http::{HeaderMap, Method, StatusCode, Uri, uri::PathAndQuery};
use otela_proto::{PeerId, engine_path, id::peer_id};

/// The header that says for whom a request is whose body names no model, as the Go implementation has it: `model=NAME`, or
/// a label of nodes and its value.
const IDENTITY_GROUP: &str = "x-otela-identity-group";
const SERVICE: &str = "/v1/service/";
const NODE: &str = "/v1/p2p/";
/// Between a node and the path of its engine, the Go implementation writes the service once more.
const INNER_SERVICE: &str = "/v1/_service/";

/// Where a request is to go, apart from what its body says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) service: Option<String>,
    pub(super) node: Option<PeerId>,
    /// From [`IDENTITY_GROUP`]: key and value.
    pub(super) group: Option<(String, String)>,
    /// The engine's path and the query, exactly as they were sent.
    pub(super) path: PathAndQuery,
}

impl Target {
    /// Takes a request's address apart. That it cannot be asked for in this way is said before what is wrong with the rest.
    pub(super) fn of(uri: &Uri, method: &Method, headers: &HeaderMap) -> Result<Self, ApiError> {
        let (service, node, path) = Self::parts(uri, method)?;
        if engine_path::is_inference(path.path()) && method != Method::POST {
            return Err(ApiError::wrong_method(method, "POST"));
        }
        Ok(Self { service, node, group: group(headers)?, path })
    }

    fn parts(uri: &Uri, method: &Method) -> Result<(Option<String>, Option<PeerId>, PathAndQuery), ApiError> {
        let path = uri.path();
        if let Some(rest) = path.strip_prefix(SERVICE) {
            check_method(method)?;
            let (service, inner) = split(rest).ok_or_else(|| ApiError::unknown_url(method, uri))?;
            return Ok((Some(service.to_owned()), None, with_query(inner, method, uri)?));
        }
        if let Some(rest) = path.strip_prefix(NODE) {
            check_method(method)?;
            let (peer, inner) = split(rest).ok_or_else(|| ApiError::unknown_url(method, uri))?;
            let node = peer_id(peer).map_err(|error| ApiError::bad_request("invalid_node", error.to_string()))?;
            let (service, inner) = match inner.strip_prefix(INNER_SERVICE).and_then(split) {
                Some((service, inner)) => (Some(service.to_owned()), inner),
                None => (None, inner),
            };
            return Ok((service, Some(node), with_query(inner, method, uri)?));
        }
        Ok((None, None, uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))))
    }

    /// Whether the address names a service or a node, so that no model is needed.
    pub(super) fn is_explicit(&self) -> bool {
        self.service.is_some() || self.node.is_some() || self.group.is_some()
    }
}

/// What may be carried to paths that providers have opened. The others are about the way itself, or nobody's.
fn check_method(method: &Method) -> Result<(), ApiError> {
    match *method {
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => Ok(()),
        _ => Err(ApiError::wrong_method(method, "GET,HEAD,POST,PUT,PATCH,DELETE")),
    }
}

/// The first segment, and the rest with its slash.
fn split(path: &str) -> Option<(&str, &str)> {
    let at = path.find('/')?;
    let (first, rest) = path.split_at(at);
    (!first.is_empty() && rest.len() > 1).then_some((first, rest))
}

fn with_query(path: &str, method: &Method, uri: &Uri) -> Result<PathAndQuery, ApiError> {
    let text = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    text.parse().map_err(|_| ApiError::unknown_url(method, uri))
}

fn group(headers: &HeaderMap) -> Result<Option<(String, String)>, ApiError> {
    let mut values = headers.get_all(IDENTITY_GROUP).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        let message = "X-Otela-Identity-Group is given twice, and only one place can be asked for.";
        return Err(ApiError::bad_request("invalid_identity_group", message));
    }
    let pair = value.to_str().ok().and_then(|text| text.split_once('='));
    match pair {
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
            Ok(Some((key.trim().to_owned(), value.trim().to_owned())))
        }
        _ => {
            let message = "X-Otela-Identity-Group is KEY=VALUE, for example model=org/name.";
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_identity_group", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn of(uri: &str) -> Result<Target, ApiError> {
        Target::of(&uri.parse().unwrap(), &Method::POST, &HeaderMap::new())
    }

    #[test]
    fn services_and_nodes_are_taken_off_and_the_rest_stays_as_it_was() {
        let plain = of("/v1/chat/completions?x=%2F").unwrap();
        assert!(!plain.is_explicit() && plain.path == "/v1/chat/completions?x=%2F");
        let service = of("/v1/service/llm/v1/chat/completions?x=%2F").unwrap();
        assert_eq!((service.service.as_deref(), service.path.as_str()), (Some("llm"), "/v1/chat/completions?x=%2F"));
        let peer = PeerId::random();
        for (path, service) in [("/v1/embeddings", None), ("/v1/_service/llm/v1/embeddings", Some("llm"))] {
            let node = of(&format!("/v1/p2p/{peer}{path}")).unwrap();
            assert_eq!(
                (node.node, node.service.as_deref(), node.path.as_str()),
                (Some(peer), service, "/v1/embeddings")
            );
        }
        for bad in ["/v1/service/llm", "/v1/service/", "/v1/service//x", "/v1/service/llm/", "/v1/p2p/x/v1/embeddings"]
        {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_a_path_does_not_take_is_refused_whatever_else_is_wrong() {
        let group = HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(IDENTITY_GROUP),
            HeaderValue::from_static("neither"),
        )]);
        for (method, path) in [
            (Method::GET, "/v1/rerank"),
            (Method::TRACE, "/tokenize"),
            (Method::GET, "/v1/service/llm/v1/rerank"),
            (Method::TRACE, "/v1/service/llm/custom"),
            (Method::OPTIONS, "/v1/p2p/nobody/custom"),
        ] {
            let refused = Target::of(&path.parse().unwrap(), &method, &group).unwrap_err();
            assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
        let opened = Target::of(&"/v1/service/llm/custom".parse().unwrap(), &Method::DELETE, &HeaderMap::new());
        assert!(opened.is_ok());
    }

    #[test]
    fn groups_are_a_key_and_a_value() {
        let of = |text: &'static str| {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static(IDENTITY_GROUP),
                HeaderValue::from_static(text),
            )]);
            group(&headers)
        };
        assert_eq!(of("model=org/m=1").unwrap(), Some(("model".into(), "org/m=1".into())));
        assert!(of("model").is_err() && of("=x").is_err() && of("model=").is_err());
    }
}
