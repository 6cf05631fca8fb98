//! Gossip frames on a stream: a length of four bytes, then the frame. The fuzz target `frame` takes this file as it is, so
//! it names nothing else of the crate.

use otela_proto::wire::FRAME_BYTES_MAX;
use tokio_util::codec::LengthDelimitedCodec;

/// Refuses a longer frame at its first bytes, before any room is made for it.
pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec()
}
