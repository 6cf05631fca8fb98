//! Doors over real transports, and peers at them that do not keep to the handshake.

use super::*;
use crate::peer::gossip::unix_ms;
use crate::peer::{
    admission::{AdmissionSettings, Tally},
    transport,
};
use futures::StreamExt;
use libp2p::{
    Multiaddr, Swarm, Transport,
    core::upgrade::Version,
    identity::Keypair,
    noise,
    swarm::{Config, ConnectionId, SwarmEvent, dummy},
    tcp, yamux,
};
use otela_proto::{
    admission::{BinaryDigest, Membership, NONCE_BYTES, Release, Rules, Validity},
    id::MeshName,
    wire::Signed,
};
use std::{sync::LazyLock, time::Duration};

const TRANSPORTS: [&str; 3] = ["/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1", "/ip4/127.0.0.1/tcp/0/ws"];

static MAINTAINER: LazyLock<Keypair> = LazyLock::new(Keypair::generate_ed25519);

fn mesh() -> MeshName {
    "lab".parse().unwrap()
}

fn valid() -> Validity {
    Validity { from_ms: unix_ms() - 1_000, until_ms: unix_ms() + 3_600_000 }
}

fn release_by(key: &Keypair, validity: Validity) -> Option<Signed> {
    Some(Release::sign(key, BinaryDigest::of(b"otela"), &"0.2.0".parse().unwrap(), validity).unwrap())
}

/// A signed mesh as one of its peers is set up for it.
fn signed() -> AdmissionSettings {
    let keys = [MAINTAINER.public().to_peer_id()].into();
    let rules = Rules { release_keys: keys, require_signed: true, ..Rules::open(mesh()) };
    AdmissionSettings { rules, release: release_by(&MAINTAINER, valid()), ..AdmissionSettings::open(mesh()) }
}

fn showing(release: Option<Signed>) -> AdmissionSettings {
    AdmissionSettings { release, ..AdmissionSettings::open(mesh()) }
}

/// A swarm behind a door, that does nothing.
struct Peer {
    swarm: Swarm<dummy::Behaviour>,
    door: Admission,
}

impl Peer {
    fn new(settings: &AdmissionSettings) -> Self {
        let key = Keypair::generate_ed25519();
        let me = key.public().to_peer_id();
        let door = Admission::new(key.clone(), settings, Tally::default());
        let (transport, _) =
            transport::build(&key, &transport::Egress::default(), &door, None, &transport::Answers::default()).unwrap();
        let config = Config::with_tokio_executor().with_idle_connection_timeout(Duration::from_secs(60));
        Self { swarm: Swarm::new(transport, dummy::Behaviour, me, config), door }
    }

    async fn listening(settings: &AdmissionSettings, at: &str) -> (Self, Multiaddr) {
        let mut peer = Self::new(settings);
        peer.swarm.listen_on(at.parse().unwrap()).unwrap();
        loop {
            if let SwarmEvent::NewListenAddr { address, .. } = peer.swarm.select_next_some().await {
                let address = address.with_p2p(*peer.swarm.local_peer_id()).unwrap();
                return (peer, address);
            }
        }
    }

    fn refused(&self) -> Vec<(By, Refused)> {
        self.door.tally().all().into_iter().map(|(by, refused, _)| (by, refused)).collect()
    }
}

/// Whether a swarm has seen a connection, or that there will be none.
fn decided(event: &SwarmEvent<std::convert::Infallible>) -> Option<bool> {
    match event {
        SwarmEvent::ConnectionEstablished { .. } => Some(true),
        SwarmEvent::IncomingConnectionError { .. } | SwarmEvent::OutgoingConnectionError { .. } => Some(false),
        _ => None,
    }
}

/// Dials and returns what dialer and listener have seen.
async fn meet(dialer: &mut Peer, listener: &mut Peer, address: Multiaddr) -> (bool, bool) {
    dialer.swarm.dial(address).unwrap();
    let (mut here, mut there) = (None, None);
    while here.is_none() || there.is_none() {
        tokio::select! {
            event = dialer.swarm.select_next_some() => here = here.or(decided(&event)),
            event = listener.swarm.select_next_some() => there = there.or(decided(&event)),
        }
    }
    (here.unwrap(), there.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_of_one_mesh_meet_over_each_transport() {
    for at in TRANSPORTS {
        for settings in [AdmissionSettings::open(mesh()), signed()] {
            let (mut listener, address) = Peer::listening(&settings, at).await;
            let mut dialer = Peer::new(&settings);
            assert_eq!(meet(&mut dialer, &mut listener, address).await, (true, true), "{at}");
            assert!(dialer.refused().is_empty() && listener.refused().is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_is_never_seen_and_both_sides_know_why() {
    let other_mesh = AdmissionSettings::open("lab2".parse().unwrap());
    let expired = Validity { from_ms: 0, until_ms: 1_000 };
    let stranger = Keypair::generate_ed25519();
    let cases = [
        (other_mesh, Refused::OtherMesh),
        (showing(None), Refused::Unsigned),
        (showing(release_by(&stranger, valid())), Refused::UnknownKey),
        (showing(release_by(&MAINTAINER, expired)), Refused::Expired),
    ];
    for at in TRANSPORTS {
        for (settings, reason) in &cases {
            let (mut listener, address) = Peer::listening(&signed(), at).await;
            let mut dialer = Peer::new(settings);
            assert_eq!(meet(&mut dialer, &mut listener, address).await, (false, false), "{at}: {reason:?}");
            assert_eq!(listener.refused(), [(By::Us, *reason)], "{at}");
            assert_eq!(dialer.refused(), [(By::Them, *reason)], "{at}");
            // And the other way round: the one who dials is the one who refuses.
            let (mut listener, address) = Peer::listening(settings, at).await;
            let mut dialer = Peer::new(&signed());
            assert_eq!(meet(&mut dialer, &mut listener, address).await, (false, false), "{at}: {reason:?}");
            let mutual = *reason == Refused::OtherMesh;
            let (here, there) = if mutual { (By::Them, By::Us) } else { (By::Us, By::Them) };
            assert_eq!(dialer.refused(), [(here, *reason)], "{at}");
            assert_eq!(listener.refused(), [(there, *reason)], "{at}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_change_are_applied_to_who_is_connected_and_to_who_is_on_the_way() {
    let (mut listener, address) = Peer::listening(&signed(), TRANSPORTS[0]).await;
    let mut dialer = Peer::new(&signed());
    assert_eq!(meet(&mut dialer, &mut listener, address.clone()).await, (true, true));
    let (guest, id) = (*dialer.swarm.local_peer_id(), ConnectionId::new_unchecked(1));
    assert_eq!(listener.door.is_here(guest, id), Ok(()));
    assert!(listener.door.judge_again().is_empty());
    let mut another = Peer::new(&signed());
    assert_eq!(meet(&mut another, &mut listener, address).await, (true, true));
    let late = *another.swarm.local_peer_id();
    let mut changes = listener.door.changes();
    let rules = Rules { revoked_peers: [guest, late].into(), ..(*listener.door.rules()).clone() };
    listener.door.change(rules);
    changes.changed().await.unwrap();
    assert_eq!(listener.door.judge_again(), [(guest, id, Refused::RevokedPeer)]);
    let second = ConnectionId::new_unchecked(2);
    assert_eq!(listener.door.is_here(late, second), Err(Refused::RevokedPeer), "it had passed under the old rules");
    listener.door.is_gone(id);
    assert_eq!(listener.door.judge_again(), [(late, second, Refused::RevokedPeer)]);
    assert_eq!(listener.door.let_in(guest, Credentials::default()), Err(Refused::RevokedPeer));
}

fn hello(release: Option<Signed>) -> Vec<u8> {
    Hello { mesh: "lab".to_owned(), nonce: [9; NONCE_BYTES], release, membership: None }.encode()
}

/// A connection as somebody has it who holds a key and knows nothing of doors, or pretends to.
struct Rogue {
    key: Keypair,
    muxer: StreamMuxerBox,
}

impl Rogue {
    async fn dial(address: &Multiaddr, key: Keypair) -> Self {
        let mut transport = tcp::tokio::Transport::new(tcp::Config::default())
            .upgrade(Version::V1Lazy)
            .authenticate(noise::Config::new(&key).unwrap())
            .multiplex(yamux::Config::default())
            .map(|(_, muxer), _| StreamMuxerBox::new(muxer));
        let options = libp2p::core::transport::DialOpts {
            role: Endpoint::Dialer,
            port_use: libp2p::core::transport::PortUse::New,
        };
        // The transport takes addresses without an id at their end.
        let address = address.iter().take(2).collect();
        let muxer = transport.dial(address, options).unwrap().await.unwrap();
        Self { key, muxer }
    }

    /// Runs `talk` on the first substream.
    async fn talk<T>(&mut self, talk: impl AsyncFnOnce(libp2p::core::muxing::SubstreamBox) -> T) -> T {
        let muxer = &mut self.muxer;
        let stream = poll_fn(|cx| match muxer.poll_outbound_unpin(cx) {
            Poll::Pending => drive(muxer, cx).map(Err),
            opened => opened,
        });
        let stream = stream.await.unwrap();
        let mut talk = pin!(talk(stream));
        poll_fn(|cx| {
            let outcome = talk.as_mut().poll(cx);
            // What was said last has to leave too.
            let _ = drive(muxer, cx);
            outcome
        })
        .await
    }
}

/// The listener's swarm until it has given up on a connection; it must never see one.
async fn gives_up(listener: &mut Peer) {
    loop {
        match decided(&listener.swarm.select_next_some().await) {
            Some(true) => panic!("a connection was seen that was not admitted"),
            Some(false) => return,
            None => {}
        }
    }
}

/// What a rogue that says `bytes` first reads until the connection ends.
async fn answer_to(bytes: &[u8], settings: &AdmissionSettings) -> (Vec<u8>, Vec<(By, Refused)>) {
    let (mut listener, address) = Peer::listening(settings, TRANSPORTS[0]).await;
    let key = Keypair::generate_ed25519();
    let rogue = async {
        let mut rogue = Rogue::dial(&address, key).await;
        rogue
            .talk(async |mut stream| {
                stream.write_all(bytes).await.unwrap();
                stream.flush().await.unwrap();
                let mut answer = Vec::new();
                let _ = stream.read_to_end(&mut answer).await;
                answer
            })
            .await
    };
    let (answer, ()) = futures::join!(rogue, gives_up(&mut listener));
    (answer, listener.refused())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_skips_the_handshake_is_told_so_and_not_seen() {
    // As a libp2p peer begins that takes the connection for established.
    let multistream = b"\x13/multistream/1.0.0\n\x10/ipfs/ping/1.0.0\n";
    let too_long = [PREFACE, &[0xff, 0xff], &[0; 64]].concat();
    let no_hello = [PREFACE, &[0, 3], b"abc"].concat();
    for bytes in [&multistream[..], &too_long, &no_hello] {
        let (answer, refused) = answer_to(bytes, &AdmissionSettings::open(mesh())).await;
        assert_eq!(answer, [Refused::Malformed.code()], "one byte says why");
        assert_eq!(refused, [(By::Us, Refused::Malformed)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_says_nothing_or_half_of_it_is_given_up() {
    let half = [PREFACE, &[0, 40], b"half"].concat();
    let silences = [&[][..], PREFACE, &half].map(|bytes| async move {
        let (mut listener, address) = Peer::listening(&AdmissionSettings::open(mesh()), TRANSPORTS[0]).await;
        let rogue = async {
            let mut rogue = Rogue::dial(&address, Keypair::generate_ed25519()).await;
            rogue
                .talk(async |mut stream| {
                    stream.write_all(bytes).await.unwrap();
                    stream.flush().await.unwrap();
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                })
                .await;
        };
        futures::join!(rogue, gives_up(&mut listener));
        assert_eq!(listener.refused(), [(By::Us, Refused::TooSlow)]);
    });
    futures::future::join_all(silences).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_handshake_and_a_copied_signature_without_the_key_fail() {
    let key = Keypair::generate_ed25519();
    // A first handshake, as it should be, with everything that was said in it.
    let (mut listener, address) = Peer::listening(&signed(), TRANSPORTS[0]).await;
    let it = *listener.swarm.local_peer_id();
    let genuine = async {
        let mut rogue = Rogue::dial(&address, key.clone()).await;
        let (hello, key) = (hello(release_by(&MAINTAINER, valid())), rogue.key.clone());
        let spoken = hello.clone();
        let said = rogue
            .talk(async move |mut stream| {
                stream.write_all(PREFACE).await.unwrap();
                write_frame(&mut stream, &spoken).await.unwrap();
                stream.flush().await.unwrap();
                verdict(&mut stream).await.unwrap();
                let theirs = read_frame(&mut stream).await.unwrap();
                read_frame(&mut stream).await.unwrap();
                let proof = prove(&key, &it, Side::Dialer, &mesh(), [&spoken, &theirs]).unwrap();
                stream.write_all(&[ADMITTED]).await.unwrap();
                write_frame(&mut stream, &proof).await.unwrap();
                stream.flush().await.unwrap();
                verdict(&mut stream).await.unwrap();
                proof
            })
            .await;
        (rogue, hello, said)
    };
    let seen = async {
        loop {
            if let Some(seen) = decided(&listener.swarm.select_next_some().await) {
                return seen;
            }
        }
    };
    let ((rogue, hello, proof), seen) = futures::join!(genuine, seen);
    assert!(seen, "the handshake is right");
    drop(rogue);
    // The same again, word for word.
    let replay = async {
        let mut rogue = Rogue::dial(&address, key.clone()).await;
        rogue
            .talk(async move |mut stream| {
                stream.write_all(PREFACE).await.unwrap();
                write_frame(&mut stream, &hello).await.unwrap();
                stream.flush().await.unwrap();
                verdict(&mut stream).await.unwrap();
                read_frame(&mut stream).await.unwrap();
                read_frame(&mut stream).await.unwrap();
                stream.write_all(&[ADMITTED]).await.unwrap();
                write_frame(&mut stream, &proof).await.unwrap();
                stream.flush().await.unwrap();
                verdict(&mut stream).await
            })
            .await
    };
    let (verdict, ()) = futures::join!(replay, gives_up(&mut listener));
    assert!(matches!(verdict, Err(NotAdmitted::ByThem(Refused::BadProof))), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn somebody_elses_membership_does_not_help() {
    let authority = Keypair::generate_ed25519();
    let member = Keypair::generate_ed25519();
    let rules = Rules { authorities: [authority.public().to_peer_id()].into(), ..Rules::open(mesh()) };
    let settings = AdmissionSettings { rules, ..AdmissionSettings::open(mesh()) };
    let membership = Membership::sign(&authority, &mesh(), &member.public().to_peer_id(), valid()).unwrap();
    let hello = Hello { mesh: "lab".into(), nonce: [1; NONCE_BYTES], release: None, membership: Some(membership) };
    let hello = hello.encode();
    let bytes = [PREFACE, &u16::try_from(hello.len()).unwrap().to_be_bytes(), &hello].concat();
    let (answer, refused) = answer_to(&bytes, &settings).await;
    assert_eq!(answer, [Refused::BadMembership.code()]);
    assert_eq!(refused, [(By::Us, Refused::BadMembership)]);
}
