//! Entity tags: a client that has the newest body is told so, and not sent it again.
//!
//! A tag is a hash of the body under a key that each process draws anew. So it changes exactly when the body does, a
//! tag of another run never matches, and nobody who writes an entry can make two bodies with one tag. Bodies that nobody can
//! write into may have tags of another kind.

use axum::{
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH},
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::Value;
use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

/// The key of this process's tags.
#[derive(Debug, Clone, Default)]
pub(super) struct Tags(Arc<RandomState>);

impl Tags {
    /// `body` with its tag; or 304 with nothing, if the request `headers` say that the client has it.
    pub(super) fn answer(&self, headers: &HeaderMap, body: &Value) -> Response {
        let body = body.to_string();
        let tag = format!("\"{:016x}\"", self.0.hash_one(body.as_bytes()));
        tagged(headers, HeaderValue::from_str(&tag).expect("hexadecimal digits in quotes"), body.into())
    }
}

/// A JSON `body` with its tag, a strong one in quotes; or 304 with nothing, if the request `headers` say that the client
/// has it.
pub fn tagged(headers: &HeaderMap, tag: HeaderValue, body: Bytes) -> Response {
    let mut response = if tag.to_str().is_ok_and(|tag| is_known(headers, tag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
    };
    response.headers_mut().insert(ETAG, tag);
    // To be kept, but asked for each time.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Whether `If-None-Match` names `tag`, as in RFC 9110 section 13.1.2: a star names every tag, and weak tags count as
/// their strong ones. A malformed rest is passed over.
fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|mut rest| {
        if rest.trim() == "*" {
            return true;
        }
        while let Some((one, after)) = next(rest) {
            if one == tag {
                return true;
            }
            rest = after;
        }
        false
    })
}

/// The next tag of a list with its quotes, and what comes after it. Commas may be inside of a tag.
fn next(list: &str) -> Option<(&str, &str)> {
    let list = list.trim_start_matches([' ', '\t', ',']);
    let list = list.strip_prefix("W/").unwrap_or(list);
    let end = list.strip_prefix('"')?.find('"')? + 2;
    Some(list.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn header(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (IF_NONE_MATCH, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn tags_follow_the_body_and_the_process() {
        let (tags, later) = (Tags::default(), Tags::default());
        let tag = |tags: &Tags, body| tags.answer(&HeaderMap::new(), &body).headers()[ETAG].clone();
        assert_eq!(tag(&tags, json!({"a": 1})), tag(&tags.clone(), json!({"a": 1})));
        assert_ne!(tag(&tags, json!({"a": 1})), tag(&tags, json!({"a": 2})));
        assert_ne!(tag(&tags, json!({"a": 1})), tag(&later, json!({"a": 1})), "another run, another tag");
    }

    #[test]
    fn whoever_has_it_is_told_so() {
        let (tags, body) = (Tags::default(), json!({"a": 1}));
        let first = tags.answer(&HeaderMap::new(), &body);
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers()[ETAG].to_str().unwrap();
        let again = tags.answer(&header(&[tag]), &body);
        assert_eq!((again.status(), again.headers()[ETAG].to_str().unwrap()), (StatusCode::NOT_MODIFIED, tag));
        assert!(!again.headers().contains_key(CONTENT_TYPE));
        assert_eq!(tags.answer(&header(&[tag]), &json!({"a": 2})).status(), StatusCode::OK);
    }

    #[test]
    fn lists_weak_tags_and_stars() {
        let tag = "\"7f\"";
        for known in
            [&["\"7f\""][..], &["W/\"7f\""], &["*"], &["\"a,b\", W/\"7f\""], &["\"x\"", "\"7f\""], &[",\"x\",,\"7f\""]]
        {
            assert!(is_known(&header(known), tag), "{known:?}");
        }
        for other in [&["\"8f\""][..], &["7f"], &["\"a, \"7f"], &["\"*\""], &["w/\"7f\""], &["\""], &[""], &[]] {
            assert!(!is_known(&header(other), tag), "{other:?}");
        }
    }
}
