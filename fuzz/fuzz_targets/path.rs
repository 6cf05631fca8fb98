//! Paths of requests that peers want to be passed to an engine.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otela_proto::engine_path::is_inference;

fuzz_target!(|path: &str| {
    if is_inference(path) {
        // No way to write another path than the one that was meant.
        assert!(path.starts_with('/') && !path.ends_with('/') && !path.contains("//") && !path.contains(".."));
        assert!(path.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '/' | '_')));
    }
});
