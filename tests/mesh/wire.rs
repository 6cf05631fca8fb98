//! What clients do on a connection: HTTP/2 by prior knowledge, and HTTP/1.1 that can be read in two ways.

use crate::{
    streaming::NOTHING_IS_WRITTEN,
    support::{Answer, Mesh, Way, chunk, eventually, finishes, get, raw, read_to_end, read_until, stream_of},
};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::{convert::Infallible, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinHandle,
};

each_way![
    p10_streams_are_the_same_bytes_in_http_2,
    p11_resetting_one_stream_of_a_connection_stops_its_engine_and_no_other,
    p12_a_broken_stream_is_reset_in_http_2_and_its_connection_goes_on,
    p26_requests_that_can_be_read_in_two_ways_reach_no_engine_as_two,
    what_runs_in_http_2_is_finished_by_an_ingress_that_stops,
];

const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
const CHAT: &str = "/v1/chat/completions";

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(crate) fn body(value: &Value) -> Body {
    Full::new(Bytes::from(value.to_string())).boxed_unsync()
}

/// A body that comes piece by piece.
fn pieces(pieces: impl Stream<Item = &'static str> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()))))).boxed_unsync()
}

/// A request of HTTP/2, which names its authority.
pub(crate) fn request(path: &str, body: Body) -> Request<Body> {
    let request = Request::post(format!("http://test{path}")).header("content-type", "application/json");
    request.body(body).unwrap()
}

/// A request to the scripted engine that serves `m`.
pub(crate) fn scripted(steps: impl Into<Value>) -> Value {
    json!({"model": "m", "stream": true, "messages": [], "script": steps.into()})
}

/// The steps of a stream that says one event, waits for `name`, says another one and ends.
pub(crate) fn held(name: &str) -> Vec<Value> {
    let rest = vec![json!(["await", name]), json!(["send", chunk(EVENT)]), json!(["send", "0\r\n\r\n"])];
    [stream_of(&[EVENT]), rest].concat()
}

/// A client's connection in HTTP/2.
pub(crate) struct H2 {
    sender: http2::SendRequest<Body>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl H2 {
    /// Begins it on `io`, without asking whether the other side speaks it.
    #[expect(clippy::disallowed_methods, reason = "the connection's task ends with the connection")]
    pub(crate) async fn on(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
        Self { sender, connection: tokio::spawn(connection) }
    }

    async fn to(mesh: &Mesh) -> Self {
        Self::on(raw(mesh.http, b"").await).await
    }

    /// Sends a request; the head of its answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let mut sender = self.sender.clone();
        finishes("the head of an answer", sender.send_request(request)).await
    }

    /// A whole answer.
    pub(crate) async fn ask(&self, request: Request<Body>) -> Answer {
        let (head, body) = self.send(request).await.unwrap().into_parts();
        let body = finishes("the body of an answer", body.collect()).await.unwrap().to_bytes();
        Answer { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// Begins a stream that the scripted engine makes of `steps`.
    pub(crate) async fn stream(&self, steps: impl Into<Value>) -> Events {
        let response = self.send(request(CHAT, body(&scripted(steps)))).await.unwrap();
        let (status, version) = (response.status().as_u16(), response.version());
        if status != 200 {
            panic!("{status}: {:?}", finishes("its body", response.into_body().collect()).await);
        }
        assert_eq!(version, http::Version::HTTP_2);
        Events { body: response.into_body(), seen: String::new() }
    }

    /// That it still does its work.
    pub(crate) async fn is_well(&self) {
        let small = json!({"model": "m", "prompt": "x", "max_tokens": 1});
        assert_eq!(self.ask(request("/v1/completions", body(&small))).await.status, 200);
        assert!(!self.connection.is_finished());
    }
}

/// An answer that is being read.
pub(crate) struct Events {
    body: Incoming,
    seen: String,
}

impl Events {
    /// Reads until `mark` has come `times` times.
    pub(crate) async fn until(&mut self, mark: &str, times: usize) {
        while self.seen.matches(mark).count() < times {
            let frame = finishes("the next event", self.body.frame()).await;
            self.take(frame.expect("no end before it").unwrap());
        }
    }

    /// Reads to the end; all that came, and whether it was a clean end.
    pub(crate) async fn rest(mut self) -> (String, bool) {
        loop {
            match finishes("the end of a stream", self.body.frame()).await {
                None => return (self.seen, true),
                Some(Err(_)) => return (self.seen, false),
                Some(Ok(frame)) => self.take(frame),
            }
        }
    }

    fn take(&mut self, frame: Frame<Bytes>) {
        self.seen.push_str(std::str::from_utf8(&frame.into_data().unwrap_or_default()).unwrap());
    }
}

async fn p10_streams_are_the_same_bytes_in_http_2(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    let client = H2::to(&mesh).await;
    let text =
        "data: {\"t\":\"读写😀é\"}\r\n\r\n: comment\nevent: x\nid: 7\ndata: a\ndata: b\n\ndata: c\r\rdata: d\n\n";
    let latin: Vec<String> = text.bytes().map(|byte| char::from(byte).to_string()).collect();
    let long = format!("data: {}\n\n", "y".repeat(300 * 1024));
    let whole = latin.concat();
    for (said, pieces) in
        [(text, latin.iter().map(String::as_str).collect()), (text, vec![&*whole]), (&*long, vec![&*long])]
    {
        let steps = [stream_of(&pieces), vec![json!(["send", "0\r\n\r\n"])]].concat();
        // Some at once.
        let both = tokio::join!(client.stream(steps.clone()), client.stream(steps));
        let (one, other) = tokio::join!(both.0.rest(), both.1.rest());
        assert_eq!((one, other), ((said.to_owned(), true), (said.to_owned(), true)));
    }
}

async fn p11_resetting_one_stream_of_a_connection_stops_its_engine_and_no_other(way: Way) {
    let mut mesh = Mesh::by(way, &NOTHING_IS_WRITTEN).await;
    let log = mesh.scripted("m").await;
    let client = H2::to(&mesh).await;
    let mut goes_on = client.stream(held("reset")).await;
    goes_on.until("content", 1).await;
    // One that is read and one that waits for its head.
    let mut read = client.stream([stream_of(&[EVENT, EVENT, EVENT]), vec![json!(["gone"])]].concat()).await;
    read.until("content", 3).await;
    drop(read);
    log.nth("gone", 1).await;
    let waits = client.send(request(CHAT, body(&scripted(json!([["gone"]])))));
    tokio::select! {
        head = waits => panic!("it has no head: {head:?}"),
        _ = log.nth("request", 3) => {}
    }
    log.nth("gone", 2).await;
    log.allow("reset");
    assert_eq!(goes_on.rest().await, (EVENT.repeat(2), true));
    client.is_well().await;
    eventually("nothing is in flight", async || (mesh.metric("otela_ingress_in_flight").await == 0.0).then_some(()))
        .await;
    assert_eq!(mesh.metric("otela_ingress_requests_total{end=\"client_gone\"}").await, 2.0);
}

async fn p12_a_broken_stream_is_reset_in_http_2_and_its_connection_goes_on(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let client = H2::to(&mesh).await;
    let goes_on = client.stream(held("broken")).await;
    let steps = [stream_of(&[EVENT, EVENT]), vec![json!(["sleep", 0.1]), json!(["close"])]].concat();
    let (text, clean) = client.stream(steps).await.rest().await;
    assert!(!clean && text.matches("\"content\"").count() == 2 && text.contains("stream_broken"), "{text}");
    assert!(!text.contains("[DONE]"), "{text}");
    log.allow("broken");
    assert_eq!(goes_on.rest().await, (EVENT.repeat(2), true));
    client.is_well().await;
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused_in_http_2_and_their_connection_goes_on() {
    let mut mesh = Mesh::ingress(&[]).await;
    let log = mesh.scripted("m").await;
    let client = H2::to(&mesh).await;
    let padded = |kib: usize| {
        let mut request = request(CHAT, body(&json!({"model": "m", "messages": []})));
        for n in 0..kib {
            let name = http::HeaderName::from_bytes(format!("x-padding-{n}").as_bytes()).unwrap();
            request.headers_mut().insert(name, "x".repeat(1024).parse().unwrap());
        }
        request
    };
    assert_eq!(client.ask(padded(48)).await.status, 200);
    for _ in 0..3 {
        assert_eq!(client.ask(padded(70)).await.status, 431);
    }
    client.is_well().await;
    assert!(!log.events("request")[0]["head"].as_str().unwrap().contains("padding"), "they stay here");
    assert_eq!(log.events("request").len(), 1, "the engine never saw the others");
}

#[tokio::test]
async fn an_upload_that_stalls_is_refused_in_http_2_and_its_connection_goes_on() {
    let mut mesh = Mesh::ingress(&["--body-stall", "8s"]).await;
    mesh.scripted("m").await;
    let client = H2::to(&mesh).await;
    let begun = stream::iter(["{\"model\":\"m\","]).chain(stream::pending());
    let stalled = client.ask(request(CHAT, pieces(begun)));
    // It takes longer as a whole, and never pauses for so long.
    let steady = stream::iter(["{\"model\"", ":\"m\"", ",\"messages\"", ":", "[", "]", ",\"n\"", ":1", "}"]);
    let steady = steady.then(async |piece| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        piece
    });
    let (stalled, steady) = tokio::join!(stalled, client.ask(request(CHAT, pieces(steady))));
    assert_eq!((stalled.status, &stalled.json()["error"]["code"]), (408, &json!("body_stalled")));
    assert_eq!(steady.status, 200, "{:?}", steady.body);
    client.is_well().await;
}

#[tokio::test]
async fn connections_that_ask_for_no_inference_are_kept() {
    let mut mesh = Mesh::ingress(&["--head-within", "10s"]).await;
    let mut watch = raw(mesh.http, b"GET /v1/registry/watch HTTP/1.1\r\nhost: x\r\n\r\n").await;
    read_until(&mut watch, "event: snapshot").await;
    let list = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut reader = raw(mesh.http, list).await;
    // Later one that has asked for nothing is closed, and those that came before it are not.
    let (mut silent, mut nothing) = (raw(mesh.http, b"").await, Vec::new());
    let closed = finishes("a silent connection is closed", silent.read_to_end(&mut nothing));
    tokio::pin!(closed);
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    loop {
        read_until(&mut reader, "\"object\":\"list\"}").await;
        reader.write_all(list).await.unwrap();
        tokio::select! {
            _ = pace.tick() => {}
            closed = closed.as_mut() => {
                assert_eq!(closed.unwrap(), 0);
                break;
            }
        }
    }
    read_until(&mut reader, "\"object\":\"list\"}").await;
    mesh.simulated("m", &[]).await;
    read_until(&mut watch, "\"lifecycle\":\"serving\"").await;
}

#[tokio::test]
async fn a_client_that_has_just_connected_is_answered_by_an_ingress_that_stops() {
    let mut mesh = Mesh::ingress(&[]).await;
    let mut fresh = raw(mesh.http, b"").await;
    // It is accepted once a later one is answered.
    assert_eq!(get(mesh.http, "/health").await.status, 200);
    mesh.ingress.signal("-TERM");
    mesh.ingress.says("SIGTERM").await;
    fresh.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let (text, clean) = read_to_end(&mut fresh).await;
    assert!(clean && text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(mesh.ingress.ends().await, 0);
}

async fn what_runs_in_http_2_is_finished_by_an_ingress_that_stops(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let client = H2::to(&mesh).await;
    let mut runs = client.stream(held("told")).await;
    runs.until("content", 1).await;
    mesh.ingress.signal("-TERM");
    // GOAWAY: the connection takes no new streams, while what began before goes on.
    eventually("new requests are refused", async || {
        client.send(request("/v1/completions", body(&json!({"model": "m", "prompt": "x"})))).await.err()
    })
    .await;
    let told = finishes("the client is told", client.connection).await.unwrap();
    told.expect("that nothing is wrong");
    log.allow("told");
    assert_eq!(runs.rest().await, (EVENT.repeat(2), true));
    assert_eq!(mesh.ingress.ends().await, 0);
}

async fn p26_requests_that_can_be_read_in_two_ways_reach_no_engine_as_two(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let small = r#"{"model":"m","messages":[]}"#;
    let chunked = format!("{}0\r\n\r\n", chunk(small));
    let smuggled = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
    let ask = async |framing: &str, body: &str| {
        let request = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n{body}{smuggled}");
        read_to_end(&mut raw(mesh.http, request.as_bytes()).await).await.0
    };
    for (framing, body) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity", &chunked),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", &chunked),
        ("Transfer-Encoding: xchunked", &chunked),
        ("Transfer-Encoding : chunked", &chunked),
        ("Transfer-Encoding\t: chunked", &chunked),
        (" Transfer-Encoding: chunked", &chunked),
        ("Content-Length: 27\r\nContent-Length: 5", small),
        ("Content-Length: 27, 5", small),
        ("Content-Length: +27", small),
        ("Content-Length: 0x1b", small),
        ("Content-Length: -1", small),
    ] {
        let text = ask(framing, body).await;
        assert!(text.starts_with("HTTP/1.1 400"), "{framing:?}: {text}");
        assert_eq!(text.matches("HTTP/1.1").count(), 1, "it is closed: {framing:?}: {text}");
    }
    for hosts in ["", "host: a\r\nhost: b\r\n", "host: a\r\nhost: a\r\n", "host: a b/\r\n", "host: u@a\r\n"] {
        let length = small.len();
        let request =
            format!("POST {CHAT} HTTP/1.1\r\n{hosts}content-length: {length}\r\nconnection: close\r\n\r\n{small}");
        let text = read_to_end(&mut raw(mesh.http, request.as_bytes()).await).await.0;
        assert!(text.starts_with("HTTP/1.1 400") && text.contains("one Host header"), "{hosts:?}: {text}");
    }
    let text = ask("Transfer-Encoding: gzip, chunked", &chunked).await;
    assert!(text.starts_with("HTTP/1.1 501") && text.contains("transfer codings"), "{text}");
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "it is closed: {text}");
    assert_eq!(log.events("request").len(), 0, "no engine saw any of them");
    // Lengths that are told twice, of which one does not count: what passes is framed anew, and nothing comes after it.
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "connection: close\r\nTransfer-Encoding:\t ChUnKeD\t ",
    ] {
        let text = ask(framing, &chunked).await;
        assert_eq!(text.matches("HTTP/1.1").count(), 1, "{framing:?}: {text}");
        assert!(text.starts_with("HTTP/1.1 200") || text.starts_with("HTTP/1.1 400"), "{framing:?}: {text}");
    }
    for request in log.events("request") {
        let head = request["head"].as_str().unwrap().to_lowercase();
        assert_eq!((head.matches("content-length: 27").count(), head.matches("transfer-encoding").count()), (1, 0));
        assert_eq!(request["body"], small);
    }
}
