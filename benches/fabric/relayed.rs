//! What a relay costs: the same requests direct and through one.

use crate::{quantile, report::Row};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use multiaddr::Multiaddr;
use otela_node::{
    peer::{Identity, Path, Peer, PeerConfig, RequestBody, tunnel},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::{PeerId, payload::Role};
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

/// Reach of a small request's round trip through a relay, in those of a direct one.
const SLOWER: f64 = 3.0;
/// Reach of a large answer through a relay, in MB/s.
const THROUGHPUT: f64 = 60.0;
const ANSWER_BYTES: usize = 64 << 20;

/// Starts a peer that listens on `listen`, or nowhere.
async fn peer(role: Role, listen: &[&str], bootstrap: Vec<Multiaddr>, tasks: &Tasks) -> Peer {
    let config = PeerConfig {
        listen: listen.iter().map(|address| address.parse().unwrap()).collect(),
        bootstrap: bootstrap.into_iter().map(Into::into).collect(),
        ..PeerConfig::new("bench".parse().unwrap(), Identity::ephemeral(), vec![role])
    };
    let (peer, requests) = Peer::start(config, tasks, &Metrics::new()).await.unwrap();
    let answers = service_fn(async |request: Request<Incoming>| {
        let large = request.uri().path() == "/large";
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let body = if large { Bytes::from(vec![b'x'; ANSWER_BYTES]) } else { body };
        Ok::<_, Infallible>(Response::new(Full::new(body)))
    });
    if role == Role::Node {
        tasks.spawn(tunnel::serve(requests, answers, tasks.clone()));
    }
    peer
}

/// Sends one request over `path`; how long its whole answer took.
async fn ask(from: &Peer, to: &PeerId, what: &str, path: Path) -> Duration {
    let head = Request::post(what).header("host", "node").body(()).unwrap().into_parts().0;
    let began = Instant::now();
    let body = RequestBody::Whole(Bytes::from_static(&[b'x'; 1024]));
    let (response, connection) = from.send(to, head, body).await.unwrap();
    assert_eq!(connection.path(), path);
    let received = response.into_body().collect().await.unwrap().to_bytes().len();
    assert_eq!(received, if what == "/large" { ANSWER_BYTES } else { 1024 });
    began.elapsed()
}

pub(crate) async fn rows(quick: bool) -> Vec<Row> {
    let tasks = Tasks::new();
    let listen = ["/ip4/127.0.0.1/tcp/0"];
    let relay = peer(Role::Relay, &listen, vec![], &tasks).await;
    let client = peer(Role::Ingress, &[], relay.addresses(), &tasks).await;
    let direct = peer(Role::Node, &listen, relay.addresses(), &tasks).await;
    // It has no address of its own: there is no other way to it.
    let hidden = peer(Role::Node, &[], relay.addresses(), &tasks).await;
    let ways = [(direct.id(), Path::Direct), (hidden.id(), Path::Relayed)];
    for (to, path) in &ways {
        while client.connection(to).is_none_or(|connection| connection.path() != *path) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let blocks = if quick { 5 } else { 40 };
    let (mut small, mut large) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for _ in 0..blocks {
        for (at, (to, path)) in ways.iter().enumerate() {
            for _ in 0..50 {
                small[at].push(ask(&client, to, "/echo", *path).await.as_secs_f64() * 1e6);
            }
        }
    }
    for _ in 0..blocks.min(8) {
        for (at, (to, path)) in ways.iter().enumerate() {
            large[at].push(ANSWER_BYTES as f64 / 1e6 / ask(&client, to, "/large", *path).await.as_secs_f64());
        }
    }
    tasks.shutdown(Duration::ZERO).await;
    for measured in small.iter_mut().chain(&mut large) {
        measured.sort_by(f64::total_cmp);
    }
    let row = |what: &str, value, unit, samples: &Vec<f64>| Row::new(what, value, unit).samples(samples.len());
    let [near, far] = [0, 1].map(|at| quantile(&small[at], 0.5));
    let [wide, narrow] = [0, 1].map(|at| quantile(&large[at], 0.5));
    vec![
        row("1 KiB there and back: direct, p50", near, "us", &small[0]),
        row("1 KiB there and back: relayed, p50", far, "us", &small[1]),
        row("1 KiB there and back: relayed over direct", far / near, "x", &small[1]).reach(SLOWER),
        row("one answer of 64 MiB: direct, median", wide, "MB/s", &large[0]),
        row("one answer of 64 MiB: relayed, median", narrow, "MB/s", &large[1]).at_least(THROUGHPUT),
    ]
}
