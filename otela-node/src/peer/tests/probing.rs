//! Measurements between real peers, and what is not granted.

use super::*;
use crate::peer::probe::{HolePunch, ProbeError, Wanted};
use futures::{SinkExt, StreamExt};
use otela_proto::measure::{Order, Refusal, Reply};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

const WANTED: Wanted = Wanted { count: 20, bytes: 1_000_000, within: Duration::from_secs(5) };

async fn observer(mesh: &str) -> Running {
    let identity = Identity::ephemeral();
    let key = identity.keypair().clone();
    let config = PeerConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap(), "/ip4/127.0.0.1/udp/0/quic-v1".parse().unwrap()],
        observes: true,
        reserves: false,
        ..PeerConfig::new(mesh.parse().unwrap(), identity, vec![])
    };
    let (tasks, metrics) = (Tasks::new(), Metrics::new());
    let (peer, http) = Peer::start(config, &tasks, &metrics).await.unwrap();
    Running { key, metrics, peer, tasks, http: Some(http) }
}

#[tokio::test]
async fn an_observer_measures_every_way_and_nobody_hears_of_it() {
    let relay = tcp("lab", Role::Relay, vec![]).await;
    let node = tcp("lab", Role::Node, relay.peer.addresses()).await;
    node.peer.announce(serving("m")).await.unwrap();
    let has_reserved = |reach: &Reach| !reach.relays.is_empty();
    node.peer.reach_changes().wait_for(has_reserved).await.unwrap();
    let looks = observer("lab").await;
    looks.peer.dial_at(None, &relay.peer.addresses()[0]).await.unwrap();
    let at_relay = |view: &View| {
        view.node(&node.peer.id()).is_some_and(|node| node.entry.payload().multiaddrs().any(|a| swarm::is_relayed(&a)))
    };
    until(&looks.peer, "the observer sees the node and its relay", at_relay).await;
    let view = looks.peer.view();
    let mut addresses: Vec<_> = view.node(&node.peer.id()).unwrap().entry.payload().multiaddrs().collect();
    addresses.push("/ip4/127.0.0.1/tcp/1".parse().unwrap());
    let survey = looks.peer.survey(&node.peer.id(), addresses, &WANTED, PATIENCE).await;
    assert_eq!(survey.hole_punch, HolePunch::NotNeeded);
    let paths: Vec<_> = survey.ways.iter().map(|way| way.connection.path()).collect();
    assert_eq!(paths, [Path::Direct, Path::Relayed]);
    for way in &survey.ways {
        let measured = way.measured.as_ref().unwrap();
        assert_eq!((measured.round_trips.len(), measured.up.bytes, measured.down.bytes), (20, 1_000_000, 1_000_000));
        assert!(measured.round_trips.is_sorted() && measured.up.bytes_per_s() > 0.0);
    }
    let failed: Vec<_> = survey.tried.iter().filter_map(|tried| tried.failed.as_ref()).collect();
    assert!(failed.len() == 1 && failed[0].0.contains("refused"), "{failed:?}");
    for peer in [&relay.peer, &node.peer] {
        assert_eq!(peer.view().nodes().count(), 2, "relay and node");
    }
}

#[tokio::test]
async fn one_measurement_of_a_peer_at_once_and_nothing_that_is_not_understood() {
    let (node, looks) = (tcp("lab", Role::Node, vec![]).await, observer("lab").await);
    let connection = looks.peer.dial_at(Some(node.peer.id()), &node.peer.addresses()[0]).await.unwrap();
    let held = connection.open(looks.peer.inner.probe.clone()).await.unwrap();
    let mut held = Framed::new(held, LengthDelimitedCodec::new());
    let order = Order::Echo { count: 1 };
    held.send(order.write()).await.unwrap();
    assert_eq!(Reply::read(&held.next().await.unwrap().unwrap()), Ok(Reply::Go));
    let second = looks.peer.measure(&connection, &WANTED).await;
    assert!(matches!(second, Err(ProbeError::Refused(Refusal::OneAtATime))), "{second:?}");
    held.send(Bytes::from_static(b"once")).await.unwrap();
    assert_eq!(held.next().await.unwrap().unwrap(), b"once"[..]);
    held.send(Bytes::from_static(b"\xff\xff\xff")).await.unwrap();
    assert_eq!(Reply::read(&held.next().await.unwrap().unwrap()), Ok(Reply::Refused(Refusal::Malformed)));
    SinkExt::<Bytes>::close(&mut held).await.unwrap();
    assert!(held.next().await.is_none());
    // The place is free as soon as the stream has ended there.
    let again = async {
        loop {
            match looks.peer.measure(&connection, &WANTED).await {
                Err(ProbeError::Refused(Refusal::OneAtATime)) => {}
                measured => break measured,
            }
        }
    };
    finishes("it may be measured again", again).await.unwrap();
    let refused = node.peer.refusals();
    assert!(refused.contains(&("probes", "malformed", 1)), "{refused:?}");
    assert!(refused.iter().any(|(what, reason, _)| (*what, *reason) == ("probes", "one_at_a_time")), "{refused:?}");
}

#[tokio::test]
async fn addresses_of_the_asking_host_are_dialled_and_no_others() {
    let (node, looks) = (tcp("lab", Role::Node, vec![]).await, observer("lab").await);
    let connection = looks.peer.dial_at(Some(node.peer.id()), &node.peer.addresses()[0]).await.unwrap();
    let mut addresses = looks.peer.addresses();
    assert_eq!(addresses.len(), 2);
    addresses.push("/ip4/127.0.0.1/tcp/1".parse().unwrap());
    let outcomes = looks.peer.dialled_back(&connection, addresses.clone()).await.unwrap();
    let failed: Vec<_> = outcomes.iter().map(|outcome| outcome.failed.is_some()).collect();
    assert_eq!(
        outcomes.iter().map(|outcome| &outcome.address).collect::<Vec<_>>(),
        addresses.iter().collect::<Vec<_>>()
    );
    assert_eq!(failed, [false, false, true], "nobody is at the last one: {outcomes:?}");
    let other = vec!["/ip4/192.0.2.1/tcp/22".parse().unwrap()];
    let refused = looks.peer.dialled_back(&connection, other).await;
    assert!(matches!(refused, Err(ProbeError::Refused(Refusal::NotYours))), "{refused:?}");
}

#[tokio::test]
async fn a_peer_of_another_mesh_is_not_measured() {
    let (node, looks) = (tcp("other", Role::Node, vec![]).await, observer("lab").await);
    let why = looks.peer.dial_at(None, &node.peer.addresses()[0]).await.unwrap_err().to_string();
    assert!(why.contains("of another mesh"), "{why}");
}
