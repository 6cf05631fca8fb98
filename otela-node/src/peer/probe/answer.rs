//! The half that is asked. What it grants is bounded: one measurement of a peer at once and few in all, so much in a
//! minute, and dials only of the host that asks.

use super::{codec, send_bulk};
use crate::peer::{
    defaults::{
        PROBE_BYTES_PER_MINUTE, PROBE_DIAL_WITHIN, PROBE_DIALS_PER_MINUTE, PROBE_IDLE_MAX, PROBE_ORDERS_MAX,
        PROBE_STREAM_FOR_MAX, PROBES_MAX,
    },
    metrics::PeerMetrics,
    streams::{EndingIo, Path, Streams},
    swarm::{Command, OneDial},
    transport::socket_of,
};
use bytes::Bytes;
use futures::{SinkExt, StreamExt, future::join_all};
use libp2p::{Multiaddr, PeerId};
use otela_proto::measure::{Bulk, ECHO_BYTES_MAX, Order, Outcome, Refusal, Reply};
use std::{
    collections::HashSet,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

type Frames = Framed<EndingIo, LengthDelimitedCodec>;

/// Answers on the substreams that others open. Cloning shares the bounds.
#[derive(Debug, Clone)]
pub(in crate::peer) struct Answerer {
    under_way: Arc<Mutex<UnderWay>>,
    streams: Streams,
    commands: mpsc::Sender<Command>,
    metrics: PeerMetrics,
}

#[derive(Debug)]
struct UnderWay {
    peers: HashSet<PeerId>,
    minute: Instant,
    spent_bytes: u64,
    dials: usize,
}

impl UnderWay {
    fn begin(&mut self, peer: PeerId) -> Result<(), Refusal> {
        if self.peers.contains(&peer) {
            return Err(Refusal::OneAtATime);
        }
        if self.peers.len() >= PROBES_MAX {
            return Err(Refusal::Busy);
        }
        self.peers.insert(peer);
        Ok(())
    }

    fn spend(&mut self, bytes: u64, dials: usize, now: Instant) -> Result<(), Refusal> {
        if now.duration_since(self.minute) >= Duration::from_mins(1) {
            (self.minute, self.spent_bytes, self.dials) = (now, 0, 0);
        }
        let (spent_bytes, dials) = (self.spent_bytes.saturating_add(bytes), self.dials + dials);
        if spent_bytes > PROBE_BYTES_PER_MINUTE || dials > PROBE_DIALS_PER_MINUTE {
            return Err(Refusal::Spent);
        }
        (self.spent_bytes, self.dials) = (spent_bytes, dials);
        Ok(())
    }
}

/// A peer that is being measured, until this is dropped.
struct Place<'a> {
    answerer: &'a Answerer,
    peer: PeerId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.answerer.under_way().peers.remove(&self.peer);
    }
}

impl Answerer {
    pub(in crate::peer) fn new(streams: Streams, commands: mpsc::Sender<Command>, metrics: PeerMetrics) -> Self {
        let under_way = UnderWay { peers: HashSet::new(), minute: Instant::now(), spent_bytes: 0, dials: 0 };
        Self { under_way: Arc::new(Mutex::new(under_way)), streams, commands, metrics }
    }

    /// Answers until the stream ends, breaks the protocol or has lasted long enough.
    pub(in crate::peer) async fn answer(self, peer: PeerId, stream: EndingIo) {
        let mut frames = Framed::new(stream, codec());
        match timeout(PROBE_STREAM_FOR_MAX, self.serve(peer, &mut frames)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%peer, %error, "a measurement ended early"),
            Err(_) => tracing::debug!(%peer, "a measurement took too long"),
        }
    }

    async fn serve(&self, peer: PeerId, frames: &mut Frames) -> io::Result<()> {
        let begun = self.under_way().begin(peer);
        let _place = match begun {
            Ok(()) => Place { answerer: self, peer },
            Err(refusal) => return self.refuse(peer, frames, refusal).await,
        };
        for _ in 0..PROBE_ORDERS_MAX {
            let Some(frame) = next(frames).await? else { return Ok(()) };
            let granted = Order::read(&frame).and_then(|order| self.granted(peer, order));
            match granted {
                Ok(order) => self.carry_out(peer, order, frames).await?,
                Err(refusal) => return self.refuse(peer, frames, refusal).await,
            }
        }
        self.refuse(peer, frames, Refusal::TooMuch).await
    }

    fn granted(&self, peer: PeerId, order: Order) -> Result<Order, Refusal> {
        match &order {
            Order::Echo { .. } => {}
            Order::Send(bulk) | Order::Take(bulk) => self.under_way().spend(bulk.bytes, 0, Instant::now())?,
            Order::Dial(addresses) => {
                let seen = self.seen_at(&peer);
                let is_theirs = |address| ip_of(address).is_some_and(|ip| seen.contains(&ip));
                if !addresses.iter().all(is_theirs) {
                    return Err(Refusal::NotYours);
                }
                self.under_way().spend(0, addresses.len(), Instant::now())?;
            }
        }
        Ok(order)
    }

    /// Where a peer's direct connections come from: that it is there is proven.
    fn seen_at(&self, peer: &PeerId) -> HashSet<IpAddr> {
        let all = self.streams.all();
        let direct = all.iter().filter(|c| c.peer() == *peer && c.path() == Path::Direct);
        direct.filter_map(|connection| ip_of(connection.remote())).collect()
    }

    async fn carry_out(&self, peer: PeerId, order: Order, frames: &mut Frames) -> io::Result<()> {
        self.metrics.probes.inc();
        if let Order::Dial(addresses) = order {
            let outcomes = join_all(addresses.into_iter().map(|address| self.dial(peer, address))).await;
            return frames.send(Reply::Dialled(outcomes).write()).await;
        }
        frames.send(Reply::Go.write()).await?;
        match order {
            Order::Echo { count } => echo(frames, count).await,
            Order::Send(bulk) => send_bulk(frames, bulk).await.map(drop),
            Order::Take(bulk) => take(frames, bulk).await,
            Order::Dial(_) => Ok(()),
        }
    }

    async fn dial(&self, peer: PeerId, address: Multiaddr) -> Outcome {
        let (reached, outcome) = oneshot::channel();
        let dial = OneDial { peer: Some(peer), address: address.clone(), fresh_port: true };
        let dial = Command::DialAt(dial, reached);
        let stopped = || Some("the peer has stopped".to_owned());
        if self.commands.send(dial).await.is_err() {
            return Outcome { address, failed: stopped() };
        }
        let failed = match timeout(PROBE_DIAL_WITHIN, outcome).await {
            Ok(Ok(Ok(id))) => {
                // That it stood is all that was to be known.
                let _ = self.commands.send(Command::Close(peer, id)).await;
                None
            }
            Ok(Ok(Err(why))) => Some(why),
            Ok(Err(_)) => stopped(),
            Err(_) => Some(format!("no answer within {PROBE_DIAL_WITHIN:?}")),
        };
        Outcome { address, failed }
    }

    /// Says why not, and waits a moment until that is read.
    async fn refuse(&self, peer: PeerId, frames: &mut Frames, refusal: Refusal) -> io::Result<()> {
        self.metrics.probe_refused(refusal.reason());
        tracing::debug!(%peer, reason = refusal.reason(), "a measurement was refused");
        frames.send(Reply::Refused(refusal).write()).await?;
        SinkExt::<Bytes>::close(frames).await?;
        while next(frames).await?.is_some() {}
        Ok(())
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    socket_of(address).map(|(socket, _)| socket.ip().to_canonical())
}

/// The next frame, or `None` at the end of the stream.
async fn next(frames: &mut Frames) -> io::Result<Option<Bytes>> {
    match timeout(PROBE_IDLE_MAX, frames.next()).await {
        Ok(Some(frame)) => frame.map(|frame| Some(frame.freeze())),
        Ok(None) => Ok(None),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn spoken_wrongly() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not as was ordered")
}

async fn echo(frames: &mut Frames, count: u32) -> io::Result<()> {
    for _ in 0..count {
        let Some(frame) = next(frames).await? else { return Ok(()) };
        if frame.len() > ECHO_BYTES_MAX {
            return Err(spoken_wrongly());
        }
        frames.send(frame).await?;
    }
    Ok(())
}

async fn take(frames: &mut Frames, bulk: Bulk) -> io::Result<()> {
    let mut taken = 0;
    while let Some(chunk) = next(frames).await? {
        if chunk.is_empty() {
            return frames.send(Reply::Taken(taken).write()).await;
        }
        taken += chunk.len() as u64;
        if taken > bulk.bytes {
            return Err(spoken_wrongly());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_peer_few_in_all_and_so_much_in_a_minute() {
        let now = Instant::now();
        let mut under_way = UnderWay { peers: HashSet::new(), minute: now, spent_bytes: 0, dials: 0 };
        let peers: Vec<_> = std::iter::repeat_with(PeerId::random).take(PROBES_MAX + 1).collect();
        for peer in &peers[..PROBES_MAX] {
            assert_eq!(under_way.begin(*peer), Ok(()));
            assert_eq!(under_way.begin(*peer), Err(Refusal::OneAtATime));
        }
        assert_eq!(under_way.begin(peers[PROBES_MAX]), Err(Refusal::Busy));
        let (soon, later) = (now + Duration::from_secs(59), now + Duration::from_mins(1));
        assert_eq!(under_way.spend(PROBE_BYTES_PER_MINUTE, PROBE_DIALS_PER_MINUTE, now), Ok(()));
        assert_eq!(under_way.spend(1, 0, soon), Err(Refusal::Spent));
        assert_eq!(under_way.spend(0, 1, soon), Err(Refusal::Spent));
        assert_eq!(under_way.spend(1, 1, later), Ok(()));
        assert_eq!(under_way.spend(u64::MAX, 0, later), Err(Refusal::Spent));
    }
}
