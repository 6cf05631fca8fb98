//! What a peer remembers across restarts, if it is given a directory: its last epoch, and peers to join through.
//!
//! Nothing needs it to serve. A disk that is full, read-only or slow costs a warning and a count; a file that cannot be
//! used is set aside under another name and reported. Each mesh has its own file, `state-MESH`.

mod disk;
mod form;
mod keeper;

pub(super) use form::Known;
pub(super) use keeper::Keeper;

use super::bootstrap::{Bootstrap, Lists};
use disk::{Disk, HoldError};
use form::{Saved, decode};
use libp2p::PeerId;
use otela_proto::id::{Epoch, MeshName};
use std::{
    io,
    path::{Path, PathBuf},
};

/// A state directory held by this process, and what was found in it. Clones share the lock.
#[derive(Debug, Clone)]
pub struct State {
    disk: Disk,
    mesh: MeshName,
    saved: Saved,
    set_aside: u64,
    /// Unset where writing would destroy a file that could not be set aside.
    writable: bool,
}

/// Why a state directory cannot be used. Nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A running process has it.
    #[error("state directory {path} is in use by another otela process: stop that one, or name another with --state")]
    InUse {
        /// Which directory.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{path} is not a directory: name another with --state")]
    NotADirectory {
        /// What was named.
        path: PathBuf,
    },
}

impl State {
    /// Takes the directory, which is made if it is missing, and reads what it holds for `mesh`. Blocks while it reads.
    /// A disk that fails, and a file that cannot be used, are reported in the log; the peer then starts without.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(dir: &Path, mesh: &MeshName) -> Result<Self, StateError> {
        let mut disk = Disk::new(dir, format!("state-{mesh}"));
        match disk.hold() {
            Ok(_) => {}
            Err(HoldError::InUse) => return Err(StateError::InUse { path: dir.to_owned() }),
            Err(HoldError::Io(error)) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(StateError::NotADirectory { path: dir.to_owned() });
            }
            Err(HoldError::Io(error)) => {
                tracing::warn!(path = %dir.display(), %error, "cannot use the state directory now, starting without");
            }
        }
        let mut state = Self { disk, mesh: mesh.clone(), saved: Saved::default(), set_aside: 0, writable: true };
        state.read();
        Ok(state)
    }

    /// How many peers are remembered.
    #[must_use]
    pub fn peers_len(&self) -> usize {
        self.saved.peers.len()
    }

    /// The peers to try, best first, without `me`.
    pub(super) fn peers(&self, me: &PeerId) -> Vec<Known> {
        let others = self.saved.peers.iter().filter(|known| known.peer != *me && !known.addresses.is_empty());
        others.cloned().collect()
    }

    /// What is remembered of the lists among `bootstraps`.
    pub(super) fn lists(&self, bootstraps: &[Bootstrap]) -> Lists {
        let configured: Vec<_> = bootstraps.iter().filter(|b| b.is_list()).map(ToString::to_string).collect();
        self.saved
            .lists
            .iter()
            .filter(|(list, _)| configured.contains(list))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// The last epoch of `me` that was written.
    pub(super) fn epoch(&self, me: &PeerId) -> Option<Epoch> {
        self.saved.own.iter().find(|(peer, _)| peer == me).map(|(_, epoch)| *epoch)
    }

    fn read(&mut self) {
        let bytes = match self.disk.read() {
            Ok(None) => return,
            Ok(Some(bytes)) => decode(&bytes, &self.mesh).map_err(|damage| damage.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match bytes {
            Ok(saved) => self.saved = saved,
            Err(reason) => self.put_aside(&reason),
        }
    }

    fn put_aside(&mut self, reason: &str) {
        let path = self.disk.path();
        self.set_aside += 1;
        match self.disk.set_aside() {
            Ok(to) => {
                tracing::warn!(path = %path.display(), to = %to.display(), reason, "state file not used and set aside; starting without");
            }
            Err(error) => {
                self.writable = false;
                tracing::warn!(path = %path.display(), reason, %error, "state file not used and left where it is, for it cannot be renamed; nothing will be remembered of this run: move it away");
            }
        }
    }
}

/// Writes a state file that remembers one epoch and nobody.
#[cfg(test)]
pub(super) fn remember_epoch(dir: &Path, mesh: &MeshName, peer: PeerId, epoch: u64) {
    let mut state = State::open(dir, mesh).unwrap();
    let saved = Saved { own: vec![(peer, Epoch(epoch))], ..Saved::default() };
    state.disk.write(&form::encode(&saved, mesh)).unwrap();
}

/// Writes a state file that remembers one list of bootstraps and nobody else.
#[cfg(test)]
pub(super) fn remember_list(dir: &Path, mesh: &MeshName, list: &Bootstrap, addresses: Vec<libp2p::Multiaddr>) {
    let mut state = State::open(dir, mesh).unwrap();
    let saved = Saved { lists: [(list.to_string(), addresses)].into(), ..Saved::default() };
    state.disk.write(&form::encode(&saved, mesh)).unwrap();
}

#[cfg(test)]
mod tests;
