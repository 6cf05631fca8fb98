//! Gossip streams. Each side writes on the stream that it opened and reads on the one it accepted, so neither
//! waits for the other and no tie has to be broken.

use super::{
    defaults::{LINK_QUEUE, SEEN_MAX},
    gossip::Event,
    metrics::PeerMetrics,
    own::unix_ms,
    streams::{Connection, EndingIo, OpenError},
};
use crate::tasks::Tasks;
use bytes::Bytes;
use futures::{SinkExt, StreamExt, future::join_all};
use libp2p::{PeerId, StreamProtocol, core::upgrade::NegotiationError};
use otela_proto::{
    entry::{Entry, SignedHash},
    id::MeshName,
    wire::{FRAME_BYTES_MAX, Frame, Say},
};
use prost::Message;
use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWrite},
    sync::{mpsc, oneshot},
};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

/// A broken stream on a standing connection is opened again after this pause.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// The hashes of entries that were verified not long ago: two generations, so that it is bounded and cheap.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<[HashSet<SignedHash>; 2]>);

impl Seen {
    fn contains(&self, hash: &SignedHash) -> bool {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.iter().any(|seen| seen.contains(hash))
    }

    fn insert(&self, hash: SignedHash) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    metrics: PeerMetrics,
}

impl Reader {
    pub(super) fn new(mesh: MeshName, events: mpsc::Sender<Event>, metrics: PeerMetrics) -> Self {
        Self { mesh, events, seen: Arc::default(), metrics }
    }

    /// Reads until the stream ends or breaks the protocol.
    pub(super) async fn read(self, peer: PeerId, stream: EndingIo) {
        let mut frames = FramedRead::new(stream, codec());
        while let Some(frame) = frames.next().await {
            let say = match frame.map(|bytes| Frame::decode(bytes.freeze())) {
                Ok(Ok(Frame { say: Some(say) })) => say,
                // A newer peer may say something that we do not know.
                Ok(Ok(Frame { say: None })) => continue,
                Ok(Err(error)) => {
                    self.metrics.frames_malformed.inc();
                    tracing::warn!(%peer, %error, "closing a gossip stream: malformed frame");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%peer, %error, "gossip stream ended");
                    return;
                }
            };
            let event = match say {
                Say::Entries(page) => Event::Entries(peer, self.verify(peer, &page.signed)),
                say => Event::Heard(peer, say),
            };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }

    fn verify(&self, peer: PeerId, signed: &[Vec<u8>]) -> Vec<Entry> {
        let now_ms = unix_ms();
        let mut entries = Vec::new();
        for bytes in signed {
            let hash = SignedHash::of(bytes);
            if self.seen.contains(&hash) {
                continue;
            }
            match Entry::open(bytes, &self.mesh, now_ms) {
                Ok(entry) => {
                    self.seen.insert(hash);
                    entries.push(entry);
                }
                Err(refusal) => {
                    self.metrics.refused(refusal);
                    tracing::warn!(from = %peer, reason = refusal.reason(), "entry refused");
                }
            }
        }
        entries
    }
}

enum Outgoing {
    Frame(Frame),
    /// Answered when everything before it has been written.
    Flushed(oneshot::Sender<()>),
}

/// The streams that we write on, one for each neighbour.
#[derive(Debug)]
pub(super) struct Links {
    protocol: StreamProtocol,
    writers: HashMap<PeerId, mpsc::Sender<Outgoing>>,
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

    /// Opens a stream on `connection`. Frames queue from now on.
    pub(super) fn open(&mut self, connection: &Arc<Connection>) {
        let (frames, queue) = mpsc::channel(LINK_QUEUE);
        let peer = connection.peer();
        self.writers.insert(peer, frames);
        let (connection, protocol, events) = (Arc::clone(connection), self.protocol.clone(), self.events.clone());
        self.tasks.spawn(async move {
            let stranger = match write(&connection, protocol, queue).await {
                // The queue was closed: the link is no longer wanted.
                Ok(()) => return,
                Err(error) => is_stranger(&error),
            };
            let event = if stranger { Event::Stranger(peer) } else { Event::StreamEnded(peer) };
            if !stranger {
                tokio::time::sleep(REOPEN_AFTER).await;
            }
            let _ = events.send(event).await;
        });
    }

    pub(super) fn close(&mut self, peer: &PeerId) {
        self.writers.remove(peer);
    }

    /// Queues a frame; a full queue drops it, which anti-entropy heals.
    pub(super) fn send(&self, to: &PeerId, frame: Frame) {
        let Some(writer) = self.writers.get(to) else { return };
        match writer.try_send(Outgoing::Frame(frame)) {
            Ok(()) => self.metrics.frames_sent.inc(),
            Err(_) => self.metrics.frames_dropped.inc(),
        };
    }

    /// Resolves when what is queued now has been written to every neighbour.
    pub(super) fn flushed(&self) -> impl Future<Output = ()> + Send + 'static {
        let waits: Vec<_> = self
            .writers
            .values()
            .filter_map(|writer| {
                let (done, flushed) = oneshot::channel();
                writer.try_send(Outgoing::Flushed(done)).ok()?;
                Some(flushed)
            })
            .collect();
        async {
            join_all(waits).await;
        }
    }
}

async fn write(
    connection: &Connection,
    protocol: StreamProtocol,
    mut queue: mpsc::Receiver<Outgoing>,
) -> Result<(), OpenError> {
    let stream = connection.open(protocol).await?;
    let (mut reading, writing) = tokio::io::split(stream);
    let mut frames = FramedWrite::new(writing, codec());
    // The neighbour says nothing here; a read ends when the stream does, or when negotiation, which is lazy, fails.
    let mut nothing = [0; 1];
    let ended = reading.read(&mut nothing);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            outgoing = queue.recv() => match outgoing {
                None => return Ok(()),
                Some(outgoing) => write_one(&mut frames, outgoing).await.map_err(OpenError::Io)?,
            },
            read = &mut ended => {
                let error = read.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                return Err(OpenError::Io(error));
            }
        }
    }
}

async fn write_one<W: AsyncWrite + Unpin>(
    frames: &mut FramedWrite<W, LengthDelimitedCodec>,
    outgoing: Outgoing,
) -> io::Result<()> {
    match outgoing {
        Outgoing::Frame(frame) => frames.send(Bytes::from(frame.encode_to_vec())).await,
        Outgoing::Flushed(done) => {
            let _ = done.send(());
            Ok(())
        }
    }
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

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec()
}
