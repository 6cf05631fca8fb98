//! The way of a request through the ingress.

use crate::{
    account::Account,
    answer::{self, Answer},
    aside::Aside,
    attempt::{self, Begun},
    balance::{Balancers, InFlight},
    budget::Budget,
    candidate::{Candidate, Candidates, NoCandidate, Pool, Selector},
    config::Settings,
    defaults::DELIVERED_MAX,
    failure::Failure,
    hedge,
    metrics::IngressMetrics,
    pace::Paces,
    queue::Queues,
    request::Inference,
    require, trial, trust,
    wait::{self, NotPlaced},
    way::{Others, Unreached},
};
use arc_swap::ArcSwap;
use http::Response;
use otela_node::{peer::Peer, tasks::Tasks, telemetry::trace::Traces};
use otela_proto::id::Session;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) peer: Peer,
    pub(crate) settings: ArcSwap<Settings>,
    pub(crate) candidates: Candidates,
    pub(crate) balancers: Balancers,
    pub(crate) queues: Arc<Queues>,
    pub(crate) paces: Paces,
    pub(crate) budget: Budget,
    pub(crate) metrics: IngressMetrics,
    pub(crate) traces: Traces,
    pub(crate) tasks: Tasks,
    /// The time for finishing is over: clients are told so before they are cut off.
    pub(crate) closing: CancellationToken,
    /// Room for request bodies, in KiB.
    pub(crate) body_room: Arc<tokio::sync::Semaphore>,
    /// Where large bodies are worked on.
    pub(crate) aside: Aside,
    /// Makes callers' names into numbers that say nothing outside of this process.
    pub(crate) callers: std::hash::RandomState,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// There is no replica to send it to.
    NoCandidate(NoCandidate),
    /// All are full, and it may not wait, or has waited for too long.
    NoPlace(NotPlaced),
    /// Every attempt failed; this is how the last one did.
    Failed(Failure),
}

/// How the attempts of one request went so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    pub(crate) tried: Vec<Session>,
    failed: u32,
    delivered: u32,
    paths_lost: u32,
    unreached: Unreached,
}

/// Candidates, trust, requirements, pick, attempt, answer; a failed attempt goes on with the next candidate as long as
/// that is safe.
pub(crate) async fn forward(
    request: &Arc<Inference>,
    mut account: Account,
) -> Result<Response<Answer>, (ForwardError, Account)> {
    let app = Arc::clone(account.app());
    let mut attempts = Attempts::default();
    let mut outgoing = request.outgoing(true);
    loop {
        let placed = wait::place(&app, request, &attempts.tried, &mut account, || candidates(&app, request)).await;
        let in_flight = match placed {
            Ok(in_flight) => in_flight,
            Err(error) => return Err((error, account)),
        };
        attempts.tried.push(in_flight.candidate().session());
        let begun = Instant::now();
        let (in_flight, answered) = hedge::attempt(&app, in_flight, request, &outgoing, &mut attempts).await;
        let failure = match answered {
            Ok(begun) if refuses_our_wish(&begun) => {
                // Once without what we had put in, on the same engine.
                account.tried(&in_flight, "refused_wish", begun.exchange);
                outgoing = request.outgoing(false);
                attempts.tried.pop();
                continue;
            }
            Ok(begun) => return Ok(answer::answer(begun, in_flight, request, account)),
            Err(failure) => failure,
        };
        account.tried(&in_flight, failure.reason(), begun.elapsed());
        if matches!(failure, Failure::Full) && account.stages.queue < request.settings.queue_within {
            // Somebody else has filled it. Its standing says so now, so the next place is one that is free or waited for.
            attempts.tried.pop();
            continue;
        }
        note_failure(&app, &in_flight, request, &failure);
        if !may_go_on(&app, &in_flight, request, &failure, &mut attempts).await {
            return Err((ForwardError::Failed(failure), account));
        }
        app.metrics.retries.inc();
    }
}

/// The candidates that a request allows. Looked up anew for each attempt: what failed meanwhile, for whomever, is gone.
pub(crate) fn candidates(app: &App, request: &Inference) -> Result<Arc<[Arc<Candidate>]>, NoCandidate> {
    let pool = app.candidates.of(&app.peer, &request.wanted)?;
    fit(&pool, &request.selector)
}

/// Of the replicas that are ready, those that the caller trusts and that meet what it requires.
pub(crate) fn fit(pool: &Pool, selector: &Selector) -> Result<Arc<[Arc<Candidate>]>, NoCandidate> {
    pool.fit(selector, |pool| {
        let trusted = trust::filter(pool, selector.trusted.as_ref())?;
        require::filter(&trusted, &selector.require)
    })
}

/// Takes note of a failed attempt.
pub(crate) fn note_failure(app: &Arc<App>, in_flight: &InFlight, request: &Inference, failure: &Failure) {
    let (node, reason) = (in_flight.candidate().node(), failure.reason());
    tracing::info!(request = %request.id, %node, reason, error = failure.cause(), "attempt failed");
    app.metrics.attempt_failed(reason);
    in_flight.ended(reason);
    in_flight.span().failed(reason);
    app.metrics.error_events.inc_by(u64::from(matches!(failure, Failure::FailedStream(_))));
    if let Some(strike) = failure.strike() {
        trial::strike(app, in_flight.candidate(), request, strike);
    }
}

/// Whether a failed request may be given to a further node.
async fn may_go_on(
    app: &App,
    in_flight: &InFlight,
    request: &Inference,
    failure: &Failure,
    attempts: &mut Attempts,
) -> bool {
    attempts.failed += 1;
    attempts.delivered += u32::from(failure.delivered());
    attempts.paths_lost += u32::from(failure.is_of_the_path());
    // There may be another way to the same node. Everybody whom a relay carried loses it at once: no budget bounds
    // that, and what was begun there has been cancelled.
    let is_first_of_the_path = failure.is_of_the_path() && attempts.paths_lost == 1;
    if is_first_of_the_path {
        attempts.tried.pop();
    }
    if failure.is_unreached() {
        attempts.unreached.note(in_flight.candidate());
    }
    attempts.delivered < DELIVERED_MAX
        && is_somebody(app, request, attempts).await
        && (!failure.delivered() || is_first_of_the_path || app.budget.withdraw())
        && (!failure.may_still_run() || attempt::has_heard(app, in_flight, request).await)
}

/// Whether there is another node to try; or, after a moment, another way to one that was not reached. Many may be behind
/// one relay that has stopped, so how many were tried in vain says nothing of the next way.
async fn is_somebody(app: &App, request: &Inference, attempts: &mut Attempts) -> bool {
    let others = match request.settings.retries_max {
        0 => return false,
        most if attempts.failed <= most => Others::Too,
        _ => Others::Not,
    };
    let all = candidates(app, request);
    if others == Others::Too && all.is_ok_and(|all| all.iter().any(|other| !attempts.tried.contains(&other.session())))
    {
        return true;
    }
    let changes = app.peer.view_changes();
    attempts.unreached.another_way(changes, &mut attempts.tried, others, || candidates(app, request)).await
}

/// Whether an engine does not know what we have put into the request. Its client must not suffer for it.
fn refuses_our_wish(begun: &Begun) -> bool {
    let attempt::BegunBody::Whole(body) = &begun.body else { return false };
    let names = |field: &str| body.windows(field.len()).any(|part| part == field.as_bytes());
    begun.asked_usage
        && matches!(begun.head.status.as_u16(), 400 | 422)
        && (names("stream_options") || names("include_usage"))
}

impl Attempts {
    /// A second attempt races the first.
    pub(crate) fn hedged(&mut self, session: Session) {
        self.tried.push(session);
    }
}
