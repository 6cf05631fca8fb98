//! One client connection, from its first byte to its last: HTTP/1.1 or HTTP/2, with TLS or without.

use crate::{
    client_io::{Watcher, watched},
    defaults::{FIRST_REQUEST_WITHIN, HEADERS_BYTES_MAX, STREAMS_MAX, TCP_KEEP_ALIVE_AFTER},
    forward::App,
};
use axum::{Router, http::header};
use futures::future::Either;
use hyper::{
    Request,
    body::Incoming,
    rt::Executor,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use otela_node::tasks::Tasks;
use std::{future::Future, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower_http::cors::CorsLayer;

/// The routes, the same for calls from browsers, and what is put before all if it is asked for. Made once: each copy for
/// a connection shares them.
#[derive(Clone)]
pub(crate) struct Routes {
    plain: TowerToHyperService<Router>,
    from_pages: TowerToHyperService<Router>,
    tls: Option<TlsAcceptor>,
}

impl Routes {
    pub(crate) fn new(plain: Router, cors: CorsLayer, tls: Option<TlsAcceptor>) -> Self {
        let from_pages = TowerToHyperService::new(plain.clone().layer(cors));
        Self { plain: TowerToHyperService::new(plain), from_pages, tls }
    }
}

/// Tasks of HTTP/2 streams end with the others.
#[derive(Clone)]
struct OnTasks(Tasks);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OnTasks {
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// What a client speaks, as far as its first bytes or TLS have told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Http1,
    Http2,
    /// It has sent less than tells: the server finds out, with a larger buffer for as long as the connection lasts.
    Unknown,
}

impl Speaks {
    fn of(first: &[u8]) -> Self {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0";
        match first {
            first if first.starts_with(PREFACE) => Self::Http2,
            first if PREFACE.starts_with(first) => Self::Unknown,
            _ => Self::Http1,
        }
    }

    fn agreed(alpn: Option<&[u8]>) -> Self {
        match alpn {
            Some(b"h2") => Self::Http2,
            Some(b"http/1.1") => Self::Http1,
            _ => Self::Unknown,
        }
    }
}

/// Waits for a client's first bytes and looks at them; `None` if it has gone, says nothing, or nobody is served any more.
async fn opening(tcp: &TcpStream, app: &App) -> Option<Speaks> {
    let mut first = [0; 16];
    // Whoever has just connected is about to ask.
    let closing = async {
        app.tasks.draining().await;
        sleep(FIRST_REQUEST_WITHIN).await;
    };
    tokio::select! {
        peeked = tcp.peek(&mut first) => match peeked {
            Ok(bytes) if bytes > 0 => Some(Speaks::of(&first[..bytes])),
            _ => None,
        },
        () = sleep(app.settings.load().head_within) => None,
        () = closing => None,
    }
}

/// Serves a client until it or the ingress has had enough.
pub(crate) async fn serve(tcp: TcpStream, routes: Routes, app: Arc<App>) {
    let Some(opened) = opening(&tcp, &app).await else { return };
    let Ok((io, watcher, client)) = watched(tcp, TCP_KEEP_ALIVE_AFTER) else { return };
    let (plain, from_pages, caller) = (routes.plain, routes.from_pages, client.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        caller.request_begins(request.version());
        request.extensions_mut().insert(caller.clone());
        // Only browsers say from where they come, and only they need to be told whether they may.
        let is_from_a_page = request.headers().contains_key(header::ORIGIN);
        if is_from_a_page { Either::Left(from_pages.call(request)) } else { Either::Right(plain.call(request)) }
    });
    match routes.tls {
        None => exchange(io, opened, service, &watcher, &app, client.begun()).await,
        Some(acceptor) => {
            // A client that closes its sending side within TLS has gone: nobody does so and waits.
            watcher.takes_fin_for_gone();
            let Ok(Ok(tls)) = timeout(app.settings.load().head_within, acceptor.accept(io)).await else {
                tracing::debug!("no TLS handshake");
                return;
            };
            let speaks = Speaks::agreed(tls.get_ref().1.alpn_protocol());
            exchange(tls, speaks, service, &watcher, &app, client.begun()).await;
        }
    }
}

async fn exchange<I, S, B>(io: I, speaks: Speaks, service: S, watcher: &Watcher, app: &App, begun: &CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = hyper::Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let head_within = app.settings.load().head_within;
    let mut server = auto::Builder::new(OnTasks(app.tasks.clone()));
    server.http1().half_close(true).timer(TokioTimer::new()).header_read_timeout(head_within);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(TCP_KEEP_ALIVE_AFTER);
    let server = match speaks {
        Speaks::Http1 => server.http1_only(),
        Speaks::Http2 => server.http2_only(),
        Speaks::Unknown => server,
    };
    let connection = server.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    // Until the protocol is known nobody else looks at the clock.
    let silence = async {
        sleep(head_within).await;
        if begun.is_cancelled() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Dropping the connection drops its requests, and that cancels them on their nodes.
        () = watcher.gone() => return,
        () = silence => return,
        () = app.tasks.draining() => {
            let last = async {
                // Whoever has just connected is about to ask; to close now would look to it as if it had failed.
                tokio::select! {
                    ended = connection.as_mut() => return ended,
                    () = begun.cancelled() => {}
                    () = sleep(FIRST_REQUEST_WITHIN) => {}
                }
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            };
            tokio::select! {
                ended = last => ended,
                () = watcher.gone() => return,
            }
        }
    };
    if let Err(error) = ended {
        watcher.reset_if_old();
        tracing::debug!(%error, "client connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_speaks_is_told_by_its_first_bytes() {
        for (first, speaks) in [
            ("POST /v1/chat/comp", Speaks::Http1),
            ("PUT", Speaks::Http1),
            ("\r\n", Speaks::Http1),
            ("PRI * HTTP/2.0\r\n", Speaks::Http2),
            ("PRI * HTTP/2.1\r\n", Speaks::Http1),
            ("PR", Speaks::Unknown),
            ("P", Speaks::Unknown),
        ] {
            assert_eq!(Speaks::of(first.as_bytes()), speaks, "{first:?}");
        }
    }
}
