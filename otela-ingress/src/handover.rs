//! Two ingresses on one machine take over from each other: the new one asks the old one for its listening socket, so that
//! no client ever finds it closed, and the old one finishes what it has.
//!
//! They talk over a Unix socket that only the user can open. The old one passes the listener on; the new one says when it
//! accepts on it, and only then does the old one stop accepting.

use otela_node::tasks::Tasks;
use rustix::{
    fd::AsFd,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use std::{
    fs::Permissions,
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::Interest,
    net::{TcpListener, UnixListener, UnixStream},
    time::timeout,
};

/// Each side waits this long for the other's next word.
const WORD_WITHIN: Duration = Duration::from_secs(10);
/// Said by the new one when it accepts clients.
const ACCEPTS: u8 = b'a';

/// The socket of handovers cannot be used, or whoever has it does not hand over.
#[derive(Debug, thiserror::Error)]
#[error("cannot hand over through {}", path.display())]
pub struct HandoverError {
    path: PathBuf,
    source: io::Error,
}

impl HandoverError {
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }
}

/// Another ingress that is ready to hand over.
#[derive(Debug)]
pub(crate) struct Predecessor(UnixStream);

/// Whoever has the listener at `path` now, if there is anybody.
pub(crate) async fn predecessor(path: &Path) -> Result<Option<Predecessor>, HandoverError> {
    check(path)?;
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Some(Predecessor(stream))),
        // Nobody is there, or nobody any more.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(source) => Err(HandoverError::new(path, source)),
    }
}

/// Whether a socket is there, or nothing.
fn check(path: &Path) -> Result<(), HandoverError> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            let source = io::Error::other("something that is no socket is there: name another path");
            Err(HandoverError::new(path, source))
        }
        // Whatever else is wrong, whoever uses it finds out.
        _ => Ok(()),
    }
}

impl Predecessor {
    /// Its listener. It goes on accepting until [`Self::accepts`].
    pub(crate) async fn listener(&self) -> io::Result<TcpListener> {
        let receive = async {
            loop {
                self.0.readable().await?;
                match self.0.try_io(Interest::READABLE, || receive(&self.0)) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
        };
        let listener = timeout(WORD_WITHIN, receive).await.map_err(|_| {
            io::Error::new(ErrorKind::TimedOut, "the ingress that is there does not answer: stop it first")
        })??;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }

    /// Tells it that clients are accepted here from now on.
    pub(crate) async fn accepts(self) -> io::Result<()> {
        self.0.writable().await?;
        self.0.try_write(&[ACCEPTS]).map(|_| ())
    }
}

fn receive(from: &UnixStream) -> io::Result<std::net::TcpListener> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let passed = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
        _ => None,
    });
    passed.map(std::net::TcpListener::from).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Hands `listener` over to whoever asks at `path`, and drains `tasks` once that one accepts clients. Whoever asks and does
/// not come that far changes nothing.
pub(crate) fn offer(path: &Path, listener: Arc<TcpListener>, tasks: &Tasks) -> Result<(), HandoverError> {
    let wrong = |source| HandoverError::new(path, source);
    // Whoever was there has handed over, or died. What is no socket is somebody's file.
    check(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(wrong(error)),
        _ => {}
    }
    let socket = UnixListener::bind(path).map_err(wrong)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(wrong)?;
    let draining = tasks.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = hand_over(&socket, &listener) => draining.drain(),
            () = draining.draining() => {}
        }
    });
    Ok(())
}

/// Resolves when somebody has taken over.
async fn hand_over(socket: &UnixListener, listener: &TcpListener) {
    loop {
        let Ok((successor, _)) = socket.accept().await else { continue };
        match timeout(WORD_WITHIN * 6, pass(&successor, listener)).await {
            Ok(Ok(())) => {
                tracing::info!("another ingress has taken over: no new clients here, what runs is finished");
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "a handover has failed: clients are still accepted here"),
            Err(_) => tracing::warn!("a handover took too long: clients are still accepted here"),
        }
    }
}

async fn pass(successor: &UnixStream, listener: &TcpListener) -> io::Result<()> {
    successor.writable().await?;
    successor.try_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed = [listener.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&passed)) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        Ok(sendmsg(successor, &[IoSlice::new(b"l")], &mut ancillary, SendFlags::empty())?)
    })?;
    loop {
        successor.readable().await?;
        let mut word = [0];
        match successor.try_read(&mut word) {
            Ok(1) if word[0] == ACCEPTS => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    #[tokio::test]
    async fn what_is_no_socket_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("otela.toml"), dir.path().join("link"));
        std::fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        for path in [file.as_path(), &link, dir.path()] {
            assert!(predecessor(path).await.is_err());
            let refused = offer(path, Arc::clone(&listener), &Tasks::new()).unwrap_err();
            assert!(std::error::Error::source(&refused).unwrap().to_string().contains("no socket"), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(link.is_symlink());
    }

    #[tokio::test]
    async fn the_listener_is_passed_on_and_the_old_one_drains_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handover");
        assert!(predecessor(&path).await.unwrap().is_none());
        let old = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (address, tasks) = (old.local_addr().unwrap(), Tasks::new());
        offer(&path, Arc::clone(&old), &tasks).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // One that asks and dies changes nothing.
        drop(predecessor(&path).await.unwrap().unwrap());
        let taking = predecessor(&path).await.unwrap().unwrap();
        let taken = taking.listener().await.unwrap();
        assert!(!tasks.is_draining());
        // A client that connects now is found by whoever accepts.
        let mut client = TcpStream::connect(address).await.unwrap();
        taking.accepts().await.unwrap();
        tasks.draining().await;
        drop(old);
        let (mut served, _) = taken.accept().await.unwrap();
        served.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        assert_eq!(taken.local_addr().unwrap(), address);
    }
}
