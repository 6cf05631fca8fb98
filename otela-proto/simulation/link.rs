//! A connection between two processes, as TCP gives it: whatever is sent arrives in order or not at all.
//!
//! What a lost segment holds back waits behind it. Where the network is cut, or the other machine has lost its power,
//! nothing arrives and neither end notices: the head of the queue is repeated with growing pauses until it passes, an
//! end gives up, or the other machine says that it knows no such connection.

use super::{
    network::{Network, repeat_after, transfer_time},
    traffic::Owed,
};
use libp2p_identity::PeerId;
use otela_proto::{gossip::Outbox, wire::Frame};
use rand::rngs::SmallRng;
use std::{collections::VecDeque, time::Duration};

/// Bytes that may be on their way, or wait in the sockets at both ends; the writer waits at it.
pub(crate) const WINDOW_BYTES: usize = 256 * 1024;

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) host: usize,
    /// Which process of that host.
    pub(crate) run: u32,
    pub(crate) peer: PeerId,
    pub(crate) is_open: bool,
    /// What the process has not written yet.
    pub(crate) outbox: Outbox,
    /// Pings in a row that were not answered.
    pub(crate) misses: u32,
    /// When the muxer measures the round trip next, if there is traffic then.
    pub(crate) measures_at: Duration,
}

/// Something on its way.
#[derive(Debug)]
pub(crate) enum Parcel {
    /// A frame, and its bytes on the wire.
    Frame(Frame, usize),
    /// The sender has closed.
    Fin,
}

impl Parcel {
    fn bytes(&self) -> usize {
        match self {
            Self::Frame(_, wire) => *wire,
            Self::Fin => 0,
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// With the times at which they could arrive.
    pub(crate) queue: VecDeque<(Duration, Parcel)>,
    /// Whether an event for the head of the queue is under way.
    pub(crate) is_moving: bool,
    /// Acknowledgements that the receiver owes.
    pub(crate) owed: Owed,
    /// Bytes in the queue.
    pub(crate) waiting_bytes: usize,
    last_arrival: Duration,
    busy_until: Duration,
    repeats: u32,
}

impl Way {
    /// Takes a parcel. Returns when the head can arrive, if that is not known to anybody yet.
    pub(crate) fn push(&mut self, parcel: Parcel, now: Duration, delay: Duration) -> Option<Duration> {
        let bytes = parcel.bytes();
        self.waiting_bytes += bytes;
        self.busy_until = self.busy_until.max(now) + transfer_time(bytes);
        self.last_arrival = self.last_arrival.max(self.busy_until + delay);
        self.queue.push_back((self.last_arrival, parcel));
        self.start()
    }

    /// When the head can arrive, if nobody is waiting for it.
    pub(crate) fn start(&mut self) -> Option<Duration> {
        if self.is_moving {
            return None;
        }
        let (at, _) = self.queue.front()?;
        self.is_moving = true;
        Some(*at)
    }

    /// The head cannot pass now. Returns when it is repeated.
    pub(crate) fn stall(&mut self, now: Duration, rng: &mut SmallRng) -> Option<Duration> {
        let at = now + repeat_after(self.repeats, rng);
        self.repeats += 1;
        self.queue.front_mut()?.0 = at;
        self.is_moving = true;
        Some(at)
    }

    /// All that is on its way is lost.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.waiting_bytes = 0;
    }

    /// The head has arrived.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<Parcel> {
        self.repeats = 0;
        let (_, parcel) = self.queue.pop_front()?;
        self.waiting_bytes -= parcel.bytes();
        // What was behind it is there already.
        if let Some((next, _)) = self.queue.front_mut() {
            *next = (*next).max(now);
        }
        self.last_arrival = self.last_arrival.max(now);
        Some(parcel)
    }
}

/// A connection; `ways[i]` leads away from `ends[i]`.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) ends: [End; 2],
    pub(crate) ways: [Way; 2],
}

impl Link {
    pub(crate) fn new(ends: [End; 2]) -> Self {
        Self { ends, ways: Default::default() }
    }

    /// Whether a ping from `side` would be answered, as far as the network goes.
    pub(crate) fn passes(&self, side: usize, network: &Network) -> bool {
        network.is_open(self.ends[side].host, self.ends[1 - side].host) && self.ways.iter().all(|way| way.repeats == 0)
    }
}
