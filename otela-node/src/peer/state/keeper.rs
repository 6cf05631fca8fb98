//! Writes the state while the peer lives: a task that follows what the peer publishes, so that nobody ever waits for a
//! disk.

use super::{
    State,
    disk::Disk,
    form::{ADDRESSES_MAX, Known, OWN_MAX, PEERS_MAX, Saved, encode},
};
use crate::{
    peer::{bootstrap::Lists, gossip::Published, metrics::PeerMetrics},
    tasks::Tasks,
};
use libp2p::PeerId;
use otela_proto::{
    id::{Epoch, Session},
    lifecycle::Lifecycle,
    payload::Role,
    registry::{Belief, View},
};
use std::{collections::HashMap, io, time::Duration};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

/// Changes are written at most this often.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// After a write that failed, the next one waits this long.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// A disk that cannot be written is complained about this often.
const COMPLAIN_EVERY: Duration = Duration::from_mins(10);
/// At the end the disk has this long.
const LAST_WRITE_WITHIN: Duration = Duration::from_secs(1);

/// The writer of one peer's state.
#[derive(Debug)]
pub(in crate::peer) struct Keeper {
    state: State,
    /// Unset when the key dies with the process: nobody will ever ask for its epoch.
    keeps_epoch: bool,
    published: Published,
    lists: watch::Receiver<Lists>,
    metrics: PeerMetrics,
    writing: Option<JoinHandle<(Disk, Saved, io::Result<()>)>>,
    /// When the change that waits, if any, is to be written.
    due: Option<Instant>,
    not_before: Instant,
    complained: Option<Instant>,
}

impl Keeper {
    /// A writer that begins with what `state` holds.
    pub(in crate::peer) fn new(
        state: State,
        session_lasts: bool,
        published: Published,
        lists: watch::Receiver<Lists>,
        metrics: PeerMetrics,
    ) -> Self {
        metrics.state_files_set_aside.inc_by(state.set_aside);
        let now = Instant::now();
        Self {
            state,
            keeps_epoch: session_lasts,
            published,
            lists,
            metrics,
            writing: None,
            due: Some(now),
            not_before: now,
            complained: None,
        }
    }

    /// Runs until the tasks are stopped, and writes a last time.
    pub(in crate::peer) async fn run(mut self, tasks: Tasks) {
        if !self.state.writable {
            return;
        }
        let (mut views, mut sessions) = (self.published.generation.subscribe(), self.published.session.subscribe());
        let mut lists = self.lists.clone();
        loop {
            let idle = self.writing.is_none();
            tokio::select! {
                Ok(()) = views.changed() => self.changed(),
                Ok(()) = sessions.changed() => self.changed(),
                Ok(()) = lists.changed() => self.changed(),
                () = due(self.due), if idle => self.begin(),
                () = self.written(), if !idle => {}
                () = tasks.stopped() => break,
            }
        }
        let last = async {
            self.written().await;
            self.begin();
            self.written().await;
        };
        if timeout(LAST_WRITE_WITHIN, last).await.is_err() {
            tracing::warn!("the disk of the state directory is slow: the last changes were not written");
        }
    }

    fn changed(&mut self) {
        let not_before = self.not_before;
        self.due.get_or_insert(not_before);
    }

    /// Starts to write, if there is news.
    fn begin(&mut self) {
        self.due = None;
        self.not_before = Instant::now() + WRITE_EVERY;
        let session = *self.published.session.borrow();
        let lists = self.lists.borrow().clone();
        let news = Saved { lists, ..next(&self.state.saved, &self.published.view.load(), session, self.keeps_epoch) };
        if news == self.state.saved {
            return;
        }
        let (mut disk, bytes) = (self.state.disk.clone(), encode(&news, &self.state.mesh));
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let written = disk.write(&bytes);
            (disk, news, written)
        }));
    }

    /// Waits until what is being written, if anything, has been.
    async fn written(&mut self) {
        let Some(writing) = &mut self.writing else { return };
        let outcome = writing.await;
        self.writing = None;
        match outcome {
            Ok((disk, saved, written)) => {
                // It may hold the directory only now.
                self.state.disk = disk;
                match written {
                    Ok(()) => {
                        self.state.saved = saved;
                        self.complained = None;
                    }
                    Err(error) => self.failed(&error),
                }
            }
            Err(error) => self.failed(&io::Error::other(error)),
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.metrics.state_writes_failed.inc();
        let now = Instant::now();
        self.not_before = now + RETRY_AFTER;
        self.due = Some(self.not_before);
        if self.complained.is_none_or(|last| now - last >= COMPLAIN_EVERY) {
            self.complained = Some(now);
            let path = self.state.disk.path();
            tracing::warn!(path = %path.display(), %error, "cannot write the state, will go on trying; nothing else depends on it");
        }
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// What is to be remembered now, given what was.
pub(super) fn next(before: &Saved, view: &View, session: Session, keeps_epoch: bool) -> Saved {
    let mut own = before.own.clone();
    // The gossip task has not begun yet.
    if keeps_epoch && session.epoch != Epoch(0) {
        own.retain(|(peer, _)| *peer != session.peer);
        own.insert(0, (session.peer, session.epoch));
        own.truncate(OWN_MAX);
    }
    Saved { own, peers: pick(&before.peers, view, &session.peer), lists: before.lists.clone() }
}

/// The peers most likely to be there after a restart: those alive before the others, relays first. Those remembered
/// before come before their equals, in their order, so that a large mesh does not change the file for ever.
fn pick(before: &[Known], view: &View, me: &PeerId) -> Vec<Known> {
    let places: HashMap<_, _> = before.iter().enumerate().map(|(n, known)| (known.peer, n)).collect();
    let mut candidates = Vec::new();
    for (peer, node) in view.nodes() {
        let (payload, left) = (node.entry.payload(), node.entry.rank().lifecycle == Lifecycle::Left);
        let relay = payload.has_role(Role::Relay);
        // A relay that has left is likely to come back where it was.
        if peer == me || left && !relay {
            continue;
        }
        let addresses: Vec<_> = payload.multiaddrs().take(ADDRESSES_MAX).collect();
        if addresses.is_empty() {
            continue;
        }
        let dead = left || node.belief != Belief::Alive;
        let place = places.get(peer).copied().unwrap_or(usize::MAX);
        candidates.push(((dead, !relay, place, *peer), Known { peer: *peer, addresses }));
    }
    candidates.sort_unstable_by_key(|(rank, _)| *rank);
    // Whoever has not been heard of in this run stays last: an isolated peer must not forget its mesh.
    let unheard = before.iter().filter(|known| known.peer != *me && view.node(&known.peer).is_none());
    candidates.into_iter().map(|(_, known)| known).chain(unheard.cloned()).take(PEERS_MAX).collect()
}
