//! Follows the mesh file: what changes in it counts from then on, for open connections too.

use super::{
    Admission,
    mesh_file::{BYTES_MAX, MeshFile},
    small,
};
use crate::{
    peer::defaults::{MESH_FILE_EVERY, MESH_FILE_WITHIN},
    telemetry::chain,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Looks at the mesh file now and then and takes over its rules. A file that cannot be used changes nothing, and is
/// complained of once.
pub(in crate::peer) async fn follow(path: PathBuf, admission: Admission) {
    let mut follower = Follower::default();
    loop {
        let (at, door) = (path.clone(), admission.clone());
        let mut look = tokio::task::spawn_blocking(move || {
            follower.look(&at, &door);
            follower
        });
        // A network's file system may hang. There is no use in a second look beside one that hangs.
        let looked = match tokio::time::timeout(MESH_FILE_WITHIN, &mut look).await {
            Ok(looked) => looked,
            Err(_) => {
                admission.tally().reload_failed();
                tracing::warn!(path = %path.display(), "the mesh file cannot be read: its file system does not answer; going on with what it said before");
                look.await
            }
        };
        // It can only fail by a panic; then the next look begins anew.
        follower = looked.unwrap_or_default();
        tokio::time::sleep(MESH_FILE_EVERY).await;
    }
}

/// What was read last. The file is small, so all of it is read each time: times and lengths may be the same where the
/// content is not.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: Option<Result<String, io::ErrorKind>>,
}

impl Follower {
    /// Takes over what is new.
    pub(super) fn look(&mut self, path: &Path, admission: &Admission) {
        let text = small::read(path, BYTES_MAX);
        let seen = text.as_ref().map(Clone::clone).map_err(io::Error::kind);
        if self.seen.as_ref() != Some(&seen) {
            self.seen = Some(seen);
            take_over(path, text, admission);
        }
    }
}

fn take_over(path: &Path, text: io::Result<String>, admission: &Admission) {
    let old = admission.rules();
    let failed = |error: String| {
        admission.tally().reload_failed();
        tracing::warn!(error, "the mesh file cannot be used: going on with what it said before");
    };
    let file = match text {
        Ok(text) => MeshFile::of_text(&text, path),
        Err(error) => return failed(format!("cannot read {}: {error}", path.display())),
    };
    match file {
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
        Err(error) => failed(chain(&error)),
    }
}
