//! The control socket of a node: through it whoever runs the node, on the same machine, asks what operators ask.
//!
//! A Unix socket in a folder that only its owner can enter. A node that cannot have one goes on without.

use super::operate::Operations;
use crate::tasks::Tasks;
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{net::UnixListener, sync::Semaphore, time::sleep};

/// What sockets are called after the process id.
const ENDING: &str = "sock";
/// More than anybody needs at once.
const CONNECTIONS_MAX: usize = 16;
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Rights of others on the folder, of which there must be none.
const OTHERS: u32 = 0o077;

/// The socket's name, for as long as the node runs.
#[derive(Debug)]
pub(super) struct Control(PathBuf);

impl Drop for Control {
    fn drop(&mut self) {
        // Whoever looks for nodes finds those that run.
        let _gone_already = fs::remove_file(&self.0);
    }
}

/// Listens in `folder`, which is made if it is not there.
pub(super) fn start(folder: &Path, operations: Operations, tasks: &Tasks) -> Option<Control> {
    match listen(folder) {
        Ok((listener, control)) => {
            tracing::debug!(socket = %control.0.display(), "control socket");
            tasks.spawn(serve(listener, operations, tasks.clone()));
            Some(control)
        }
        Err(error) => {
            tracing::warn!(
                "no control socket in {}: {error}; `otela drain --local` does not find this node",
                folder.display()
            );
            None
        }
    }
}

fn listen(folder: &Path) -> io::Result<(UnixListener, Control)> {
    private(folder)?;
    let path = folder.join(format!("{}.{ENDING}", std::process::id()));
    // Of a process that had our number and was killed.
    let _none = fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let control = Control(path);
    fs::set_permissions(&control.0, fs::Permissions::from_mode(0o600))?;
    Ok((listener, control))
}

/// Makes the folder, or sees that it is ours alone.
fn private(folder: &Path) -> io::Result<()> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    ours_alone(folder)
}

/// Whether nobody else can enter it.
fn ours_alone(folder: &Path) -> io::Result<()> {
    let is = fs::symlink_metadata(folder)?;
    let is_ours = is.is_dir() && is.uid() == rustix::process::geteuid().as_raw() && is.mode() & OTHERS == 0;
    if is_ours {
        Ok(())
    } else {
        Err(io::Error::other(
            "it is there and others may enter it, or it is no folder of this user: chmod 700, or another --control",
        ))
    }
}

/// The sockets of nodes in `folder`, with their process ids. Those of processes that were killed are left out, and removed.
///
/// # Errors
/// Those of reading the folder; one that is not there has none.
pub fn sockets(folder: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let entries = match ours_alone(folder).and_then(|()| fs::read_dir(folder)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let is_socket = fs::symlink_metadata(&path).is_ok_and(|is| is.file_type().is_socket());
        let is_one = is_socket && path.extension().is_some_and(|ending| ending == ENDING);
        let pid = path.file_stem().and_then(|pid| pid.to_str()?.parse::<u32>().ok()).filter(|_| is_one);
        let Some(pid) = pid else { continue };
        match std::os::unix::net::UnixStream::connect(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Where processes are numbered otherwise, the number may be of a living one elsewhere.
                if !Path::new("/proc").join(pid.to_string()).exists() {
                    let _gone_already = fs::remove_file(&path);
                }
            }
            _ => found.push((pid, path)),
        }
    }
    found.sort();
    Ok(found)
}

async fn serve(listener: UnixListener, operations: Operations, tasks: Tasks) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many files are open, as a rule, which passes.
                tracing::warn!(%error, "the control socket takes nobody for a moment");
                sleep(AFTER_FAILURE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let operations = operations.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (head, _) = request.into_parts();
            let answer = operations.answer_here(&head);
            async move { Ok::<_, Infallible>(answer) }
        });
        tasks.spawn(async move {
            // Whoever went away has what it wanted.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener as Listener;

    #[test]
    fn a_folder_that_others_can_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("new");
        private(&folder).unwrap();
        private(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private(&folder).is_err());
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        assert!(private(&dir.path().join("link")).is_err());
    }

    #[test]
    fn sockets_of_the_dead_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let living = Listener::bind(dir.path().join("7.sock")).unwrap();
        // Larger than the number of any process.
        let dead = dir.path().join("4194999.sock");
        drop(Listener::bind(&dead).unwrap());
        let file = dir.path().join("4194998.sock");
        fs::write(&file, "").unwrap();
        assert_eq!(sockets(dir.path()).unwrap(), [(7, dir.path().join("7.sock"))]);
        assert!(!dead.exists() && file.exists(), "what is no socket is nobody's to remove");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(sockets(dir.path()).is_err(), "anybody may have put one there");
        assert!(sockets(&dir.path().join("none")).unwrap().is_empty());
        drop(living);
    }
}
