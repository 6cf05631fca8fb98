//! Engines' event streams: nothing is lost or made up, wherever their reads end, and rewritten events say what they said.
#![no_main]

#[allow(dead_code)]
#[path = "../../otela-ingress/src/stream/chunk.rs"]
mod chunk;
#[allow(dead_code)]
#[path = "../../otela-ingress/src/stream/framer.rs"]
mod framer;

use bytes::Bytes;
use chunk::{Rewrite, Said, Usage};
use framer::{Framer, Piece};
use libfuzzer_sys::fuzz_target;

/// The pieces of `stream`, read in steps whose sizes are told by `steps`.
fn pieces(stream: &[u8], steps: &[u8]) -> (Vec<Piece>, Bytes) {
    let (mut framer, mut pieces, mut rest) = (Framer::default(), Vec::new(), stream);
    let mut sizes = steps.iter().map(|step| usize::from(*step) + 1).cycle();
    while !rest.is_empty() {
        let (now, later) = rest.split_at(sizes.next().unwrap_or(usize::MAX).min(rest.len()));
        framer.push(Bytes::copy_from_slice(now));
        pieces.extend(std::iter::from_fn(|| framer.next()));
        rest = later;
    }
    (pieces, framer.take_held())
}

fuzz_target!(|data: &[u8]| {
    let (steps, stream) = data.split_at(data.len().min(4));
    let (cut, held) = pieces(stream, steps);
    let (whole, _) = pieces(stream, &[]);
    let all: Vec<u8> = cut.iter().cloned().flat_map(Piece::into_bytes).chain(held).collect();
    assert_eq!(all, stream, "nothing is lost");
    let whole_events: Vec<_> = whole.into_iter().filter(|piece| matches!(piece, Piece::Event(_))).collect();
    if stream.len() < 200_000 {
        assert_eq!(cut, whole_events, "cuts change nothing");
    }
    for piece in cut {
        let event = piece.into_bytes();
        let usage = Usage { prompt_tokens: 1, completion_tokens: 2 };
        let rewrite = Rewrite { id: Some("id".to_owned()), created: Some(3), usage: Some(usage) };
        let (said, rewritten) = (chunk::said(&event), chunk::rewritten(&event, &rewrite));
        if let (Said::Chunk(said), Some(rewritten)) = (said, rewritten) {
            let Said::Chunk(again) = chunk::said(&rewritten) else { panic!("it is a chunk no more") };
            assert_eq!((&again.text, &again.finish, again.is_more), (&said.text, &said.finish, said.is_more));
        }
    }
});
