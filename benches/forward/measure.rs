//! The measurements. Each takes both ways in turn, so that what else the machine does hits them alike.

use crate::engine::now_ns;
use bytes::Bytes;
use futures::future::join_all;
use hdrhistogram::Histogram;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::net::TcpStream;

/// Latencies in nanoseconds, the direct way and through the mesh.
pub(crate) struct Pair {
    pub(crate) direct: Histogram<u64>,
    pub(crate) through: Histogram<u64>,
}

/// Requests per second, the direct way and through the mesh.
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) direct: f64,
    pub(crate) through: f64,
}

/// An open loop: requests begin at fixed times, whether or not earlier ones have ended.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) per_second: u32,
    pub(crate) lasts: Duration,
}

impl Pair {
    fn new() -> Self {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        Self { direct: histogram(), through: histogram() }
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// A client with its idle connections, last in first out.
#[derive(Clone)]
struct Client {
    to: SocketAddr,
    idle: Arc<Mutex<Vec<Sender>>>,
}

impl Client {
    fn new(to: SocketAddr) -> Self {
        Self { to, idle: Arc::default() }
    }

    async fn line(&self) -> Sender {
        let kept = self.idle.lock().unwrap().pop();
        if let Some(mut sender) = kept
            && sender.ready().await.is_ok()
        {
            return sender;
        }
        connect(self.to).await
    }

    /// One whole request and answer.
    async fn ask(&self) -> Duration {
        let mut sender = self.line().await;
        let began = Instant::now();
        let response = sender.send_request(request(false)).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let took = began.elapsed();
        assert!(body.len() > 1_000);
        self.idle.lock().unwrap().push(sender);
        took
    }
}

#[expect(clippy::disallowed_methods, reason = "the connection's task ends with the connection")]
async fn connect(to: SocketAddr) -> Sender {
    let tcp = TcpStream::connect(to).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(tcp)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(stream: bool) -> Request<Full<Bytes>> {
    let prompt = "z".repeat(900);
    let body = format!(r#"{{"model":"bench","prompt":"{prompt}","stream":{stream}}}"#);
    let request = Request::post("/v1/completions").header("host", "bench").header("content-type", "application/json");
    request.body(Full::new(body.into())).unwrap()
}

/// One client, one request after the other, the two ways in turn.
pub(crate) async fn closed_loop(direct: SocketAddr, through: SocketAddr, rounds: usize) -> Pair {
    let (direct, through) = (Client::new(direct), Client::new(through));
    let mut pair = Pair::new();
    for _ in 0..rounds {
        pair.direct.saturating_record(direct.ask().await.as_nanos() as u64);
        pair.through.saturating_record(through.ask().await.as_nanos() as u64);
    }
    pair
}

/// Both ways at the same rate at the same time, half a period apart.
#[expect(clippy::disallowed_methods, reason = "each request is awaited below")]
pub(crate) async fn open_loop(direct: SocketAddr, through: SocketAddr, load: Load) -> Pair {
    let (direct, through) = (Client::new(direct), Client::new(through));
    let period = Duration::from_secs(1) / load.per_second;
    let mut ticks = tokio::time::interval(period / 2);
    let mut running = (Vec::new(), Vec::new());
    let wanted = (load.lasts.as_secs_f64() / period.as_secs_f64()).ceil() as usize;
    for _ in 0..wanted {
        ticks.tick().await;
        let client = direct.clone();
        running.0.push(tokio::spawn(async move { client.ask().await }));
        ticks.tick().await;
        let client = through.clone();
        running.1.push(tokio::spawn(async move { client.ask().await }));
    }
    let mut pair = Pair::new();
    for (histogram, tasks) in [(&mut pair.direct, running.0), (&mut pair.through, running.1)] {
        for took in join_all(tasks).await {
            histogram.saturating_record(took.unwrap().as_nanos() as u64);
        }
    }
    pair
}

/// As many requests as `clients` can make, the two ways in turn; the middle of the rounds.
pub(crate) async fn throughput(
    direct: SocketAddr,
    through: SocketAddr,
    clients: usize,
    lasts: Duration,
    rounds: usize,
) -> Rates {
    let (mut directs, mut throughs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        directs.push(saturate(direct, clients, lasts).await);
        throughs.push(saturate(through, clients, lasts).await);
    }
    directs.sort_by(f64::total_cmp);
    throughs.sort_by(f64::total_cmp);
    Rates { direct: directs[rounds / 2], through: throughs[rounds / 2] }
}

async fn saturate(to: SocketAddr, clients: usize, lasts: Duration) -> f64 {
    let began = Instant::now();
    let one = || async {
        let client = Client::new(to);
        let mut answered = 0_u64;
        while began.elapsed() < lasts {
            client.ask().await;
            answered += 1;
        }
        answered
    };
    let answered: u64 = join_all((0..clients).map(|_| one())).await.into_iter().sum();
    answered as f64 / began.elapsed().as_secs_f64()
}

/// Streams one after the other, the two ways in turn: time to the first event, and the way of each event from the
/// engine's hands to the client's.
pub(crate) async fn streams(direct: SocketAddr, through: SocketAddr, rounds: usize) -> (Pair, Pair) {
    let (direct, through) = (Client::new(direct), Client::new(through));
    let (mut first, mut events) = (Pair::new(), Pair::new());
    for _ in 0..rounds {
        stream(&direct, &mut first.direct, &mut events.direct).await;
        stream(&through, &mut first.through, &mut events.through).await;
    }
    (first, events)
}

async fn stream(client: &Client, first: &mut Histogram<u64>, events: &mut Histogram<u64>) {
    let mut sender = client.line().await;
    let began = Instant::now();
    let mut body = sender.send_request(request(true)).await.unwrap().into_body();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let arrived = now_ns();
        let data = frame.unwrap().into_data().unwrap();
        if seen == 0 {
            first.saturating_record(began.elapsed().as_nanos() as u64);
        }
        for event in std::str::from_utf8(&data).unwrap().split("\n\n").filter(|event| !event.is_empty()) {
            let sent: u64 = event.trim_start_matches("data: {\"at\":").trim_end_matches('}').parse().unwrap();
            events.saturating_record(arrived.saturating_sub(sent).max(1));
            seen += 1;
        }
    }
    assert_eq!(seen, 50, "every event arrives");
    client.idle.lock().unwrap().push(sender);
}
