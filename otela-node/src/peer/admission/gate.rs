//! The admission handshake on a connection that was just encrypted: the swarm sees the connection after it, or never.
//!
//! It runs on a substream of its own, the first of the connection, while the muxer is driven beside it. Whatever else the
//! remote opens meanwhile waits in the muxer until the connection is admitted.

use super::{Admission, tally::By};
use crate::peer::defaults::{ADMISSION_WITHIN, REFUSAL_READ_WITHIN};
use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::{
    PeerId,
    core::{
        ConnectedPoint, Endpoint,
        muxing::{StreamMuxerBox, StreamMuxerExt},
    },
};
use otela_proto::admission::{Credentials, HELLO_BYTES_MAX, Hello, PREFACE, Refused, Side, check_proof, prove};
use std::{
    future::poll_fn,
    io,
    pin::pin,
    task::{Context, Poll},
};

/// The verdict that lets in.
const ADMITTED: u8 = 0;

/// Why a connection was not admitted.
#[derive(Debug, thiserror::Error)]
pub(in crate::peer) enum NotAdmitted {
    /// We do not want the peer.
    #[error("this peer refuses the other: {0}")]
    ByUs(Refused),
    /// The peer does not want us.
    #[error("the other peer refuses this one: {0}")]
    ByThem(Refused),
    /// The same, for a reason that this version does not know.
    #[error("the other peer refuses this one for a reason that this version does not know ({0}), or is no otela")]
    ByThemUnknown(u8),
    /// The connection ended meanwhile.
    #[error("the connection ended during the admission handshake: the other is no otela, or the network failed")]
    Io(#[source] io::Error),
}

impl From<io::Error> for NotAdmitted {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Lets the peer at the other end of a new connection in, or not.
pub(in crate::peer) async fn admit(
    admission: Admission,
    peer: PeerId,
    mut muxer: StreamMuxerBox,
    endpoint: ConnectedPoint,
) -> Result<(PeerId, StreamMuxerBox), NotAdmitted> {
    let side = side_of(&endpoint);
    let talk = tokio::time::timeout(ADMISSION_WITHIN, handshake(&admission, &peer, side, &mut muxer)).await;
    let outcome = talk.unwrap_or(Err(NotAdmitted::ByUs(Refused::TooSlow)));
    let let_in = |credentials| admission.let_in(peer, credentials).map_err(NotAdmitted::ByUs);
    match outcome.and_then(let_in) {
        Ok(()) => Ok((peer, muxer)),
        Err(error) => {
            let address = match &endpoint {
                // Of who comes through a relay the remote address tells the id alone.
                ConnectedPoint::Listener { local_addr, .. } if endpoint.is_relayed() => local_addr,
                _ => endpoint.get_remote_address(),
            };
            if let NotAdmitted::ByUs(_) | NotAdmitted::ByThem(_) = &error {
                admission.has_refused(peer);
            }
            match &error {
                NotAdmitted::ByUs(refused) => admission.tally().refused(By::Us, *refused, &peer, Some(address)),
                NotAdmitted::ByThem(refused) => admission.tally().refused(By::Them, *refused, &peer, Some(address)),
                NotAdmitted::ByThemUnknown(_) | NotAdmitted::Io(_) => {
                    admission.tally().broken_off();
                    tracing::debug!(%peer, %address, %error, "not admitted");
                }
            }
            Err(error)
        }
    }
}

/// In a hole punch both dial, and agree on who counts as the dialer.
fn side_of(endpoint: &ConnectedPoint) -> Side {
    match endpoint {
        ConnectedPoint::Dialer { role_override: Endpoint::Dialer, .. } => Side::Dialer,
        ConnectedPoint::Dialer { .. } | ConnectedPoint::Listener { .. } => Side::Listener,
    }
}

async fn handshake(
    admission: &Admission,
    peer: &PeerId,
    side: Side,
    muxer: &mut StreamMuxerBox,
) -> Result<Credentials, NotAdmitted> {
    let mut stream = poll_fn(|cx| {
        let opened = match side {
            Side::Dialer => muxer.poll_outbound_unpin(cx),
            Side::Listener => muxer.poll_inbound_unpin(cx),
        };
        match opened {
            Poll::Pending => drive(muxer, cx).map(Err),
            opened => opened,
        }
    })
    .await?;
    let talk = async {
        match side {
            Side::Dialer => as_dialer(admission, peer, &mut stream).await,
            Side::Listener => as_listener(admission, peer, &mut stream).await,
        }
    };
    let outcome = beside(muxer, talk).await.unwrap_or_else(|error| Err(NotAdmitted::Io(error)));
    if let Err(NotAdmitted::ByUs(refused)) = &outcome {
        // Whether it arrives or not, the peer is refused.
        let told = beside(muxer, tell(*refused, &mut stream));
        let _ = tokio::time::timeout(REFUSAL_READ_WITHIN, told).await;
    }
    outcome
}

/// Runs `talk` while the connection's bytes are moved; an error if the connection ends before it.
async fn beside<T>(muxer: &mut StreamMuxerBox, talk: impl Future<Output = T>) -> io::Result<T> {
    let mut talk = pin!(talk);
    poll_fn(|cx| match talk.as_mut().poll(cx) {
        Poll::Ready(outcome) => Poll::Ready(Ok(outcome)),
        Poll::Pending => drive(muxer, cx).map(Err),
    })
    .await
}

/// Moves the connection's bytes. Ready only when it has ended.
fn drive(muxer: &mut StreamMuxerBox, cx: &mut Context<'_>) -> Poll<io::Error> {
    loop {
        match muxer.poll_unpin(cx) {
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(error),
            Poll::Pending => return Poll::Pending,
        }
    }
}

async fn as_dialer<S: AsyncRead + AsyncWrite + Unpin>(
    admission: &Admission,
    peer: &PeerId,
    stream: &mut S,
) -> Result<Credentials, NotAdmitted> {
    let rules = admission.rules();
    let mine = admission.hello(&rules).encode();
    stream.write_all(PREFACE).await?;
    write_frame(stream, &mine).await?;
    stream.flush().await?;
    verdict(stream).await?;
    let theirs = read_frame(stream).await?;
    let proof = read_frame(stream).await?;
    let hellos = [&*mine, &*theirs];
    let hello = Hello::decode(&theirs).map_err(NotAdmitted::ByUs)?;
    let credentials = admission.admit(&rules, peer, &hello).map_err(NotAdmitted::ByUs)?;
    let ids = [peer, &admission.inner.me];
    check_proof(&proof, ids, Side::Listener, &rules.mesh, hellos).map_err(NotAdmitted::ByUs)?;
    let proof = prove(&admission.inner.key, peer, Side::Dialer, &rules.mesh, hellos).map_err(NotAdmitted::ByUs)?;
    stream.write_all(&[ADMITTED]).await?;
    write_frame(stream, &proof).await?;
    stream.flush().await?;
    verdict(stream).await?;
    Ok(credentials)
}

async fn as_listener<S: AsyncRead + AsyncWrite + Unpin>(
    admission: &Admission,
    peer: &PeerId,
    stream: &mut S,
) -> Result<Credentials, NotAdmitted> {
    let rules = admission.rules();
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface != *PREFACE {
        return Err(NotAdmitted::ByUs(Refused::Malformed));
    }
    let theirs = read_frame(stream).await?;
    let hello = Hello::decode(&theirs).map_err(NotAdmitted::ByUs)?;
    // Who is refused learns nothing of us.
    let credentials = admission.admit(&rules, peer, &hello).map_err(NotAdmitted::ByUs)?;
    let mine = admission.hello(&rules).encode();
    let hellos = [&*theirs, &*mine];
    let proof = prove(&admission.inner.key, peer, Side::Listener, &rules.mesh, hellos).map_err(NotAdmitted::ByUs)?;
    stream.write_all(&[ADMITTED]).await?;
    write_frame(stream, &mine).await?;
    write_frame(stream, &proof).await?;
    stream.flush().await?;
    verdict(stream).await?;
    let proof = read_frame(stream).await?;
    let ids = [peer, &admission.inner.me];
    check_proof(&proof, ids, Side::Dialer, &rules.mesh, hellos).map_err(NotAdmitted::ByUs)?;
    stream.write_all(&[ADMITTED]).await?;
    stream.flush().await?;
    Ok(credentials)
}

/// Says why, and waits until the other has read it: a connection that is closed at once may take the word along.
async fn tell<S: AsyncRead + AsyncWrite + Unpin>(refused: Refused, stream: &mut S) -> io::Result<()> {
    stream.write_all(&[refused.code()]).await?;
    stream.close().await?;
    let mut rest = [0; 256];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

async fn verdict<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(), NotAdmitted> {
    let mut code = [0];
    stream.read_exact(&mut code).await?;
    match (code[0], Refused::from_code(code[0])) {
        (ADMITTED, _) => Ok(()),
        (_, Some(refused)) => Err(NotAdmitted::ByThem(refused)),
        (code, None) => Err(NotAdmitted::ByThemUnknown(code)),
    }
}

async fn write_frame<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    let len = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&len.to_be_bytes()).await?;
    stream.write_all(bytes).await
}

async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, NotAdmitted> {
    let mut len = [0; 2];
    stream.read_exact(&mut len).await?;
    let len = usize::from(u16::from_be_bytes(len));
    if len > HELLO_BYTES_MAX {
        return Err(NotAdmitted::ByUs(Refused::Malformed));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
