//! The other ends of the benchmark: an engine that answers at once with 1 KiB, streams events that carry the time
//! they were sent, or begins a stream and says nothing more; and a relay that only passes bytes on.

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

/// Events of one stream, and the time between them.
const EVENTS: u32 = 50;
const EVERY: Duration = Duration::from_millis(10);

/// Serves until it is killed.
#[expect(clippy::disallowed_methods, reason = "connections end with the process")]
pub(crate) async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("bench engine on {}", listener.local_addr().unwrap());
    loop {
        let (tcp, _) = listener.accept().await.unwrap();
        tcp.set_nodelay(true).unwrap();
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(tcp), service_fn(answer)));
    }
}

/// Passes the bytes of each connection on to `to` until it is killed.
#[expect(clippy::disallowed_methods, reason = "connections end with the process")]
pub(crate) async fn relay(to: SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("bench relay on {}", listener.local_addr().unwrap());
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut far = TcpStream::connect(to).await.unwrap();
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            // A connection that breaks has done its work.
            let _ = copy_bidirectional(&mut near, &mut far).await;
        });
    }
}

/// Nanoseconds since the Unix epoch: one clock for all processes of this machine.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await?.to_bytes();
    if path == "/v1/models" {
        return Ok(json(r#"{"object":"list","data":[{"id":"bench","object":"model"}]}"#.into()));
    }
    if body.windows(11).any(|part| part == b"\"idle\":true") {
        let first = Ok(Frame::data(Bytes::from_static(b"data: {}\n\n")));
        let idle = stream::once(async { first }).chain(stream::pending());
        return Ok(events_of(StreamBody::new(idle)));
    }
    if body.windows(13).any(|part| part == b"\"stream\":true") {
        let events = stream::unfold(0, async |sent| {
            if sent == EVENTS {
                return None;
            }
            if sent > 0 {
                tokio::time::sleep(EVERY).await;
            }
            let event = format!("data: {{\"at\":{}}}\n\n", now_ns());
            Some((Ok(Frame::data(Bytes::from(event))), sent + 1))
        });
        return Ok(events_of(StreamBody::new(events)));
    }
    Ok(json(format!(r#"{{"id":"x","choices":[{{"text":"{}"}}]}}"#, "y".repeat(990)).into()))
}

fn events_of(body: impl hyper::body::Body<Data = Bytes, Error = Infallible> + Send + 'static) -> Response<Body> {
    Response::builder().header("content-type", "text/event-stream").body(BodyExt::boxed_unsync(body)).unwrap()
}

fn json(text: Bytes) -> Response<Body> {
    Response::builder().header("content-type", "application/json").body(BodyExt::boxed_unsync(Full::new(text))).unwrap()
}
