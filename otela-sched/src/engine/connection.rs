//! Connections of clients: accepting, answering, and closing them in all the ways that engines do.
//!
//! axum's own server would do but for the faults: to cut or reset a connection in the middle of an answer one has to
//! hold the socket. A client that leaves is seen at once, since hyper reads while it answers: the answer's future is
//! dropped, and with it its place in the batch.

use super::{Outcome, Sim, faults::How};
use axum::{
    Router,
    body::{Body, HttpBody},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::Service as _};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use otela_node::tasks::Tasks;
use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
};
use tokio_util::task::TaskTracker;

/// More connections wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 8192;
/// Pause after an accept that failed for lack of file descriptors, which another try at once would not bring.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Every answer says that it is simulated.
pub(crate) const SIMULATED: &str = "x-otela-simulated";
const REQUEST_ID: &str = "x-request-id";

/// What a request's handlers know of where it came from.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The client's `X-Request-Id`, or one made here.
    pub(crate) id: String,
    pub(crate) connection: Arc<Connection>,
}

/// What the answers on a connection say to the task that owns its socket.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    fate: OnceLock<How>,
    /// Answers not yet sent to their end.
    busy: AtomicUsize,
    served: AtomicBool,
    changed: Notify,
}

impl Connection {
    /// Asks for the connection to break, once everything written before is out.
    pub(crate) fn break_off(&self, how: How) {
        if self.fate.set(how).is_ok() {
            self.changed.notify_one();
        }
    }

    pub(crate) fn fate(&self) -> Option<How> {
        self.fate.get().copied()
    }

    fn idle(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }
}

/// Lives as long as an answer is under way.
struct Busy(Arc<Connection>);

impl Busy {
    fn new(connection: &Arc<Connection>) -> Self {
        connection.busy.fetch_add(1, Ordering::AcqRel);
        connection.changed.notify_one();
        Self(Arc::clone(connection))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.served.store(true, Ordering::Release);
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

/// A body that keeps its connection busy until it is sent or dropped.
struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        HttpBody::size_hint(&self.body)
    }
}

/// Serves connections until the engine drains or crashes; returns when the last one is closed.
pub(crate) async fn accept(listener: TcpListener, sim: Arc<Sim>, router: Router, tasks: Tasks) -> Outcome {
    let open = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            biased;
            () = sim.crash.cancelled() => break,
            () = tasks.draining() => break,
            accepted = next(&listener, &permits) => accepted,
        };
        match accepted {
            Ok((stream, permit)) => {
                let (sim, router, owner) = (Arc::clone(&sim), router.clone(), tasks.clone());
                tasks.spawn(open.track_future(async move {
                    sim.meters.connections.inc();
                    connection(stream, &sim, router, &owner).await;
                    sim.meters.connections.dec();
                    drop(permit);
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    open.close();
    open.wait().await;
    if sim.crash.is_cancelled() { Outcome::Crashed(sim.config.crash_code) } else { Outcome::Drained }
}

async fn next(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn connection(stream: TcpStream, sim: &Arc<Sim>, router: Router, tasks: &Tasks) {
    // Tokens are small and each must leave at once. A socket that refuses this is closed already.
    let _ = stream.set_nodelay(true);
    let state = Arc::new(Connection::default());
    let answering = Arc::clone(&state);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let busy = Busy::new(&answering);
        answer(request, router.clone(), Arc::clone(&answering), busy)
    });
    let mut http = http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
    let mut closing = false;
    loop {
        tokio::select! {
            // Its error is the client's leaving, which the answer's guards have counted.
            _ = Pin::new(&mut http) => return,
            () = sim.crash.cancelled() => return,
            () = state.changed.notified() => match state.fate() {
                Some(How::Crash) => return sim.crash.cancel(),
                Some(How::Cut) => return,
                Some(How::Reset) => {
                    // Without lingering, close sends RST. On failure the client sees a cut, which is as broken.
                    let _ = http.into_parts().io.into_inner().set_zero_linger();
                    return;
                }
                Some(How::Stall) | None => {}
            },
            () = tokio::time::sleep(sim.config.idle_timeout), if !closing && state.idle() && served(&state) => {
                closing = true;
                Pin::new(&mut http).graceful_shutdown();
            }
            () = tasks.draining(), if !closing => {
                // hyper waits for a first request even then.
                if state.idle() && !served(&state) {
                    return;
                }
                closing = true;
                Pin::new(&mut http).graceful_shutdown();
            }
        }
    }
}

fn served(state: &Connection) -> bool {
    state.served.load(Ordering::Acquire)
}

/// One request: what all answers have in common, around the router.
async fn answer(
    mut request: Request<Incoming>,
    router: Router,
    connection: Arc<Connection>,
    busy: Busy,
) -> Result<Response<BusyBody>, Infallible> {
    let given = request.headers().get(REQUEST_ID).cloned();
    let id =
        given.unwrap_or_else(|| HeaderValue::try_from(super::random_id()).unwrap_or(HeaderValue::from_static("0")));
    let text = String::from_utf8_lossy(id.as_bytes()).into_owned();
    request.extensions_mut().insert(Call { id: text, connection });
    let mut response =
        TowerToHyperService::new(router).call(request.map(|body| Body::new(body.map_err(axum::Error::new)))).await?;
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    headers.insert(SIMULATED, HeaderValue::from_static("true"));
    headers.insert(header::SERVER, HeaderValue::from_static("otela-simulated"));
    Ok(response.map(|body| BusyBody { body, _busy: busy }))
}
