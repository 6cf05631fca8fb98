//! What admission adds to a connection: the same dials with and without a door, in turn.

use crate::{quantile, report::Row};
use futures::{AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{
        Endpoint,
        muxing::{StreamMuxerBox, StreamMuxerExt as Muxer},
        transport::{Boxed, DialOpts, ListenerId, PortUse, TransportEvent},
        upgrade::Version,
    },
    identity::Keypair,
    noise, tcp, yamux,
};
use otela_node::peer::admission::{AdmissionSettings, guarded};
use otela_proto::{
    admission::{BinaryDigest, Release, Rules, Validity},
    id::MeshName,
};
use std::{
    future::{pending, poll_fn},
    io,
    pin::pin,
    task::{Context, Poll},
    time::Instant,
};

/// Reach of what the door adds, in milliseconds.
const ADDED_MS: f64 = 1.0;

type Encrypted = Boxed<(PeerId, StreamMuxerBox)>;

/// One end, with a door or without.
fn transport(door: Option<&AdmissionSettings>) -> Encrypted {
    let key = Keypair::generate_ed25519();
    let transport = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(&key).unwrap())
        .multiplex(yamux::Config::default())
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(muxer)))
        .boxed();
    match door {
        Some(settings) => guarded(transport, &key, settings),
        None => transport,
    }
}

/// Listens in a task that takes every connection and gives back the first byte that comes on it.
async fn listening(mut listener: Encrypted, tasks: &mut tokio::task::JoinSet<()>) -> Multiaddr {
    listener.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let address = match listener.select_next_some().await {
        TransportEvent::NewAddress { listen_addr, .. } => listen_addr,
        other => panic!("{other:?}"),
    };
    tasks.spawn(async move {
        let mut upgrades = tokio::task::JoinSet::new();
        loop {
            if let TransportEvent::Incoming { upgrade, .. } = listener.select_next_some().await {
                upgrades.spawn(async move {
                    let (_, mut muxer) = upgrade.await.unwrap();
                    let mut stream = poll_fn(|cx| driven(&mut muxer, cx, Muxer::poll_inbound_unpin)).await;
                    // Until the dialer drops its end.
                    beside(&mut muxer, async {
                        let mut byte = [0];
                        stream.read_exact(&mut byte).await?;
                        stream.write_all(&byte).await?;
                        stream.flush().await?;
                        pending::<io::Result<()>>().await
                    })
                    .await;
                });
            }
        }
    });
    address
}

/// What can be done on a connection, or its end.
fn driven<T>(
    muxer: &mut StreamMuxerBox,
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut StreamMuxerBox, &mut Context<'_>) -> Poll<io::Result<T>>,
) -> Poll<T> {
    if let Poll::Ready(done) = poll(muxer, cx) {
        return Poll::Ready(done.unwrap());
    }
    while let Poll::Ready(Ok(_)) = muxer.poll_unpin(cx) {}
    Poll::Pending
}

/// Runs `talk` while the connection's bytes are moved; `None` if the connection ends before it.
async fn beside<T>(muxer: &mut StreamMuxerBox, talk: impl Future<Output = io::Result<T>>) -> Option<T> {
    let mut talk = pin!(talk);
    poll_fn(|cx| {
        if let Poll::Ready(done) = talk.as_mut().poll(cx) {
            return Poll::Ready(done.ok());
        }
        loop {
            match muxer.poll_unpin(cx) {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// One dial in milliseconds, until a byte has gone there and back: a dialer may think that it is done before its last
/// word has left.
async fn dial(dialer: &mut Encrypted, address: &Multiaddr) -> f64 {
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let began = Instant::now();
    let (_, mut muxer) = dialer.dial(address.clone(), options).unwrap().await.unwrap();
    let mut stream = poll_fn(|cx| driven(&mut muxer, cx, Muxer::poll_outbound_unpin)).await;
    let echo = beside(&mut muxer, async {
        stream.write_all(&[7]).await?;
        stream.flush().await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await.map(|()| byte)
    });
    assert_eq!(echo.await, Some([7]));
    began.elapsed().as_secs_f64() * 1e3
}

/// A mesh that asks for signatures, as one of its peers is set up for it.
fn signed() -> AdmissionSettings {
    let (mesh, maintainer): (MeshName, _) = ("bench".parse().unwrap(), Keypair::generate_ed25519());
    let validity = Validity { from_ms: 0, until_ms: u64::MAX };
    let release = Release::sign(&maintainer, BinaryDigest::of(b"otela"), &"1.0.0".parse().unwrap(), validity).unwrap();
    let keys = [maintainer.public().to_peer_id()].into();
    let rules = Rules { release_keys: keys, require_signed: true, ..Rules::open(mesh.clone()) };
    AdmissionSettings { rules, release: Some(release), ..AdmissionSettings::open(mesh) }
}

pub(crate) async fn rows(quick: bool) -> Vec<Row> {
    let (dials, warm_up) = if quick { (50, 5) } else { (1_000, 50) };
    let (mut tasks, door) = (tokio::task::JoinSet::new(), signed());
    let at_bare = listening(transport(None), &mut tasks).await;
    let at_door = listening(transport(Some(&door)), &mut tasks).await;
    let (mut bare_dialer, mut door_dialer) = (transport(None), transport(Some(&door)));
    let (mut bare, mut guarded, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..dials + warm_up {
        let without = dial(&mut bare_dialer, &at_bare).await;
        let with = dial(&mut door_dialer, &at_door).await;
        if n >= warm_up {
            bare.push(without);
            guarded.push(with);
            added.push(with - without);
        }
    }
    for sample in [&mut bare, &mut guarded, &mut added] {
        sample.sort_by(f64::total_cmp);
    }
    let row = |what: &str, of: &[f64], q| Row::new(what, quantile(of, q), "ms").samples(dials);
    vec![
        row("a connection without admission, p50", &bare, 0.5),
        row("a connection to a signed mesh, p50", &guarded, 0.5),
        row("added by admission, p50", &added, 0.5).reach(ADDED_MS),
        row("added by admission, p99", &added, 0.99),
    ]
}
