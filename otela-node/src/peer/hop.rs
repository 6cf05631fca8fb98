//! Headers that belong to one hop.

use http::{
    HeaderMap,
    header::{self, HeaderName},
};

/// As in RFC 9110 section 7.6.1, or made anew on each hop.
const HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Takes out what must not travel on: these, and whatever `Connection` names.
pub fn strip(headers: &mut HeaderMap) {
    for name in named(headers) {
        headers.remove(name);
    }
    for name in &HOP {
        headers.remove(name);
    }
}

/// The names, in lower case, that `Connection` declares to be of one hop.
#[must_use]
pub fn named(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn p07_one_hop_and_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("keep-alive", "timeout=5"),
            ("content-encoding", "gzip"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        strip(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["content-encoding"]);
    }
}
