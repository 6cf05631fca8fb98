//! A peer's key on disk: made on first use, readable by its owner only, locked while in use.

use libp2p_identity::Keypair;
use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// An Ed25519 key, and the lock on its file for as long as any clone lives.
#[derive(Debug, Clone)]
pub struct Identity {
    keypair: Keypair,
    lock: Option<Arc<File>>,
}

/// Why a key cannot be used. No key file is ever overwritten.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be opened, read or written.
    #[error("cannot use key file {path}: check that its folder exists and that you may read and write it")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// There is no such file, where one is needed that exists.
    #[error("there is no key file {path}: make one with `otela key {path}`")]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error("{path} is not an otela key file: move it away to have a new key made, or name another file")]
    NotAKey {
        /// Which file.
        path: PathBuf,
    },
    /// It is a folder, a pipe or a device.
    #[error("{path} is not a file that could hold a key: name a file")]
    NotAFile {
        /// Which one.
        path: PathBuf,
    },
    /// Others may read it.
    #[error("key file {path} can be read by others (mode {mode:o}): run chmod 600 on it")]
    TooOpen {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A running process has it.
    #[error("key file {path} is in use by another otela process: stop that one, or name another file with --key")]
    InUse {
        /// Which file.
        path: PathBuf,
    },
}

impl Identity {
    /// A key for this process only.
    #[must_use]
    pub fn ephemeral() -> Self {
        Self { keypair: Keypair::generate_ed25519(), lock: None }
    }

    /// The key in `path`, made if there is no such file, and locked.
    ///
    /// # Errors
    /// [`IdentityError`], with the file unchanged.
    pub fn load_or_create(path: &Path) -> Result<Self, IdentityError> {
        let io = |source| IdentityError::Io { path: path.to_owned(), source };
        check_kind(path)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(IdentityError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let keypair = match read(&mut file, path)? {
            Some(keypair) => keypair,
            None => create(&mut file).map_err(io)?,
        };
        Ok(Self { keypair, lock: Some(Arc::new(file)) })
    }

    /// The key in `path`, which may be in use: for looking at it, and for signing.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        check_kind(path)?;
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(IdentityError::Missing { path: path.to_owned() });
            }
            file => file.map_err(|source| IdentityError::Io { path: path.to_owned(), source })?,
        };
        let keypair = read(&mut file, path)?.ok_or_else(|| IdentityError::NotAKey { path: path.to_owned() })?;
        Ok(Self { keypair, lock: None })
    }

    /// Whether the key outlives the process.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.lock.is_some()
    }

    /// The key.
    #[must_use]
    pub fn keypair(&self) -> &Keypair {
        &self.keypair
    }
}

/// A pipe would be waited for, and of a folder the system says odd things.
fn check_kind(path: &Path) -> Result<(), IdentityError> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(IdentityError::NotAFile { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// The key in a file that nobody else may read; `None` if the file is empty.
fn read(file: &mut File, path: &Path) -> Result<Option<Keypair>, IdentityError> {
    let io = |source| IdentityError::Io { path: path.to_owned(), source };
    let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::TooOpen { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    // A key is 68 bytes; whatever is longer is something else.
    file.take(4096).read_to_end(&mut bytes).map_err(io)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let keypair = Keypair::from_protobuf_encoding(&bytes);
    keypair.map(Some).map_err(|_| IdentityError::NotAKey { path: path.to_owned() })
}

fn create(file: &mut File) -> io::Result<Keypair> {
    let keypair = Keypair::generate_ed25519();
    let bytes = keypair.to_protobuf_encoding().map_err(io::Error::other)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    Ok(keypair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = Identity::load_or_create(&path).unwrap().keypair().public();
        let second = Identity::load_or_create(&path).unwrap().keypair().public();
        assert_eq!(first, second);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn p48_a_second_user_of_one_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let held = Identity::load_or_create(&path).unwrap();
        assert!(matches!(Identity::load_or_create(&path), Err(IdentityError::InUse { .. })));
        drop(held);
        Identity::load_or_create(&path).unwrap();
    }

    #[test]
    fn what_is_not_a_private_key_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "hello").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(Identity::load_or_create(&path), Err(IdentityError::NotAKey { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Identity::load_or_create(&path), Err(IdentityError::TooOpen { mode: 0o644, .. })));
        assert!(matches!(Identity::load_or_create(dir.path()), Err(IdentityError::NotAFile { .. })));
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        assert!(matches!(Identity::load(&pipe), Err(IdentityError::NotAFile { .. })));
        let missing = dir.path().join("no/such/folder/key");
        assert!(matches!(Identity::load_or_create(&missing), Err(IdentityError::Io { .. })));
    }
}
