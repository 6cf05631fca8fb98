//! The way of a request through the ingress.

use crate::{
    answer::{self, Answer},
    attempt::{self, Failure},
    balance::{Balancer, InFlight},
    candidate::{self, NoCandidate},
    client_io::Client,
    config::IngressConfig,
    defaults::DELIVERED_MAX,
    metrics::IngressMetrics,
};
use bytes::Bytes;
use http::{HeaderMap, Method, Response, uri::PathAndQuery};
use otela_node::{peer::Peer, tasks::Tasks};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) peer: Peer,
    pub(crate) balancer: Arc<dyn Balancer>,
    pub(crate) config: IngressConfig,
    pub(crate) metrics: IngressMetrics,
    pub(crate) tasks: Tasks,
    /// The time for finishing is over: clients are told so before they are cut off.
    pub(crate) closing: CancellationToken,
    /// Room for request bodies, in KiB.
    pub(crate) body_room: Arc<tokio::sync::Semaphore>,
}

/// A client's request, read and checked.
#[derive(Debug)]
pub(crate) struct Inference {
    /// The model, exactly as the client wrote it.
    pub(crate) model: String,
    pub(crate) method: Method,
    pub(crate) path: PathAndQuery,
    /// What may be passed on to a node.
    pub(crate) headers: HeaderMap,
    /// The client's bytes, shared between attempts.
    pub(crate) body: Bytes,
    /// Our own name for the request.
    pub(crate) id: String,
    /// The connection that it came on.
    pub(crate) client: Client,
    /// The body's room; given back with the last attempt.
    pub(crate) _room: OwnedSemaphorePermit,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// There is no replica to send it to.
    NoCandidate(NoCandidate),
    /// Every attempt failed; this is how the last one did.
    Failed(Failure),
}

/// Candidates, pick, attempt, answer; a failed attempt goes on with the next candidate as long as that is safe.
pub(crate) async fn forward(app: &App, request: &Inference) -> Result<Response<Answer>, ForwardError> {
    let view = app.peer.view();
    let mut candidates = candidate::of(&app.peer, &view, &request.model).map_err(ForwardError::NoCandidate)?;
    let mut delivered = 0;
    let mut attempts = 0;
    loop {
        let replica = candidates.swap_remove(app.balancer.pick(&candidates));
        let in_flight = InFlight::start(Arc::clone(&app.balancer), replica);
        attempts += 1;
        let failure = match attempt::attempt(app, &in_flight, request).await {
            Ok(begun) => return Ok(answer::answer(app, begun, in_flight, request)),
            Err(failure) => failure,
        };
        delivered += u32::from(failure.delivered());
        let node = in_flight.replica().session().peer;
        tracing::info!(request = %request.id, %node, attempt = attempts, reason = failure.reason(), "attempt failed");
        app.metrics.attempt_failed(failure.reason());
        let give_up = candidates.is_empty() || attempts > app.config.retries_max || delivered >= DELIVERED_MAX;
        if give_up || !failure.may_go_elsewhere() {
            return Err(ForwardError::Failed(failure));
        }
        app.metrics.retries.inc();
        // Order must not depend on what was taken out before.
        candidates.sort_by_key(|replica| replica.session());
    }
}
