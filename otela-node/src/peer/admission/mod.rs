//! The door: who may connect to this peer, decided on every connection before anything else is said on it (OpenTela
//! section 3.3). What is decided, and by which rules, is in [`otela_proto::admission`]; here are the handshake's I/O, the
//! files that rules and statements come from, and what was refused.

mod armor;
mod gate;
mod known;
mod mesh_file;
mod reload;
mod roll;
mod settings;
mod shown;
mod tally;

pub use armor::{ArmorError, Kind, armor, unarmor};
pub use mesh_file::{MeshFile, MeshFileError};
pub use settings::{AdmissionError, AdmissionSettings, OwnBinary, digest, load_statement};
pub use shown::ShownFiles;

pub(super) use tally::{By, Tally};

use super::{
    config::PeerConfig,
    defaults::{ADMISSION_WITHIN, REFUSED_KEPT},
    gossip::unix_ms,
};
use crate::tasks::Tasks;
use arc_swap::ArcSwap;
use known::Known;
use libp2p::{
    PeerId, Transport,
    core::{muxing::StreamMuxerBox, transport::Boxed},
    identity::Keypair,
    swarm::ConnectionId,
};
use otela_proto::admission::{Credentials, Hello, NONCE_BYTES, Refused, Rules};
use prost::Message;
use roll::Roll;
use shown::Shown;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{sync::watch, time::Instant};

/// A transport as it is after encryption: who is at the other end, and what carries substreams.
type Encrypted = Boxed<(PeerId, StreamMuxerBox)>;

/// A transport whose connections pass the door of a peer with this key and these settings: for programs that talk to
/// peers of a mesh without being an otela.
#[must_use]
pub fn guarded(transport: Encrypted, key: &Keypair, settings: &AdmissionSettings) -> Encrypted {
    Admission::new(key.clone(), settings, Tally::default()).guard(transport)
}

/// The door of one peer. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    key: Keypair,
    me: PeerId,
    shown: ArcSwap<Shown>,
    known: Known,
    rules: ArcSwap<Rules>,
    /// Changes with the rules.
    changed: watch::Sender<u64>,
    roll: Mutex<Roll>,
    /// Who was refused last, or has refused us, and when. Bounded: the driver asks soon after.
    refused: Mutex<VecDeque<(Instant, PeerId)>>,
    tally: Tally,
    /// Why the mesh file cannot be used, for as long as that is so.
    unusable: Mutex<Option<String>>,
}

impl Admission {
    fn new(key: Keypair, settings: &AdmissionSettings, tally: Tally) -> Self {
        let inner = Inner {
            me: key.public().to_peer_id(),
            key,
            shown: Shown::of(settings),
            known: Known::default(),
            rules: ArcSwap::from_pointee(settings.rules.clone()),
            changed: watch::Sender::new(0),
            roll: Mutex::default(),
            refused: Mutex::default(),
            tally,
            unusable: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// That of an open mesh.
    #[cfg(test)]
    pub(super) fn for_tests(key: Keypair) -> Self {
        Self::new(key, &AdmissionSettings::open("test".parse().unwrap()), Tally::default())
    }

    /// The door of a peer that starts. It follows the mesh file, if there is one.
    pub(super) fn start(config: &PeerConfig, tally: Tally, tasks: &Tasks) -> Self {
        let door = Self::new(config.identity.keypair().clone(), &config.admission, tally);
        let files = (config.admission.mesh_file.clone(), config.admission.files.clone());
        if files.0.is_some() || files.1 != ShownFiles::default() {
            tasks.spawn(reload::follow(files, door.clone()));
        }
        door
    }

    /// Puts this door behind `transport`.
    pub(super) fn guard(&self, transport: Encrypted) -> Encrypted {
        let door = self.clone();
        transport.and_then(move |(peer, muxer), endpoint| Box::pin(gate::admit(door, peer, muxer, endpoint))).boxed()
    }

    /// The rules as they are now.
    pub(super) fn rules(&self) -> Arc<Rules> {
        self.inner.rules.load_full()
    }

    /// These rules count from now on, for connections that are open too.
    fn change(&self, rules: Rules) {
        if let Err(refused) = rules.judge(&self.inner.me, &self.inner.shown.load().credentials, unix_ms()) {
            tracing::warn!(
                reason = refused.reason(),
                "by its own mesh file this peer would not be admitted any more: {refused}"
            );
        }
        self.inner.rules.store(Arc::new(rules));
        self.inner.changed.send_modify(|changes| *changes += 1);
    }

    /// The mesh file cannot be used, or can again.
    fn file_is(&self, unusable: Option<String>) {
        *self.inner.unusable.lock().unwrap_or_else(PoisonError::into_inner) = unusable;
    }

    /// Why the mesh file cannot be used now, so that the rules are those of before.
    pub(super) fn unusable_file(&self) -> Option<String> {
        self.inner.unusable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes with the rules.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// What this peer shows, read.
    pub(super) fn shown(&self) -> Credentials {
        self.inner.shown.load().credentials.clone()
    }

    /// The membership that this peer shows, encoded; empty if it has none.
    pub(super) fn membership(&self) -> Vec<u8> {
        self.inner.shown.load().membership.as_ref().map(Message::encode_to_vec).unwrap_or_default()
    }

    /// What was refused, and by whom.
    pub(super) fn tally(&self) -> &Tally {
        &self.inner.tally
    }

    /// Reads what `peer` shows and decides.
    fn admit(&self, rules: &Rules, peer: &PeerId, hello: &Hello) -> Result<Credentials, Refused> {
        rules.admit_with(|signed| self.inner.known.open(signed), peer, hello, unix_ms())
    }

    /// What this peer shows on a connection.
    fn hello(&self, rules: &Rules) -> Hello {
        let shown = self.inner.shown.load();
        Hello {
            mesh: rules.mesh.to_string(),
            nonce: rand::random::<[u8; NONCE_BYTES]>(),
            release: shown.release.clone(),
            membership: shown.membership.clone(),
        }
    }

    fn roll(&self) -> MutexGuard<'_, Roll> {
        self.inner.roll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer has passed the door. The rules may have changed while it did.
    fn let_in(&self, peer: PeerId, credentials: Credentials) -> Result<(), Refused> {
        self.rules().judge(&peer, &credentials, unix_ms())?;
        self.inner.tally.admitted();
        self.roll().arrives(peer, credentials, Instant::now());
        Ok(())
    }

    /// One of the two does not want the other.
    fn has_refused(&self, peer: PeerId) {
        let mut refused = self.inner.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.truncate(REFUSED_KEPT - 1);
        refused.push_front((Instant::now(), peer));
    }

    /// Whether a dial of this peer that has just failed came to its door, or to ours.
    pub(super) fn was_refused(&self, peer: &PeerId) -> bool {
        let refused = self.inner.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().any(|(at, refused)| refused == peer && at.elapsed() < ADMISSION_WITHIN)
    }

    /// The swarm has the connection of a peer, which passed the door a moment ago. The rules may have changed since.
    pub(super) fn is_here(&self, peer: PeerId, id: ConnectionId) -> Result<(), Refused> {
        let credentials = self.roll().is_here(peer, id).ok_or(Refused::TooSlow)?;
        self.rules().judge(&peer, &credentials, unix_ms())
    }

    /// A connection is gone.
    pub(super) fn is_gone(&self, id: ConnectionId) {
        self.roll().is_gone(id);
    }

    /// The connections that the rules, as they are now and at this time, do not admit any more.
    pub(super) fn judge_again(&self) -> Vec<(PeerId, ConnectionId, Refused)> {
        let (rules, now_ms) = (self.rules(), unix_ms());
        self.roll().refused(|peer, credentials| rules.judge(peer, credentials, now_ms))
    }
}

#[cfg(test)]
mod tests;
