//! Bodies of clients' requests: which model is asked for, and where the values are that may be changed.
#![no_main]

// The ingress asks what is wrong; here it is enough that something is.
#[allow(dead_code)]
#[path = "../../otela-ingress/src/api/scan.rs"]
mod scan;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

/// Fields that may stand only once.
const ONCE: [&str; 4] = ["model", "stream", "metadata", "stream_options"];

fuzz_target!(|data: &[u8]| {
    let found = scan::scan(data);
    if let Err(error) = &found {
        assert!(!error.to_string().is_empty());
    }
    // Where a reader of whole documents understands the body, both have to see the same. Of a field given twice it
    // takes the last; we refuse.
    let Ok(document) = serde_json::from_slice::<Value>(data) else { return };
    let Value::Object(fields) = &document else {
        assert!(found.is_err(), "only objects are routed");
        return;
    };
    let Ok(found) = found else {
        let text = String::from_utf8_lossy(data);
        let is_twice = ONCE.iter().any(|field| text.matches(field).count() > 1) || text.contains('\\');
        let is_odd = fields.get("model").is_some_and(|model| !model.is_string() && !model.is_null());
        assert!(is_twice || is_odd || fields.contains_key("metadata"), "refused: {text}");
        return;
    };
    let model = fields.get("model").and_then(Value::as_str).filter(|model| !model.is_empty());
    assert_eq!(found.model.as_deref(), model);
    assert_eq!(found.stream, fields.get("stream") == Some(&Value::Bool(true)));
    assert_eq!(found.is_empty, fields.is_empty());
    assert_eq!(data[found.opens_at - 1], b'{');
    let places = [("messages", &found.messages), ("prompt", &found.prompt), ("input", &found.input)];
    for (name, place) in places.into_iter().chain([("stream_options", &found.stream_options)]) {
        assert_eq!(place.is_some(), fields.contains_key(name), "{name}");
        if let Some(place) = place.clone() {
            let value: Value = serde_json::from_slice(&data[place]).expect("a whole value");
            assert_eq!(&value, &fields[name], "{name}");
        }
    }
});
