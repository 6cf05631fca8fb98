//! The listener: accepts clients, serves each on a task of its own, and ends in good order.

use crate::{
    api,
    budget::Budget,
    client_io::watched,
    config::IngressConfig,
    defaults::{CLOSING_WITHIN, HEAD_WITHIN, TCP_KEEP_ALIVE_AFTER},
    forward::App,
    metrics::IngressMetrics,
};
use axum::Router;
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use otela_node::{
    peer::{Peer, observe},
    tasks::Tasks,
    telemetry::Metrics,
};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

/// The HTTP address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for HTTP on {address}: choose another address, or stop what holds it")]
pub struct ListenError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// A running ingress.
#[derive(Debug)]
pub struct Ingress {
    address: SocketAddr,
    closing: CancellationToken,
    tasks: Tasks,
}

impl Ingress {
    /// Listens, and serves clients on `tasks` until these drain; requests that run then are finished.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn start(
        config: IngressConfig,
        peer: Peer,
        tasks: &Tasks,
        metrics: &Metrics,
    ) -> Result<Self, ListenError> {
        let failed = |source| ListenError { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (drains, joins) = (tasks.clone(), peer.clone());
        let ready = Arc::new(move || {
            if drains.is_draining() {
                return Err("stopping".to_owned());
            }
            joins.not_joined().map_or(Ok(()), Err)
        });
        let observed = observe::router(peer.clone(), metrics.clone(), ready, tasks.draining_token());
        let closing = CancellationToken::new();
        let app = Arc::new(App {
            peer,
            balancer: config.policy.balancer(),
            metrics: IngressMetrics::register(metrics),
            tasks: tasks.clone(),
            closing: closing.clone(),
            budget: Budget::default(),
            body_room: Arc::new(Semaphore::new(config.bodies_bytes_max.div_ceil(1024))),
            config,
        });
        let router = api::router(Arc::clone(&app), observed);
        tasks.spawn_to_end(accept(listener, router, app));
        Ok(Self { address, closing, tasks: tasks.clone() })
    }

    /// Takes no new clients, and finishes what runs. What still runs after `grace` is broken off: streams with an
    /// error event, other requests with 503.
    pub async fn stop(&self, grace: Duration) {
        if !self.tasks.drained(grace).await {
            tracing::warn!("requests still ran when the time to finish them was over");
            self.closing.cancel();
        }
        self.tasks.shutdown(CLOSING_WITHIN).await;
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, router: Router, app: Arc<App>) {
    let places = Arc::new(Semaphore::new(app.config.connections_max));
    loop {
        // Beyond the limit clients wait in the operating system's queue.
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = app.tasks.draining() => return,
        };
        match accepted {
            Ok((tcp, _)) => {
                let (router, served) = (router.clone(), Arc::clone(&app));
                app.tasks.spawn(async move {
                    served.metrics.connections.inc();
                    serve(tcp, router, &served).await;
                    served.metrics.connections.dec();
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: clients that end will free some.
                tracing::warn!(%error, "cannot accept a client");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(tcp: TcpStream, router: Router, app: &App) {
    let Ok((io, watcher, client)) = watched(tcp, TCP_KEEP_ALIVE_AFTER) else { return };
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(client.clone());
        routes.call(request)
    });
    let mut server = http1::Builder::new();
    server.half_close(true).timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let connection = server.serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        // Dropping the connection drops its requests, and that cancels them on their nodes.
        () = watcher.gone() => return,
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
