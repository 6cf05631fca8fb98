//! Measuring the way to another peer: round trips, throughput both ways, and whether it can be dialled from there.
//!
//! `answer` is the half that is asked, `survey` goes over all ways that lead to a peer.

mod answer;
mod survey;

pub(super) use answer::Answerer;
pub use survey::{HolePunch, Survey, Tried, Way};

use super::{
    Connection, OpenError, Peer,
    streams::EndingIo,
    swarm::{Command, OneDial, resolve_all},
};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use libp2p::{Multiaddr, PeerId};
use otela_proto::measure::{
    BULK_BYTES_MAX, BULK_WITHIN_MAX, Bulk, ECHO_BYTES_MAX, ECHOES_MAX, FRAME_BYTES_MAX, Order, Outcome, Refusal, Reply,
};
use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

/// A peer that is asked has this long for each answer, beyond what was ordered.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a peer may take to see that a measurement is over.
const END_WITHIN: Duration = Duration::from_secs(2);
/// All dials of one address end within this.
const DIAL_WITHIN: Duration = Duration::from_secs(8);

/// What is measured on each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Round trips; at most [`ECHOES_MAX`].
    pub count: u32,
    /// Bytes each way; at most [`BULK_BYTES_MAX`].
    pub bytes: u64,
    /// How long these may take, each way; at most [`BULK_WITHIN_MAX`]. What has come by then counts.
    pub within: Duration,
}

/// What a way was measured to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// In ascending order.
    pub round_trips: Vec<Duration>,
    /// From here to there.
    pub up: Rate,
    /// From there to here.
    pub down: Rate,
}

/// How much went through in which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate {
    /// Bytes of bulk, without what the transport adds.
    pub bytes: u64,
    /// From the first to the last.
    pub took: Duration,
}

impl Rate {
    /// In bytes per second; 0 if nothing was asked for.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        let seconds = self.took.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }
}

/// Why a way was not measured to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No substream could be opened.
    #[error("no stream could be opened")]
    Open(#[from] OpenError),
    /// The stream broke.
    #[error("the stream broke: the peer may be too old to be measured, or of another mesh")]
    Broken(#[source] io::Error),
    /// The peer does not grant it.
    #[error(transparent)]
    Refused(Refusal),
    /// The peer says what it should not.
    #[error("the peer does not answer as it should")]
    Protocol,
    /// The peer says nothing.
    #[error("no answer in time")]
    Silent,
}

/// An address leads nowhere; the reason in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(pub String);

/// Longer frames are refused before any room is made for them.
fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec()
}

impl Peer {
    /// Dials one address, whether its peer is connected or not. Without `to` anybody may be there.
    ///
    /// # Errors
    /// [`Unreached`].
    pub async fn dial_at(&self, to: Option<PeerId>, address: &Multiaddr) -> Result<Arc<Connection>, Unreached> {
        let resolved = resolve_all(vec![address.clone()]).await;
        let resolved = resolved.map_err(|error| Unreached(format!("the name cannot be resolved: {error}")))?;
        let mut failed = Unreached("the name has no address that could be dialled".to_owned());
        for address in resolved {
            let (reached, outcome) = oneshot::channel();
            let stopped = || Unreached("the peer has stopped".to_owned());
            let dial = OneDial { peer: to, address, fresh_port: false };
            self.inner.commands.send(Command::DialAt(dial, reached)).await.map_err(|_| stopped())?;
            match timeout(DIAL_WITHIN, outcome).await {
                Ok(Ok(Ok(id))) => match self.connections().into_iter().find(|connection| connection.id() == id) {
                    Some(connection) => return Ok(connection),
                    None => failed = Unreached("the connection was closed at once".to_owned()),
                },
                Ok(Ok(Err(why))) => failed = Unreached(why),
                Ok(Err(_)) => return Err(stopped()),
                Err(_) => failed = Unreached(format!("no answer within {DIAL_WITHIN:?}")),
            }
        }
        Err(failed)
    }

    /// Closes one connection.
    pub async fn close(&self, connection: &Connection) {
        // Not there any more is as good.
        let _ = self.inner.commands.send(Command::Close(connection.peer(), connection.id())).await;
    }

    /// Measures the way over one connection. The other side bounds what it grants.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn measure(&self, connection: &Connection, wanted: &Wanted) -> Result<Measured, ProbeError> {
        let mut asking = self.ask_of(connection).await?;
        let measured = asking.measure(wanted).await;
        asking.end().await;
        measured
    }

    /// Asks the peer at the other end of a direct connection to dial these addresses of ours; what became of each.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub async fn dialled_back(
        &self,
        connection: &Connection,
        addresses: Vec<Multiaddr>,
    ) -> Result<Vec<Outcome>, ProbeError> {
        let mut asking = self.ask_of(connection).await?;
        let dialled = asking.dialled(addresses).await;
        asking.end().await;
        dialled
    }

    async fn ask_of(&self, connection: &Connection) -> Result<Asking, ProbeError> {
        let opened = timeout(ANSWER_WITHIN, connection.open(self.inner.probe.clone())).await;
        let stream = opened.map_err(|_| ProbeError::Silent)??;
        Ok(Asking { frames: Framed::new(stream, codec()) })
    }
}

/// One substream of the protocol, seen from the half that asks. A connection with one is in use, and not closed beside
/// a better one.
struct Asking {
    frames: Framed<EndingIo, LengthDelimitedCodec>,
}

impl Asking {
    async fn measure(&mut self, wanted: &Wanted) -> Result<Measured, ProbeError> {
        let bulk = Bulk { bytes: wanted.bytes.min(BULK_BYTES_MAX), within: wanted.within.min(BULK_WITHIN_MAX) };
        let round_trips = self.round_trips(wanted.count.min(ECHOES_MAX)).await?;
        let limit = bulk.within + ANSWER_WITHIN;
        let up = timeout(limit, self.up(bulk)).await.map_err(|_| ProbeError::Silent)??;
        let down = timeout(limit, self.down(bulk)).await.map_err(|_| ProbeError::Silent)??;
        Ok(Measured { round_trips, up, down })
    }

    async fn dialled(&mut self, addresses: Vec<Multiaddr>) -> Result<Vec<Outcome>, ProbeError> {
        self.send(Order::Dial(addresses).write()).await?;
        match self.reply().await? {
            Reply::Dialled(outcomes) => Ok(outcomes),
            Reply::Refused(refusal) => Err(ProbeError::Refused(refusal)),
            Reply::Go | Reply::Taken(_) => Err(ProbeError::Protocol),
        }
    }

    /// Closes our half and waits until the peer has closed its own: it grants one measurement at once, and until then
    /// counts this one.
    async fn end(mut self) {
        let closed = async {
            if SinkExt::<Bytes>::close(&mut self.frames).await.is_ok() {
                while let Some(Ok(_)) = self.frames.next().await {}
            }
        };
        // A peer that does not close says so itself when it refuses the next one.
        let _ = timeout(END_WITHIN, closed).await;
    }

    async fn send(&mut self, frame: Bytes) -> Result<(), ProbeError> {
        self.frames.send(frame).await.map_err(ProbeError::Broken)
    }

    async fn next(&mut self) -> Result<Bytes, ProbeError> {
        match timeout(ANSWER_WITHIN, self.frames.next()).await {
            Ok(Some(frame)) => frame.map(bytes::BytesMut::freeze).map_err(ProbeError::Broken),
            Ok(None) => Err(ProbeError::Broken(io::ErrorKind::UnexpectedEof.into())),
            Err(_) => Err(ProbeError::Silent),
        }
    }

    async fn reply(&mut self) -> Result<Reply, ProbeError> {
        let frame = self.next().await?;
        Reply::read(&frame).map_err(|_| ProbeError::Protocol)
    }

    /// Gives an order that is to be granted.
    async fn order(&mut self, order: &Order) -> Result<(), ProbeError> {
        self.send(order.write()).await?;
        match self.reply().await? {
            Reply::Go => Ok(()),
            Reply::Refused(refusal) => Err(ProbeError::Refused(refusal)),
            Reply::Taken(_) | Reply::Dialled(_) => Err(ProbeError::Protocol),
        }
    }

    async fn round_trips(&mut self, count: u32) -> Result<Vec<Duration>, ProbeError> {
        self.order(&Order::Echo { count }).await?;
        let mut took = Vec::new();
        for number in 0..count {
            let mut sent = [0; ECHO_BYTES_MAX];
            sent[..4].copy_from_slice(&number.to_be_bytes());
            let began = Instant::now();
            self.send(Bytes::copy_from_slice(&sent)).await?;
            if self.next().await?[..] != sent {
                return Err(ProbeError::Protocol);
            }
            took.push(began.elapsed());
        }
        took.sort_unstable();
        Ok(took)
    }

    async fn up(&mut self, bulk: Bulk) -> Result<Rate, ProbeError> {
        self.order(&Order::Take(bulk)).await?;
        let began = Instant::now();
        let bytes = send_bulk(&mut self.frames, bulk).await.map_err(ProbeError::Broken)?;
        match self.reply().await? {
            Reply::Taken(taken) if taken == bytes => Ok(Rate { bytes, took: began.elapsed() }),
            _ => Err(ProbeError::Protocol),
        }
    }

    async fn down(&mut self, bulk: Bulk) -> Result<Rate, ProbeError> {
        self.order(&Order::Send(bulk)).await?;
        let began = Instant::now();
        let mut bytes = 0;
        loop {
            let chunk = self.next().await?;
            if chunk.is_empty() {
                return Ok(Rate { bytes, took: began.elapsed() });
            }
            bytes += chunk.len() as u64;
            if bytes > bulk.bytes {
                return Err(ProbeError::Protocol);
            }
        }
    }
}

/// Sends bulk, and the empty chunk that ends it. Returns how much it was.
async fn send_bulk(frames: &mut Framed<EndingIo, LengthDelimitedCodec>, bulk: Bulk) -> io::Result<u64> {
    static ZEROS: [u8; FRAME_BYTES_MAX] = [0; FRAME_BYTES_MAX];
    let (began, mut sent) = (Instant::now(), 0);
    while sent < bulk.bytes && began.elapsed() < bulk.within {
        let chunk = (bulk.bytes - sent).min(FRAME_BYTES_MAX as u64);
        frames.feed(Bytes::from_static(&ZEROS[..chunk as usize])).await?;
        sent += chunk;
        // A stream that always takes more would keep others of this thread waiting.
        tokio::task::yield_now().await;
    }
    frames.send(Bytes::new()).await?;
    Ok(sent)
}
