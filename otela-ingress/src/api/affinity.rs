//! Which requests should meet again: those of one conversation, or that begin alike. The number is the same at every
//! ingress.

use super::scan::Scan;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The client's own name of a conversation.
pub(super) const CONVERSATION: &str = "x-otela-conversation";
/// As much of a prompt is looked at as makes it one of a kind.
const PREFIX_BYTES_MAX: usize = 4096;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    role: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// The number of a request: of its conversation, its cache key, or its beginning, in this order.
pub(super) fn key(headers: &HeaderMap, scan: &Scan, body: &[u8]) -> Option<u64> {
    if let Some(conversation) = headers.get(CONVERSATION) {
        return Some(number(b"conversation", conversation.as_bytes()));
    }
    if let Some(key) = &scan.cache_key {
        return Some(number(b"cache key", key.as_bytes()));
    }
    if let Some(messages) = scan.messages.clone() {
        return beginning(&body[messages]).map(|beginning| number(b"messages", &beginning));
    }
    let prompt = scan.prompt.clone().or(scan.input.clone())?;
    Some(number(b"prompt", &body[prompt][..].iter().copied().take(PREFIX_BYTES_MAX).collect::<Vec<_>>()))
}

/// All messages up to the first of the user: what stays the same while a conversation grows.
fn beginning(messages: &[u8]) -> Option<Vec<u8>> {
    let messages: Vec<Message<'_>> = serde_json::from_slice(messages).ok()?;
    let mut beginning = Vec::new();
    for message in messages {
        let role = message.role.map_or("", RawValue::get);
        let content = message.content.map_or("", RawValue::get);
        beginning.extend_from_slice(role.as_bytes());
        beginning.extend(content.bytes().take(PREFIX_BYTES_MAX));
        if role == "\"user\"" || beginning.len() > PREFIX_BYTES_MAX {
            break;
        }
    }
    Some(beginning)
}

fn number(kind: &[u8], text: &[u8]) -> u64 {
    let digest = Sha256::new().chain_update(kind).chain_update([0]).chain_update(text).finalize();
    digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::{super::scan::scan, *};
    use axum::http::HeaderValue;

    fn of(body: &str) -> Option<u64> {
        key(&HeaderMap::new(), &scan(body.as_bytes()).unwrap(), body.as_bytes())
    }

    #[test]
    fn a_conversation_stays_the_same_while_it_grows() {
        let first = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}]}"#;
        let later = r#"{"temperature":1,"messages":[{"role":"system","content":"s"},{"content":"hello","role":"user"},{"role":"assistant","content":"hi"},{"role":"user","content":"more"}]}"#;
        let other = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hell"}]}"#;
        assert_eq!(of(first), of(later));
        assert_ne!(of(first), of(other));
        assert_ne!(of(r#"{"prompt":"a"}"#), of(r#"{"prompt":"b"}"#));
        assert_eq!(of(r#"{"prompt":"a","prompt_cache_key":"k"}"#), of(r#"{"prompt":"b","prompt_cache_key":"k"}"#));
        assert_eq!(of("{}"), None);
    }

    #[test]
    fn the_clients_own_name_comes_first_and_every_ingress_counts_alike() {
        let headers = |name: &'static str| {
            let name = HeaderValue::from_static(name);
            HeaderMap::from_iter([(axum::http::HeaderName::from_static(CONVERSATION), name)])
        };
        let body = r#"{"prompt":"a"}"#;
        let of = |name| key(&headers(name), &scan(body.as_bytes()).unwrap(), body.as_bytes());
        assert_eq!(of("c-1"), of("c-1"));
        assert_ne!(of("c-1"), of("c-2"));
        // Ingresses of other versions count this way too.
        assert_eq!(number(b"conversation", b"c-1"), 889_825_186_500_219_168);
    }
}
