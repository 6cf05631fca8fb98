//! Follows the mesh file: what changes in it counts from then on, for open connections too.

use super::{Admission, mesh_file::MeshFile};
use crate::{peer::defaults::MESH_FILE_EVERY, telemetry::chain};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// What tells whether a file has changed, on file systems without notifications too.
type Stamp = (SystemTime, u64);

/// Looks at the mesh file now and then and takes over its rules. A file that cannot be used changes nothing, and is
/// complained of once.
pub(in crate::peer) async fn follow(path: PathBuf, admission: Admission) {
    let mut follower = Follower::default();
    loop {
        let (path, admission) = (path.clone(), admission.clone());
        // A network's file system may take its time.
        let look = tokio::task::spawn_blocking(move || {
            follower.look(&path, &admission);
            follower
        });
        // It can only fail by a panic; then the next look begins anew.
        follower = look.await.unwrap_or_default();
        tokio::time::sleep(MESH_FILE_EVERY).await;
    }
}

/// What was seen of the file last. Nothing says that it has not changed since the start: one look more costs nothing.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: Option<Result<Stamp, io::ErrorKind>>,
}

impl Follower {
    /// Takes over what is new.
    pub(super) fn look(&mut self, path: &Path, admission: &Admission) {
        let stamp = stamp(path).map_err(|error| error.kind());
        if self.seen.as_ref() != Some(&stamp) {
            self.seen = Some(stamp);
            take_over(path, admission);
        }
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.modified()?, metadata.len()))
}

fn take_over(path: &Path, admission: &Admission) {
    let old = admission.rules();
    match MeshFile::load(path) {
        Ok(file) if file.rules == *old => {}
        Ok(file) if file.rules.mesh != old.mesh => {
            admission.tally().reload_failed();
            let (old, new) = (&old.mesh, &file.rules.mesh);
            tracing::warn!(%old, %new, "the mesh file names another mesh now: start again to move to it; going on with what it said before");
        }
        Ok(file) => {
            tracing::info!(path = %path.display(), "the mesh file has changed: its rules count from now on");
            admission.change(file.rules);
        }
        Err(error) => {
            admission.tally().reload_failed();
            tracing::warn!(error = chain(&error), "the mesh file cannot be used: going on with what it said before");
        }
    }
}
