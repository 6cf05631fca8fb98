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

/// A quantity for each way to the engine: direct; through two plain TCP relays, which do nothing but pass bytes on;
/// through ingress and node. The relays show what two more processes cost on this machine, whatever they do.
#[derive(Clone)]
pub(crate) struct Ways<T> {
    pub(crate) direct: T,
    pub(crate) relays: T,
    pub(crate) mesh: T,
}

impl<T> Ways<T> {
    fn each(f: impl Fn() -> T) -> Self {
        Self { direct: f(), relays: f(), mesh: f() }
    }

    pub(crate) fn map<U>(&self, f: impl Fn(&T) -> U) -> Ways<U> {
        Ways { direct: f(&self.direct), relays: f(&self.relays), mesh: f(&self.mesh) }
    }

    fn in_turn(&mut self) -> [&mut T; 3] {
        [&mut self.direct, &mut self.relays, &mut self.mesh]
    }
}

/// Latencies in nanoseconds.
pub(crate) type Latencies = Ways<Histogram<u64>>;

/// An open loop: requests begin at fixed times, whether or not earlier ones have ended.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) per_second: u32,
    pub(crate) lasts: Duration,
}

fn latencies() -> Latencies {
    Ways::each(|| Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap())
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
pub(crate) async fn connect(to: SocketAddr) -> Sender {
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

/// One client, one request after the other, the ways in turn.
pub(crate) async fn closed_loop(ways: &Ways<SocketAddr>, rounds: usize) -> Latencies {
    let mut clients = ways.map(|to| Client::new(*to));
    let mut seen = latencies();
    for _ in 0..rounds {
        for (client, histogram) in clients.in_turn().into_iter().zip(seen.in_turn()) {
            histogram.saturating_record(client.ask().await.as_nanos() as u64);
        }
    }
    seen
}

/// Every way at the same rate at the same time, evenly apart.
#[expect(clippy::disallowed_methods, reason = "each request is awaited below")]
pub(crate) async fn open_loop(ways: &Ways<SocketAddr>, load: Load) -> Latencies {
    let mut clients = ways.map(|to| Client::new(*to));
    let period = Duration::from_secs(1) / load.per_second;
    let mut ticks = tokio::time::interval(period / 3);
    let wanted = (load.lasts.as_secs_f64() / period.as_secs_f64()).ceil() as usize;
    let mut running = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..wanted {
        for (client, tasks) in clients.in_turn().into_iter().zip(&mut running) {
            ticks.tick().await;
            let client = client.clone();
            tasks.push(tokio::spawn(async move { client.ask().await }));
        }
    }
    let mut seen = latencies();
    for (histogram, tasks) in seen.in_turn().into_iter().zip(running) {
        for took in join_all(tasks).await {
            histogram.saturating_record(took.unwrap().as_nanos() as u64);
        }
    }
    seen
}

/// Requests per second that `clients` can make, the ways in turn; the middle of the rounds.
pub(crate) async fn throughput(ways: &Ways<SocketAddr>, clients: usize, lasts: Duration, rounds: usize) -> Ways<f64> {
    let mut seen: Ways<Vec<f64>> = Ways::each(Vec::new);
    for _ in 0..rounds {
        for (to, rates) in ways.clone().in_turn().into_iter().zip(seen.in_turn()) {
            rates.push(saturate(*to, clients, lasts).await);
        }
    }
    seen.map(|rates| {
        let mut rates = rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rounds / 2]
    })
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

/// Streams one after the other, the ways in turn: time to the first event, and the way of each event from the
/// engine's hands to the client's.
pub(crate) async fn streams(ways: &Ways<SocketAddr>, rounds: usize) -> (Latencies, Latencies) {
    let mut clients = ways.map(|to| Client::new(*to));
    let (mut first, mut events) = (latencies(), latencies());
    for _ in 0..rounds {
        let histograms = first.in_turn().into_iter().zip(events.in_turn());
        for (client, (first, events)) in clients.in_turn().into_iter().zip(histograms) {
            stream(client, first, events).await;
        }
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
