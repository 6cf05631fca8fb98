//! What a host sends, in bytes: of the gossip frames themselves, and as modelled on the wire.
//!
//! The model: a frame has a length of 4 bytes before it, a yamux head of 12, 18 bytes of noise, and 52 bytes of IPv4
//! and TCP (with time stamps) on each segment of up to 1,448 bytes. Whoever receives data sends a pure acknowledgement
//! of 52 bytes for every second segment, but at least one for each message, unless it says something itself within
//! 40 ms. Each end of a connection pings the other every 120 s with 32 bytes, which come back; and where there is
//! traffic, yamux measures the round trip with pings of its own, from each end every 10 s. A handshake is TCP's,
//! multistream-select, noise with its certificates, and yamux.

use otela_proto::wire::{Frame, Say};
use prost::Message;
use std::time::Duration;

const LENGTH: u64 = 4;
const YAMUX: u64 = 12;
const NOISE: u64 = 18;
const TCP_IP: u64 = 52;
const SEGMENT: u64 = 1_448;
const PING: u64 = 32;
/// Yamux measures the round trip this often, if there is traffic.
pub(crate) const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// What each side sends to set up a connection; counted once on a real one, and rounded up.
const HANDSHAKE: u64 = 1_200;
/// An acknowledgement waits this long for company.
const ACK_AFTER: Duration = Duration::from_millis(40);

/// Names of the frames, in the order of [`Traffic::frames_of`].
pub(crate) const KINDS: [&str; 10] =
    ["entries", "root", "buckets", "digest", "want", "probe", "answer", "ask", "report", "bye"];

/// What one host has sent since it was last asked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// Gossip frames.
    pub(crate) frames: u64,
    /// Bytes of gossip frames, without any head.
    pub(crate) payload_bytes: u64,
    /// Bytes on the wire, everything included.
    pub(crate) wire_bytes: u64,
    /// Frames by kind, see [`KINDS`].
    pub(crate) frames_of: [u64; KINDS.len()],
    /// Bytes of frames by kind.
    pub(crate) bytes_of: [u64; KINDS.len()],
    /// Messages and statements that a full queue has dropped.
    pub(crate) dropped: u64,
}

impl Traffic {
    /// Counts a frame and returns its size with its heads, and the number of segments.
    pub(crate) fn frame(&mut self, frame: &Frame) -> usize {
        let payload = frame.encoded_len() as u64;
        let kind = kind(frame);
        self.frames += 1;
        self.payload_bytes += payload;
        self.frames_of[kind] += 1;
        self.bytes_of[kind] += payload;
        let wire = on_wire(payload + LENGTH);
        self.wire_bytes += wire;
        wire as usize
    }

    pub(crate) fn acknowledgements(&mut self, count: u64) {
        self.wire_bytes += count * TCP_IP;
    }

    pub(crate) fn handshake(&mut self) {
        self.wire_bytes += HANDSHAKE;
    }

    /// A ping or the answer to one; the answer is acknowledged by nothing else.
    pub(crate) fn ping(&mut self, is_answer: bool) {
        self.wire_bytes += on_wire(PING) + if is_answer { 0 } else { TCP_IP };
    }

    /// The same of the muxer, which is its head and nothing else.
    pub(crate) fn muxer_ping(&mut self, is_answer: bool) {
        self.wire_bytes += on_wire(0) + if is_answer { 0 } else { TCP_IP };
    }

    /// The sum of both.
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.frames += other.frames;
        self.payload_bytes += other.payload_bytes;
        self.wire_bytes += other.wire_bytes;
        self.dropped += other.dropped;
        for kind in 0..KINDS.len() {
            self.frames_of[kind] += other.frames_of[kind];
            self.bytes_of[kind] += other.bytes_of[kind];
        }
        self
    }
}

/// Acknowledgements that one end owes the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    count: u64,
    since: Duration,
}

impl Owed {
    /// A message of `wire` bytes has arrived. Returns how many acknowledgements went out for earlier ones.
    pub(crate) fn received(&mut self, wire: usize, now: Duration) -> u64 {
        let sent = if now > self.since + ACK_AFTER { std::mem::take(&mut self.count) } else { 0 };
        if self.count == 0 {
            self.since = now;
        }
        self.count += (wire as u64).div_ceil(SEGMENT).div_ceil(2);
        sent
    }

    /// Something is said the other way. Returns how many acknowledgements went out before it.
    pub(crate) fn said(&mut self, now: Duration) -> u64 {
        let owed = std::mem::take(&mut self.count);
        if now > self.since + ACK_AFTER { owed } else { 0 }
    }
}

fn on_wire(bytes: u64) -> u64 {
    let framed = bytes + YAMUX + NOISE;
    framed + TCP_IP * framed.div_ceil(SEGMENT)
}

fn kind(frame: &Frame) -> usize {
    match &frame.say {
        Some(Say::Entries(_)) | None => 0,
        Some(Say::Root(_)) => 1,
        Some(Say::Buckets(_)) => 2,
        Some(Say::Digest(_)) => 3,
        Some(Say::Want(_)) => 4,
        Some(Say::Probe(_)) => 5,
        Some(Say::Answer(_)) => 6,
        Some(Say::Ask(_)) => 7,
        Some(Say::Report(_)) => 8,
        Some(Say::Bye(_)) => 9,
    }
}
