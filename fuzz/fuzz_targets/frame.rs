//! Bytes as they come from a neighbour's stream: cut into frames, and those decoded.
#![no_main]

#[path = "../../otela-node/src/peer/frames.rs"]
mod frames;

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use otela_proto::wire::{FRAME_BYTES_MAX, Frame};
use prost::Message;
use tokio_util::codec::{Decoder, Encoder};

fuzz_target!(|data: &[u8]| {
    let (mut codec, mut bytes) = (frames::codec(), BytesMut::new());
    // In pieces, as a network delivers them: the first byte says how long.
    let Some((piece, data)) = data.split_first() else { return };
    for part in data.chunks(usize::from(*piece).max(1)) {
        bytes.extend_from_slice(part);
        loop {
            match codec.decode(&mut bytes) {
                Ok(Some(frame)) => check(&frame.freeze()),
                Ok(None) => break,
                // The stream would be closed.
                Err(_) => return,
            }
        }
        assert!(bytes.capacity() <= 2 * (FRAME_BYTES_MAX + data.len() + 64), "room is made for what may come only");
    }
});

/// What can be read can be written and read again.
fn check(bytes: &[u8]) {
    assert!(bytes.len() <= FRAME_BYTES_MAX);
    let Ok(frame) = Frame::decode(bytes) else { return };
    let written = frame.encode_to_vec();
    if written.len() > FRAME_BYTES_MAX {
        return;
    }
    let mut stream = BytesMut::new();
    frames::codec().encode(Bytes::from(written), &mut stream).expect("it is short enough");
    let read = frames::codec().decode(&mut stream).expect("it is whole").expect("and complete");
    assert_eq!(Frame::decode(read).expect("it was a frame"), frame);
}
