//! Lists of bootstraps, which whoever has their server may write.
#![no_main]

// Each part of the file is used by the peer, if not here.
#[allow(dead_code)]
#[path = "../../otela-node/src/peer/bootstrap/form.rs"]
mod form;

use form::{ADDRESSES_MAX, BYTES_MAX, List};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let list = match List::read(data) {
        Ok(list) => list,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(data.len() <= BYTES_MAX && (1..=ADDRESSES_MAX).contains(&list.addresses.len()));
    // What was taken is taken again, one in each line.
    let lines: Vec<_> = list.addresses.iter().map(ToString::to_string).collect();
    let again = List::read(lines.join("\n").as_bytes()).expect("good addresses");
    assert_eq!(again, List { passed_over: 0, ..list });
});
