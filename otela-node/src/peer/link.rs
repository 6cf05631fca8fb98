//! Gossip streams. Each side writes on the stream that it opened and reads on the one it accepted, so neither
//! waits for the other and no tie has to be broken.

use super::{
    defaults::{READ_BYTES_MAX, READ_FRAMES_MAX, SEEN_MAX},
    frames::codec,
    gossip::{Event, unix_ms},
    metrics::PeerMetrics,
    streams::{Connection, OpenError, Path},
};
use crate::tasks::Tasks;
use bytes::Bytes;
use futures::{SinkExt, StreamExt, future::join_all};
use libp2p::{PeerId, StreamProtocol, core::upgrade::NegotiationError, swarm::ConnectionId};
use otela_proto::{
    accusation::Accusation,
    entry::{Entry, Fingerprint, Refusal},
    gossip::Outbox,
    id::MeshName,
    member::Parcel,
    wire::{Entries, Frame, Probe, Say},
};
use prost::Message;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tokio_util::{
    codec::{FramedRead, FramedWrite, LengthDelimitedCodec},
    sync::CancellationToken,
};

/// A broken stream on a standing connection is opened again after this pause.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// All connections to one peer are written on for this long after one was added, so that two processes with one key
/// learn of each other, and that a connection which leads nowhere is seen. After that only the best is, or an idle link
/// would cost twice.
const SECOND_FOR: Duration = Duration::from_secs(30);

/// The number of a probe whose answer only shows that the connections to a neighbour lead somewhere; the core counts
/// upwards from one and never gets there.
const ARE_YOU_THERE: u32 = u32::MAX - 1;

/// Something to which a neighbour answers on each connection.
pub(super) fn are_you_there() -> Say {
    Say::Probe(Probe { number: ARE_YOU_THERE })
}

/// The hashes of signed bytes that were verified not long ago: two generations, so that it is bounded and cheap.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<[HashSet<Fingerprint>; 2]>);

impl Seen {
    fn contains(&self, hash: &Fingerprint) -> bool {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.iter().any(|seen| seen.contains(hash))
    }

    fn insert(&self, hash: Fingerprint) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations[0].contains(&hash) {
            return;
        }
        if generations[0].len() >= SEEN_MAX / 2 {
            let [young, old] = &mut *generations;
            std::mem::swap(young, old);
            young.clear();
        }
        generations[0].insert(hash);
    }
}

/// Reads what neighbours send.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    mesh: MeshName,
    events: mpsc::Sender<Event>,
    seen: Arc<Seen>,
    /// Of provider certificates, and of memberships. Bytes that are good as one kind of statement say nothing as another.
    certificates: Arc<Seen>,
    memberships: Arc<Seen>,
    metrics: PeerMetrics,
}

impl Reader {
    pub(super) fn new(mesh: MeshName, events: mpsc::Sender<Event>, metrics: PeerMetrics) -> Self {
        Self { mesh, events, seen: Arc::default(), certificates: Arc::default(), memberships: Arc::default(), metrics }
    }

    /// Reads until the stream ends or breaks the protocol.
    pub(super) async fn read(self, peer: PeerId, stream: impl AsyncRead + Unpin) {
        let mut frames = FramedRead::new(stream, codec());
        let mut allowance = Allowance::new();
        while let Some(frame) = frames.next().await {
            let bytes = match frame {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.metrics.frames_malformed.inc();
                    tracing::warn!(%peer, %error, "closing a gossip stream: frame too large");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%peer, %error, "gossip stream ended");
                    return;
                }
            };
            if let Some(pause) = allowance.take(bytes.len()) {
                // Not reading is what slows a flooder down: its stream's window fills.
                self.metrics.reads_throttled.inc();
                tokio::time::sleep(pause).await;
            }
            let event = match Frame::decode(bytes.freeze()) {
                Ok(Frame { say: Some(Say::Entries(page)) }) => self.verify(peer, &page),
                Ok(Frame { say: Some(say) }) => Event::Heard(peer, say),
                // A newer peer may say something that we do not know.
                Ok(Frame { say: None }) => continue,
                Err(error) => {
                    self.metrics.frames_malformed.inc();
                    tracing::warn!(%peer, %error, "closing a gossip stream: malformed frame");
                    return;
                }
            };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }

    fn verify(&self, peer: PeerId, page: &Entries) -> Event {
        let now_ms = unix_ms();
        let entries = self.open(peer, &page.signed, |bytes, seen| {
            let entry = if seen { Entry::reopen(bytes, now_ms) } else { Entry::open(bytes, &self.mesh, now_ms) }?;
            if let Some(good) = entry.check_certificate(|hash| self.certificates.contains(hash)) {
                self.certificates.insert(good);
            }
            if let Some(good) = entry.check_membership(&self.mesh, |hash| self.memberships.contains(hash)) {
                self.memberships.insert(good);
            }
            Ok(entry)
        });
        let accusations = self.open(peer, &page.accusations, |bytes, seen| {
            if seen { Accusation::reopen(bytes, now_ms) } else { Accusation::open(bytes, &self.mesh, now_ms) }
        });
        Event::Entries(peer, entries, accusations)
    }

    /// Checks each of `signed`; the signature only if these bytes were not seen lately. What was seen is passed on all
    /// the same: the core may have had no use for it the first time.
    fn open<T>(&self, from: PeerId, signed: &[Bytes], open: impl Fn(&[u8], bool) -> Result<T, Refusal>) -> Vec<T> {
        let mut opened = Vec::new();
        for bytes in signed {
            let hash = Fingerprint::of(bytes);
            match open(bytes, self.seen.contains(&hash)) {
                Ok(statement) => {
                    self.seen.insert(hash);
                    opened.push(statement);
                }
                Err(refusal) => self.metrics.refused(refusal.reason(), &from),
            }
        }
        opened
    }
}

/// What one neighbour may send in a second before it is read more slowly.
#[derive(Debug)]
struct Allowance {
    began: Instant,
    frames: usize,
    bytes: usize,
}

impl Allowance {
    fn new() -> Self {
        Self { began: Instant::now(), frames: 0, bytes: 0 }
    }

    /// Counts a frame. Returns for how long not to read on.
    fn take(&mut self, bytes: usize) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        if elapsed >= Duration::from_secs(1) {
            *self = Self::new();
        }
        self.frames += 1;
        self.bytes += bytes;
        let over = self.frames > READ_FRAMES_MAX || self.bytes > READ_BYTES_MAX;
        over.then(|| Duration::from_secs(1).saturating_sub(elapsed))
    }
}

/// What waits for one neighbour, and who wants to know when it has been written.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<(Outbox, Vec<oneshot::Sender<()>>)>,
    filled: Notify,
}

impl Queue {
    fn with<T>(&self, f: impl FnOnce(&mut Outbox, &mut Vec<oneshot::Sender<()>>) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (outbox, flushes) = &mut *waiting;
        f(outbox, flushes)
    }
}

/// A stream that we write on.
#[derive(Debug)]
struct Writer {
    connection: ConnectionId,
    path: Path,
    opened: Instant,
    queue: Arc<Queue>,
    closed: CancellationToken,
}

/// The streams that we write on, one on each connection; those to one peer with the best connection's first.
#[derive(Debug)]
pub(super) struct Links {
    protocol: StreamProtocol,
    writers: HashMap<PeerId, Vec<Writer>>,
    events: mpsc::Sender<Event>,
    metrics: PeerMetrics,
    tasks: Tasks,
}

impl Links {
    pub(super) fn new(
        protocol: StreamProtocol,
        events: mpsc::Sender<Event>,
        metrics: PeerMetrics,
        tasks: Tasks,
    ) -> Self {
        Self { protocol, writers: HashMap::new(), events, metrics, tasks }
    }

    /// Opens a stream on `connection`. What is sent queues from now on.
    pub(super) fn open(&mut self, connection: &Arc<Connection>) {
        let (queue, closed) = (Arc::new(Queue::default()), CancellationToken::new());
        let (peer, id) = (connection.peer(), connection.id());
        self.close(&peer, id);
        let writer = Writer {
            connection: id,
            path: connection.path(),
            opened: Instant::now(),
            queue: Arc::clone(&queue),
            closed: closed.clone(),
        };
        let writers = self.writers.entry(peer).or_default();
        // Direct ones first, the oldest of these foremost.
        let place = writers.iter().position(|other| other.path > connection.path()).unwrap_or(writers.len());
        writers.insert(place, writer);
        let (connection, protocol, events) = (Arc::clone(connection), self.protocol.clone(), self.events.clone());
        let metrics = self.metrics.clone();
        self.tasks.spawn(async move {
            let error = tokio::select! {
                () = closed.cancelled() => return,
                error = write(&connection, protocol, &queue, &metrics) => error,
            };
            let stranger = is_stranger(&error);
            if !stranger {
                tokio::time::sleep(REOPEN_AFTER).await;
            }
            let event = if stranger { Event::Stranger(peer) } else { Event::StreamEnded(peer, id) };
            let _ = events.send(event).await;
        });
    }

    /// Closes the stream on one connection.
    pub(super) fn close(&mut self, peer: &PeerId, id: ConnectionId) {
        let Some(writers) = self.writers.get_mut(peer) else { return };
        for closed in writers.extract_if(.., |writer| writer.connection == id) {
            closed.closed.cancel();
        }
        if writers.is_empty() {
            self.writers.remove(peer);
        }
    }

    /// Closes all streams to one peer.
    pub(super) fn close_all(&mut self, peer: &PeerId) {
        for writer in self.writers.remove(peer).into_iter().flatten() {
            writer.closed.cancel();
        }
    }

    /// Queues a parcel. The queue is bounded: of too many the oldest go, which anti-entropy heals.
    pub(super) fn send(&self, to: &PeerId, parcel: &Parcel) {
        let Some(writers) = self.writers.get(to) else { return };
        let all = writers.iter().any(|writer| writer.opened.elapsed() < SECOND_FOR);
        for Writer { queue, .. } in writers.iter().take(if all { writers.len() } else { 1 }) {
            let dropped = queue.with(|outbox, _| outbox.push(parcel.clone()));
            self.metrics.parcels_dropped.inc_by(dropped as u64);
            queue.filled.notify_one();
        }
    }

    /// An event of our own, told after those that wait.
    pub(super) fn tell_self(&self, event: Event) {
        self.tell_self_when(async {}, event);
    }

    /// An event of our own, told when `something` has happened.
    pub(super) fn tell_self_when(&self, something: impl Future<Output = ()> + Send + 'static, event: Event) {
        let events = self.events.clone();
        self.tasks.spawn(async move {
            something.await;
            // The gossip task is gone only while the peer stops.
            let _ = events.send(event).await;
        });
    }

    /// Resolves when what is queued now for `neighbours` has been written to each of them, or cannot be.
    pub(super) fn flushed_to(&self, neighbours: &BTreeSet<PeerId>) -> impl Future<Output = ()> + Send + 'static {
        let writers = neighbours.iter().filter_map(|neighbour| self.writers.get(neighbour)).flatten();
        let waits: Vec<_> = writers.map(|writer| flush(&writer.queue)).collect();
        async {
            join_all(waits).await;
        }
    }
}

fn flush(queue: &Queue) -> oneshot::Receiver<()> {
    let (done, flushed) = oneshot::channel();
    queue.with(|_, flushes| flushes.push(done));
    queue.filled.notify_one();
    flushed
}

/// Writes what is queued until the stream ends.
async fn write(connection: &Connection, protocol: StreamProtocol, queue: &Queue, metrics: &PeerMetrics) -> OpenError {
    let stream = match connection.open(protocol).await {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let (mut reading, writing) = tokio::io::split(stream);
    let mut frames = FramedWrite::new(writing, codec());
    // The neighbour says nothing here; a read ends when the stream does, or when negotiation, which is lazy, fails.
    let mut nothing = [0; 1];
    let ended = reading.read(&mut nothing);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = queue.filled.notified() => {
                if let Err(error) = drain(&mut frames, queue, metrics).await {
                    return OpenError::Io(error);
                }
            }
            read = &mut ended => {
                let error = read.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                return OpenError::Io(error);
            }
        }
    }
}

async fn drain<W: AsyncWrite + Unpin>(
    frames: &mut FramedWrite<W, LengthDelimitedCodec>,
    queue: &Queue,
    metrics: &PeerMetrics,
) -> io::Result<()> {
    while let Some(frame) = queue.with(|outbox, _| outbox.pop()) {
        let bytes = frame.encode_to_vec();
        metrics.frames_sent.inc();
        metrics.bytes_sent.inc_by(bytes.len() as u64);
        frames.send(Bytes::from(bytes)).await?;
    }
    for done in queue.with(|outbox, flushes| if outbox.is_empty() { std::mem::take(flushes) } else { Vec::new() }) {
        // One that has given up does not mind.
        let _ = done.send(());
    }
    Ok(())
}

/// Whether the remote does not speak our mesh's protocol.
fn is_stranger(error: &OpenError) -> bool {
    match error {
        OpenError::Unsupported(_) => true,
        OpenError::Io(error) => {
            error.get_ref().is_some_and(|e| matches!(e.downcast_ref(), Some(NegotiationError::Failed)))
        }
        OpenError::Closed | OpenError::Timeout => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p_identity::Keypair;
    use otela_proto::{
        entry::{Draft, Rank},
        id::Epoch,
        lifecycle::Lifecycle,
        payload::Payload,
    };

    #[test]
    fn what_was_seen_is_passed_on_again_but_not_when_it_was_tampered_with() {
        let mesh: MeshName = "lab".parse().unwrap();
        let reader = Reader::new(mesh.clone(), mpsc::channel(1).0, PeerMetrics::default());
        let rank = Rank { epoch: Epoch(1), lifecycle: Lifecycle::Join, version: 1 };
        let draft = Draft { rank, issued_at_ms: unix_ms(), payload: Payload::default() };
        let entry = Entry::sign(&Keypair::generate_ed25519(), &mesh, draft).unwrap();
        let mut tampered = entry.signed().to_vec();
        *tampered.last_mut().unwrap() ^= 1;
        let page = Entries {
            signed: vec![Bytes::copy_from_slice(entry.signed()), Bytes::from(tampered)],
            accusations: Vec::new(),
        };
        for _ in 0..2 {
            let Event::Entries(_, entries, _) = reader.verify(PeerId::random(), &page) else { panic!("entries") };
            assert_eq!(entries.iter().map(Entry::id).collect::<Vec<_>>(), [entry.id()]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_at_a_bounded_rate_and_to_its_end() {
        const FRAMES: usize = 3 * READ_FRAMES_MAX;
        let (events, mut heard) = mpsc::channel(16);
        let metrics = PeerMetrics::default();
        let reader = Reader::new("lab".parse().unwrap(), events, metrics.clone());
        let (near, far) = tokio::io::duplex(64 * 1024);
        // All of them at one moment of a clock that moves only while everybody waits for it.
        let flood = async {
            let mut frames = FramedWrite::new(near, codec());
            for number in 0..FRAMES {
                let frame = Frame { say: Some(Say::Probe(Probe { number: u32::try_from(number).unwrap() })) };
                frames.send(Bytes::from(frame.encode_to_vec())).await.unwrap();
            }
        };
        let hears = async {
            let mut count = 0;
            while heard.recv().await.is_some() {
                count += 1;
            }
            count
        };
        let began = Instant::now();
        let (count, (), ()) = tokio::join!(hears, flood, reader.read(PeerId::random(), far));
        assert_eq!(count, FRAMES);
        assert_eq!(began.elapsed(), Duration::from_secs(2), "a pause after each {READ_FRAMES_MAX}");
        assert_eq!(metrics.reads_throttled.get(), 2);
    }

    #[test]
    fn who_sends_too_much_is_read_more_slowly() {
        let mut allowance = Allowance::new();
        assert!((0..READ_FRAMES_MAX).all(|_| allowance.take(1).is_none()));
        assert!(allowance.take(1).is_some_and(|pause| pause <= Duration::from_secs(1)));
        assert!(Allowance::new().take(READ_BYTES_MAX + 1).is_some());
    }
}
