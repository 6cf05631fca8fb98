//! One client connection, from its first byte to its last: HTTP/1.1 or HTTP/2, with TLS or without.

use crate::{
    client_io::{Watcher, watched},
    defaults::{HEAD_WITHIN, HEADERS_BYTES_MAX, STREAMS_MAX, TCP_KEEP_ALIVE_AFTER},
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
use tower_http::cors::CorsLayer;

/// The routes, what is put before them for calls from browsers, and before all if it is asked for.
#[derive(Clone)]
pub(crate) struct Routes {
    pub(crate) plain: Router,
    pub(crate) cors: CorsLayer,
    pub(crate) tls: Option<TlsAcceptor>,
}

/// Tasks of HTTP/2 streams end with the others.
#[derive(Clone)]
struct OnTasks(Tasks);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for OnTasks {
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// Serves a client until it or the ingress has had enough.
pub(crate) async fn serve(tcp: TcpStream, routes: Routes, app: Arc<App>) {
    let Ok((io, watcher, client)) = watched(tcp, TCP_KEEP_ALIVE_AFTER) else { return };
    let plain = TowerToHyperService::new(routes.plain.clone());
    let from_pages = TowerToHyperService::new(routes.plain.layer(routes.cors));
    let caller = client.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        // Only browsers say from where they come, and only they need to be told whether they may.
        let is_from_a_page = request.headers().contains_key(header::ORIGIN);
        if is_from_a_page { Either::Left(from_pages.call(request)) } else { Either::Right(plain.call(request)) }
    });
    match routes.tls {
        None => exchange(io, service, &watcher, &app, || client.has_begun()).await,
        Some(acceptor) => {
            // A client that closes its sending side within TLS has gone: nobody does so and waits.
            watcher.takes_fin_for_gone();
            let Ok(Ok(tls)) = timeout(HEAD_WITHIN, acceptor.accept(io)).await else {
                tracing::debug!("no TLS handshake");
                return;
            };
            exchange(tls, service, &watcher, &app, || client.has_begun()).await;
        }
    }
}

async fn exchange<I, S, B>(io: I, service: S, watcher: &Watcher, app: &App, has_begun: impl Fn() -> bool)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = hyper::Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut server = auto::Builder::new(OnTasks(app.tasks.clone()));
    server.http1().half_close(true).timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .keep_alive_interval(TCP_KEEP_ALIVE_AFTER);
    let connection = server.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    // Until the protocol is known nobody else looks at the clock.
    let silence = async {
        sleep(HEAD_WITHIN).await;
        if has_begun() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Dropping the connection drops its requests, and that cancels them on their nodes.
        () = watcher.gone() => return,
        () = silence => return,
        () = app.tasks.draining() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = watcher.gone() => return,
            }
        }
    };
    if let Err(error) = ended {
        watcher.reset_if_old();
        tracing::debug!(%error, "client connection ended");
    }
}
