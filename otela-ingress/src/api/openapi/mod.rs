//! The description of everything an ingress answers, as an OpenAPI document at `/openapi.json`.
//!
//! It is kept by hand, in parts: what is called the same in two of them is put together. What stands under `each` in a
//! part holds for each operation of that part. Tests compare it with the routes that there are, and a lab test with
//! what they answer.

use axum::{
    http::{HeaderMap, HeaderValue},
    response::Response,
};
use bytes::Bytes;
use otela_node::peer::observe;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const PARTS: [&str; 11] = [
    include_str!("document.json"),
    include_str!("inference.json"),
    include_str!("messages.json"),
    include_str!("carried.json"),
    include_str!("models.json"),
    include_str!("registry.json"),
    include_str!("legacy.json"),
    include_str!("process.json"),
    include_str!("parameters.json"),
    include_str!("responses.json"),
    include_str!("schemas.json"),
];

/// The document and its tag, which is the same at every ingress of one version.
static DOCUMENT: LazyLock<(HeaderValue, Bytes)> = LazyLock::new(|| {
    let text = Value::Object(document()).to_string();
    let digest = Sha256::digest(&text);
    let number = digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
    let tag = HeaderValue::from_str(&format!("\"{number:016x}\"")).expect("hexadecimal digits in quotes");
    (tag, text.into())
});

/// The document; 304 to whoever has it.
pub(super) async fn openapi(headers: HeaderMap) -> Response {
    let (tag, text) = &*DOCUMENT;
    observe::tagged(&headers, tag.clone(), text.clone())
}

/// All parts as one.
fn document() -> Map<String, Value> {
    let mut document = Map::new();
    for part in PARTS {
        let mut part: Map<_, _> = serde_json::from_str(part).expect("each part is a JSON object");
        if let Some(each) = part.remove("each") {
            operations(&mut part).for_each(|(.., operation)| merge(operation, each.clone()));
        }
        for (key, value) in part {
            merge(document.entry(key).or_insert(Value::Null), value);
        }
    }
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document
}

/// Path, method and description of each operation.
fn operations(document: &mut Map<String, Value>) -> impl Iterator<Item = (String, String, &mut Value)> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut).into_iter().flatten();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object_mut().into_iter().flatten().filter(|(method, _)| *method != "parameters");
        methods.map(|(method, operation)| (path.clone(), method.clone(), operation))
    })
}

/// Puts `more` into `value`: objects field by field, lists one behind the other.
fn merge(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::Object(fields), Value::Object(more)) => {
            for (key, field) in more {
                merge(fields.entry(key).or_insert(Value::Null), field);
            }
        }
        (Value::Array(items), Value::Array(more)) => items.extend(more),
        (value, more) => *value = more,
    }
}

#[cfg(test)]
mod tests;
