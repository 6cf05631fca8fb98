//! Follows the mesh file, and the statements that this peer shows: what changes in them counts from then on, for open
//! connections too.

use super::{
    Admission, ShownFiles,
    mesh_file::{BYTES_MAX, MeshFile},
    shown::Renewal,
};
use crate::{
    peer::{
        defaults::{MESH_FILE_EVERY, MESH_FILE_WITHIN},
        small,
    },
    telemetry::chain,
};
use std::path::{Path, PathBuf};

/// Looks at the mesh file now and then and takes over its rules. A file that cannot be used changes nothing, and is
/// complained of once.
pub(in crate::peer) async fn follow((mesh_file, shown): (Option<PathBuf>, ShownFiles), admission: Admission) {
    let anew = || (Follower::default(), Renewal::new(shown.clone()));
    let mut followers = anew();
    loop {
        let (at, door) = (mesh_file.clone(), admission.clone());
        let mut look = tokio::task::spawn_blocking(move || {
            if let Some(path) = at {
                followers.0.look(&path, &door);
            }
            followers.1.look(&door);
            followers
        });
        // A network's file system may hang. There is no use in a second look beside one that hangs.
        let looked = match tokio::time::timeout(MESH_FILE_WITHIN, &mut look).await {
            Ok(looked) => looked,
            Err(_) => {
                admission.tally().reload_failed();
                let error = "its file system does not answer";
                admission.file_is(Some(error.to_owned()));
                tracing::warn!(
                    error,
                    "the mesh file, or a statement, cannot be read; going on with what was said before"
                );
                look.await
            }
        };
        // It can only fail by a panic; then the next look begins anew.
        followers = looked.unwrap_or_else(|_| anew());
        tokio::time::sleep(MESH_FILE_EVERY).await;
    }
}

/// What was read last. The file is small, so all of it is read each time: times and lengths may be the same where the
/// content is not.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: Option<Result<String, String>>,
}

impl Follower {
    /// Takes over what is new.
    pub(super) fn look(&mut self, path: &Path, admission: &Admission) {
        let text = small::read(path, BYTES_MAX);
        let text = text.map_err(|error| format!("cannot read the mesh file {}: {error}", path.display()));
        if self.seen.as_ref() == Some(&text) {
            return;
        }
        let outcome = text.clone().and_then(|text| take_over(path, &text, admission));
        self.seen = Some(text);
        if let Err(error) = &outcome {
            admission.tally().reload_failed();
            tracing::warn!(error, "the mesh file cannot be used: going on with what it said before");
        }
        admission.file_is(outcome.err());
    }
}

/// An error says why the rules stay as they are.
fn take_over(path: &Path, text: &str, admission: &Admission) -> Result<(), String> {
    let old = admission.rules();
    let new = MeshFile::of_text(text, path).map_err(|error| chain(&error))?.rules;
    if new == *old {
        return Ok(());
    }
    let start_again = |what: String| Err(format!("{} {what}", path.display()));
    if new.mesh != old.mesh {
        return start_again(format!(
            "names mesh {} now, and this peer is of {}: start it again to move",
            new.mesh, old.mesh
        ));
    }
    // A file that was cut, or a slip, looks like this, and would let in whoever knocks in these seconds.
    if (old.require_signed && !new.require_signed) || (!old.authorities.is_empty() && new.authorities.is_empty()) {
        return start_again(
            "would let in peers without signature or membership now: start again to open the mesh".to_owned(),
        );
    }
    let gone = old.revoked_peers.difference(&new.revoked_peers).count()
        + old.revoked_keys.difference(&new.revoked_keys).count()
        + old.revoked_binaries.difference(&new.revoked_binaries).count();
    if gone > 0 {
        tracing::warn!(path = %path.display(), gone, "the mesh file has changed, and revokes less than before: it counts from now on");
    } else {
        tracing::info!(path = %path.display(), "the mesh file has changed: its rules count from now on");
    }
    admission.change(new);
    Ok(())
}
