//! The way of a request through the ingress.

use crate::{
    answer::{self, Answer},
    attempt::{self, Failure},
    balance::{Balancer, InFlight},
    budget::Budget,
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
    pub(crate) budget: Budget,
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
    let mut tried = Vec::new();
    let (mut attempts, mut delivered, mut paths_lost) = (0, 0, 0);
    loop {
        // Looked up anew each time: what failed meanwhile, for whomever, is not tried.
        let candidates = candidate::of(&app.peer, &request.model, &tried).map_err(ForwardError::NoCandidate)?;
        let replica = Arc::clone(&candidates[app.balancer.pick(&candidates)]);
        tried.push(replica.session());
        let in_flight = InFlight::start(Arc::clone(&app.balancer), replica);
        let failure = match attempt::attempt(app, &in_flight, request).await {
            Ok(begun) => return Ok(answer::answer(app, begun, in_flight, request)),
            Err(failure) => failure,
        };
        let node = in_flight.replica().session().peer;
        let reason = failure.reason();
        attempts += 1;
        tracing::info!(request = %request.id, %node, attempt = attempts, reason, "attempt failed");
        app.metrics.attempt_failed(reason);
        delivered += u32::from(failure.delivered());
        paths_lost += u32::from(failure.is_of_the_path());
        // There may be another way to the same node. Everybody whom a relay carried loses it at once: no budget bounds
        // that, and what was begun there has been cancelled.
        let is_first_of_the_path = failure.is_of_the_path() && paths_lost == 1;
        if is_first_of_the_path {
            tried.pop();
        }
        let may_go_on = failure.may_go_elsewhere()
            && attempts <= app.config.retries_max
            && delivered < DELIVERED_MAX
            && candidate::of(&app.peer, &request.model, &tried).is_ok()
            && (!failure.delivered() || is_first_of_the_path || app.budget.withdraw());
        if !may_go_on {
            return Err(ForwardError::Failed(failure));
        }
        app.metrics.retries.inc();
    }
}
