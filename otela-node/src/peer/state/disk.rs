//! The state file on its disk: locked, read, replaced as a whole, set aside when it is no good.

use super::form::BYTES_MAX;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Files set aside that are kept; beyond it the oldest makes room.
pub(super) const ASIDE_MAX: u32 = 8;

/// A file in a directory that one process holds.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    dir: PathBuf,
    name: String,
    /// The locked directory; `None` while it cannot be had.
    held: Option<Arc<File>>,
}

/// Why the directory cannot be held.
#[derive(Debug, thiserror::Error)]
pub(super) enum HoldError {
    #[error("it is in use by another otela process")]
    InUse,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Disk {
    pub(super) fn new(dir: &Path, name: String) -> Self {
        Self { dir: dir.to_owned(), name, held: None }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Makes the directory if it is missing, and locks it. It is the directory that is locked, since that works on a
    /// disk that nobody can write to and leaves nothing behind.
    pub(super) fn hold(&mut self) -> Result<Arc<File>, HoldError> {
        if let Some(held) = &self.held {
            return Ok(Arc::clone(held));
        }
        if !self.dir.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        }
        // A pipe would be waited for until somebody writes to it.
        if !fs::metadata(&self.dir)?.is_dir() {
            return Err(HoldError::Io(io::ErrorKind::NotADirectory.into()));
        }
        let dir = File::open(&self.dir)?;
        match dir.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HoldError::InUse),
            // Some network file systems have no locks: the directory is of use all the same.
            Err(TryLockError::Error(error)) => {
                tracing::warn!(path = %self.dir.display(), %error, "cannot lock the state directory: see that no other process uses it");
            }
        }
        let held = Arc::new(dir);
        self.held = Some(Arc::clone(&held));
        Ok(held)
    }

    /// The file's bytes, at most one more than [`BYTES_MAX`]; `None` if there is no file.
    pub(super) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        let path = self.path();
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // Opening a pipe would wait for its other end.
            Ok(metadata) if !metadata.is_file() => return Err(io::Error::other("it is not a regular file")),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let mut bytes = Vec::new();
        File::open(&path)?.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Replaces the file: whenever the process or the machine dies, the old file or the new one is there, whole.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let dir = self.hold().map_err(|error| match error {
            HoldError::InUse => io::Error::other(HoldError::InUse),
            HoldError::Io(error) => error,
        })?;
        let new = self.dir.join(format!("{}.new", self.name));
        // Left by a process that was killed. The lock says that nobody is writing it now.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| fs::rename(&new, self.path())) {
            // A full disk is not helped by half a file. If that fails too, the next write tries again.
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        // Without this a crash of the machine could undo the renaming.
        dir.sync_all()
    }

    /// Renames the file, so that nothing overwrites it, and returns its new name.
    pub(super) fn set_aside(&self) -> io::Result<PathBuf> {
        let names: Vec<_> = (1..=ASIDE_MAX).map(|n| self.dir.join(format!("{}.damaged-{n}", self.name))).collect();
        let free = names.iter().find(|name| fs::symlink_metadata(name).is_err());
        let name = match free {
            Some(name) => name,
            None => oldest(&names).inspect(|name| {
                tracing::warn!(path = %name.display(), "{ASIDE_MAX} damaged state files are kept: the oldest makes room");
            })?,
        };
        fs::rename(self.path(), name)?;
        Ok(name.clone())
    }
}

fn oldest(names: &[PathBuf]) -> io::Result<&PathBuf> {
    let age = |name: &&PathBuf| fs::symlink_metadata(name).and_then(|metadata| metadata.modified()).ok();
    names.iter().min_by_key(age).ok_or_else(|| io::ErrorKind::NotFound.into())
}
