//! Bodies of clients' requests: which model is asked for.
#![no_main]

// The ingress asks what is wrong; here it is enough that something is.
#[allow(dead_code)]
#[path = "../../otela-ingress/src/api/scan.rs"]
mod scan;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let found = scan::model(data);
    if let Err(error) = &found {
        assert!(!error.to_string().is_empty());
    }
    // Where a reader of whole documents understands the body, both have to see the same. Of a field given twice it
    // takes the last; we refuse.
    let Ok(document) = serde_json::from_slice::<Value>(data) else { return };
    match (found, document.get("model").and_then(Value::as_str)) {
        (Ok(found), model) => assert_eq!(Some(found.as_str()), model),
        (Err(_), Some(model)) if !model.is_empty() => {
            let names = String::from_utf8_lossy(data).matches("model").count()
                + data.iter().filter(|byte| **byte == b'\\').count();
            assert!(names > 1, "refused though it names one model");
        }
        (Err(_), _) => {}
    }
});
