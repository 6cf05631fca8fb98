use super::*;
use http_body_util::BodyExt;
use otela_testing::{FAR_BEYOND_PATIENCE, ReservedPort};
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

struct Tcp {
    to: SocketAddr,
    opened: Arc<AtomicUsize>,
}

impl Connect for Tcp {
    type Io = TcpStream;

    async fn connect(&self) -> Result<TcpStream, BoxError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        Ok(TcpStream::connect(self.to).await?)
    }
}

fn limits() -> PoolLimits {
    PoolLimits {
        in_use_max: 4,
        idle_max: 4,
        idle_for_max: Duration::from_secs(60),
        connect_within: FAR_BEYOND_PATIENCE,
        queue_within: FAR_BEYOND_PATIENCE,
        resend_delivered: true,
    }
}

/// A pool to `listener`, and a count of the connections it opens.
fn pool(listener: &TcpListener, limits: PoolLimits) -> (Pool<Tcp>, Arc<AtomicUsize>) {
    pool_to(listener.local_addr().unwrap(), limits)
}

fn pool_to(to: SocketAddr, limits: PoolLimits) -> (Pool<Tcp>, Arc<AtomicUsize>) {
    let opened = Arc::new(AtomicUsize::new(0));
    let connector = Tcp { to, opened: Arc::clone(&opened) };
    (Pool::new(connector, limits, Tasks::new()), opened)
}

fn get() -> request::Parts {
    Request::get("/").header("host", "x").body(()).unwrap().into_parts().0
}

fn whole(text: &'static str) -> RequestBody {
    RequestBody::Whole(Bytes::from_static(text.as_bytes()))
}

async fn read_head(io: &mut TcpStream) -> usize {
    let mut buffer = [0; 4096];
    io.read(&mut buffer).await.unwrap()
}

#[tokio::test]
async fn connections_are_used_again_and_requests_leave_no_task() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (pool, opened) = pool(&listener, limits());
    let server = async {
        let (mut io, _) = listener.accept().await.unwrap();
        for _ in 0..50 {
            assert!(read_head(&mut io).await > 0);
            io.write_all(ANSWER).await.unwrap();
        }
        io
    };
    let client = async {
        for _ in 0..50 {
            let response = pool.send(get(), whole("")).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
        }
    };
    let (_open, ()) = tokio::join!(server, client);
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    // The connection's own, and the one that closes what rests for too long.
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 2);
}

#[tokio::test]
async fn p21_a_reused_connection_that_died_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (pool, opened) = pool(&listener, limits());
    let server = async {
        let (mut io, _) = listener.accept().await.unwrap();
        read_head(&mut io).await;
        io.write_all(ANSWER).await.unwrap();
        // The second request arrives and the connection is closed without an answer.
        assert!(read_head(&mut io).await > 0);
        drop(io);
        let (mut io, _) = listener.accept().await.unwrap();
        let mut seen = vec![0; 4096];
        let read = io.read(&mut seen).await.unwrap();
        assert!(String::from_utf8_lossy(&seen[..read]).contains("\r\n\r\nbody"), "the body went out again");
        io.write_all(ANSWER).await.unwrap();
    };
    let client = async {
        for _ in 0..2 {
            let response = pool.send(get(), whole("body")).await.unwrap();
            response.into_body().collect().await.unwrap();
        }
    };
    tokio::join!(server, client);
    assert_eq!(opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn p21_a_fresh_connection_that_died_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (pool, opened) = pool(&listener, limits());
    let server = async {
        let (mut io, _) = listener.accept().await.unwrap();
        read_head(&mut io).await;
    };
    let (_, failed) = tokio::join!(server, pool.send(get(), whole("")));
    assert!(failed.unwrap_err().delivered());
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nobody_there_is_told_apart_from_delivered() {
    let port = ReservedPort::new();
    let (pool, _) = pool_to(port.address(), limits());
    let error = pool.send(get(), whole("")).await.unwrap_err();
    assert!(matches!(error, SendError::Connect(_)) && !error.delivered());
}

#[tokio::test]
async fn p11_dropping_a_request_or_its_answer_closes_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (pool, _) = pool(&listener, limits());
    let (told, mut events) = mpsc::channel(4);
    let server = Tasks::new();
    server.spawn(async move {
        for answer in [&b""[..], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n"] {
            let (mut io, _) = listener.accept().await.unwrap();
            read_head(&mut io).await;
            told.send("asked").await.unwrap();
            io.write_all(answer).await.unwrap();
            let mut rest = Vec::new();
            let _ = io.read_to_end(&mut rest).await;
            told.send("closed").await.unwrap();
        }
    });
    tokio::select! {
        answer = pool.send(get(), whole("")) => panic!("no answer comes: {answer:?}"),
        asked = events.recv() => assert_eq!(asked, Some("asked")),
    }
    assert_eq!(events.recv().await, Some("closed"), "with the future that was dropped");
    let mut answer = pool.send(get(), whole("")).await.unwrap().into_body();
    assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "hi");
    assert_eq!(events.recv().await, Some("asked"));
    drop(answer);
    assert_eq!(events.recv().await, Some("closed"), "with the answer that was dropped");
}

#[tokio::test]
async fn places_are_bounded_and_come_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (pool, _) = pool(&listener, PoolLimits { in_use_max: 1, queue_within: Duration::from_millis(30), ..limits() });
    let server = async {
        for _ in 0..2 {
            let (mut io, _) = listener.accept().await.unwrap();
            read_head(&mut io).await;
            io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await.unwrap();
            let mut rest = Vec::new();
            let _ = io.read_to_end(&mut rest).await;
        }
    };
    let client = async {
        let first = pool.send(get(), whole("")).await.unwrap();
        assert!(matches!(pool.send(get(), whole("")).await, Err(SendError::Busy)));
        drop(first);
        drop(pool.send(get(), whole("")).await.unwrap());
    };
    tokio::join!(server, client);
}

#[tokio::test]
async fn a_body_in_parts_arrives_as_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (pool, _) = pool(&listener, limits());
    let long = Bytes::from(vec![b'x'; 150_000]);
    let parts = [Bytes::from_static(b"a"), Bytes::new(), long.clone(), Bytes::from_static(b"z")];
    let server = async {
        let (mut io, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"z") {
            assert!(io.read_buf(&mut seen).await.unwrap() > 0);
        }
        io.write_all(ANSWER).await.unwrap();
        seen
    };
    let (seen, answer) = tokio::join!(server, pool.send(get(), RequestBody::Parts(parts.into(), SendProgress::new())));
    assert_eq!(answer.unwrap().status(), 200);
    let text = String::from_utf8(seen).unwrap();
    assert!(text.contains("content-length: 150002\r\n"), "{}", &text[..200]);
    assert!(text.ends_with(&format!("\r\n\r\na{}z", "x".repeat(150_000))));
}

/// One end of a way that carries little at a time.
struct Narrow(std::sync::Mutex<Option<tokio::io::DuplexStream>>);

impl Connect for Narrow {
    type Io = tokio::io::DuplexStream;

    async fn connect(&self) -> Result<Self::Io, BoxError> {
        Ok(self.0.lock().unwrap().take().expect("one connection is asked for"))
    }
}

#[tokio::test(start_paused = true)]
async fn p20_an_answer_is_late_when_the_engine_is_and_not_when_the_way_is_slow() {
    const WITHIN: Duration = Duration::from_secs(2);
    const BYTES: usize = 10 << 20;
    for (thinks_for, answers) in [(WITHIN / 2, true), (WITHIN * 2, false)] {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let pool = Pool::new(Narrow(std::sync::Mutex::new(Some(near))), limits(), Tasks::new());
        let server = async {
            let (mut read, mut piece) = (0, vec![0; 64 << 10]);
            // Two minutes and a half for the request alone.
            while read < BYTES {
                tokio::time::sleep(WITHIN / 2).await;
                match far.read(&mut piece).await.unwrap() {
                    0 => return,
                    n => read += n,
                }
            }
            tokio::time::sleep(thinks_for).await;
            far.write_all(ANSWER).await.unwrap();
        };
        let progress = SendProgress::new();
        let parts = RequestBody::Parts([Bytes::from(vec![0; BYTES])].into(), progress.clone());
        let client = async {
            let answer = progress.answered_within(WITHIN, pool.send(get(), parts)).await;
            assert_eq!(answer.is_some_and(|answer| answer.unwrap().status() == 200), answers, "{thinks_for:?}");
        };
        tokio::select! {
            () = client => {}
            () = async { server.await; std::future::pending().await } => {}
        }
    }
}
