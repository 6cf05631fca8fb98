//! The listener: accepts clients, serves each on a task of its own, and ends in good order.

use crate::{
    api,
    aside::Aside,
    balance::Balancers,
    budget::Budget,
    candidate::Candidates,
    config::{IngressConfig, Settings},
    connection::{self, Routes},
    cors,
    defaults::CLOSING_WITHIN,
    forward::App,
    handover::{self, HandoverError, Predecessor},
    metrics::IngressMetrics,
    pace::Paces,
    tls::{self, TlsError},
};
use arc_swap::ArcSwap;
use otela_node::{
    peer::{Peer, observe},
    tasks::Tasks,
    telemetry::Metrics,
};
use std::{
    hash::RandomState,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// An ingress that takes over waits so long until it has joined its mesh.
const JOINED_WITHIN: Duration = Duration::from_secs(30);
/// After a failed accept; nobody tells when there are descriptors again.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The listener of an ingress that stops is closed when nobody has come for so long,
const QUIET_FOR: Duration = Duration::from_millis(10);
/// and after this time in any case.
const LATE_WITHIN: Duration = Duration::from_millis(200);

/// An ingress cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The HTTP address cannot be listened on.
    #[error("cannot listen for HTTP on {address}: choose another address, or stop what holds it")]
    Address {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket of handovers cannot be used.
    #[error(transparent)]
    Handover(#[from] HandoverError),
}

/// A running ingress.
#[derive(Debug)]
pub struct Ingress {
    address: SocketAddr,
    closing: CancellationToken,
    app: Arc<App>,
    /// What `App::body_room` has in all, in KiB.
    room_kib: AtomicUsize,
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
        let failed = |source| ListenError::Address { address: config.listen, source };
        let tls = config.tls.map(|files| tls::acceptor(files, tasks)).transpose()?;
        let predecessor = match &config.handover {
            Some(path) => handover::predecessor(path).await?.map(|predecessor| (path, predecessor)),
            None => None,
        };
        let listener = match &predecessor {
            Some((path, predecessor)) => {
                take_over(predecessor, &peer, tasks).await.map_err(|source| HandoverError::new(path, source))?
            }
            None => TcpListener::bind(config.listen).await.map_err(failed)?,
        };
        let listener = Arc::new(listener);
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
        // Room for one body at the least.
        let room_kib = config.bodies_bytes_max.div_ceil(1024).max(room_for_one(&config.settings));
        let app = Arc::new(App {
            peer,
            settings: ArcSwap::from_pointee(config.settings),
            candidates: Candidates::default(),
            balancers: Balancers::default(),
            queues: Arc::default(),
            paces: Paces::default(),
            budget: Budget::default(),
            metrics: IngressMetrics::register(metrics),
            traces: config.traces,
            tasks: tasks.clone(),
            closing: closing.clone(),
            body_room: Arc::new(Semaphore::new(room_kib)),
            aside: Aside::default(),
            callers: RandomState::new(),
        });
        tasks.spawn(call_on_news(Arc::clone(&app)));
        let routes = Routes::new(api::router(&app, observed), cors::layer(Arc::clone(&app)), tls);
        tasks.spawn_to_end(accept(Arc::clone(&listener), routes, Arc::clone(&app), config.connections_max));
        if let Some((path, predecessor)) = predecessor {
            predecessor.accepts().await.map_err(|source| HandoverError::new(path, source))?;
            tracing::info!("took over from the ingress that was here");
        }
        if let Some(path) = &config.handover {
            handover::offer(path, listener, tasks)?;
        }
        Ok(Self { address, closing, app, room_kib: AtomicUsize::new(room_kib), tasks: tasks.clone() })
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

    /// Replaces the settings, and counts that. Requests that run keep those that they began with, and no connection is
    /// closed.
    pub fn reload(&self, settings: Settings) {
        grow(&self.app.body_room, &self.room_kib, room_for_one(&settings));
        self.app.settings.store(Arc::new(settings));
        self.app.metrics.reloads.inc();
    }

    /// Counts that there were settings which could not be used.
    pub fn reload_refused(&self) {
        self.app.metrics.reloads_refused.inc();
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What one body may need, in KiB: while it is decoded there are two of it.
fn room_for_one(settings: &Settings) -> usize {
    settings.body_bytes_max.div_ceil(1024).saturating_mul(2)
}

/// Makes the room for bodies, which has `size_kib` in all, large enough for one of `kib`. It never shrinks: it may be in use.
fn grow(room: &Semaphore, size_kib: &AtomicUsize, kib: usize) {
    let had = size_kib.fetch_max(kib, Ordering::Relaxed);
    room.add_permits(kib.saturating_sub(had));
}

/// The listener of the ingress that was here, once this one knows its mesh: clients are not to notice the change.
async fn take_over(predecessor: &Predecessor, peer: &Peer, tasks: &Tasks) -> io::Result<TcpListener> {
    tokio::select! {
        joined = timeout(JOINED_WITHIN, peer.joined()) => {
            if joined.is_err() {
                tracing::warn!("taking over before this ingress has heard of its mesh");
            }
        }
        () = tasks.draining() => {}
    }
    predecessor.listener().await
}

/// Calls those who wait for a place when the registry has news: there may be a new replica.
async fn call_on_news(app: Arc<App>) {
    let mut news = app.peer.view_changes();
    loop {
        tokio::select! {
            news = news.changed() => if news.is_err() { return },
            // Whoever waits then looks by itself.
            () = app.tasks.draining() => return,
        }
        app.queues.look_again();
    }
}

type Accepted = (io::Result<(TcpStream, SocketAddr)>, OwnedSemaphorePermit);

async fn accept(listener: Arc<TcpListener>, routes: Routes, app: Arc<App>, connections_max: usize) {
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        tokio::select! {
            accepted = next(&listener, &places) => take(accepted, &routes, &app).await,
            () = app.tasks.draining() => break,
        }
    }
    // Whom the operating system has let in already takes this ingress for open: they are served, or told.
    let late = async {
        while let Ok(accepted) = timeout(QUIET_FOR, next(&listener, &places)).await {
            take(accepted, &routes, &app).await;
        }
    };
    if timeout(LATE_WITHIN, late).await.is_err() {
        tracing::debug!("clients still came when the listener was closed");
    }
}

/// The next client, as soon as there is a place. Beyond the limit clients wait in the operating system's queue.
async fn next(listener: &TcpListener, places: &Arc<Semaphore>) -> Accepted {
    let place = Arc::clone(places).acquire_owned().await.expect("the places are never closed");
    (listener.accept().await, place)
}

async fn take((accepted, place): Accepted, routes: &Routes, app: &Arc<App>) {
    match accepted {
        Ok((tcp, _)) => {
            let (routes, served) = (routes.clone(), Arc::clone(app));
            app.tasks.spawn(async move {
                served.metrics.connections.inc();
                connection::serve(tcp, routes, Arc::clone(&served)).await;
                served.metrics.connections.dec();
                drop(place);
            });
        }
        Err(error) => {
            // Out of file descriptors, most likely: clients that end will free some.
            tracing::warn!(%error, "cannot accept a client");
            sleep(ACCEPT_AGAIN_AFTER).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_room_for_the_largest_body() {
        let (room, size) = (Semaphore::new(8), AtomicUsize::new(8));
        for (largest, all) in [(4, 8), (9, 9), (2, 9), (12, 12)] {
            grow(&room, &size, largest);
            assert_eq!((room.available_permits(), size.load(Ordering::Relaxed)), (all, all), "{largest}");
        }
    }
}
