//! Hedging: a request that has waited for a while for the first byte of its answer is also given to a second node, and
//! whichever begins first is taken. The other one is cancelled. Off unless configured, and paid for from the budget of
//! second tries.

use crate::{
    attempt::{self, Begun},
    balance::InFlight,
    failure::Failure,
    forward::{App, Attempts, candidates, note_failure},
    place::{self, Needs},
    request::{Inference, Outgoing},
};
use std::sync::Arc;
use tokio::time::sleep;

/// Whose answer it is.
enum By {
    First,
    Second,
}

/// An attempt, or two that race. Returns the one whose answer has begun, or that has failed last.
pub(crate) async fn attempt(
    app: &Arc<App>,
    first: InFlight,
    request: &Inference,
    outgoing: &Outgoing,
    attempts: &mut Attempts,
) -> (InFlight, Result<Begun, Failure>) {
    let mut second = None;
    let (by, answered) = race(app, &first, &mut second, request, outgoing, attempts).await;
    match (by, second) {
        (By::Second, Some(second)) => (second, answered),
        _ => (first, answered),
    }
}

async fn race(
    app: &Arc<App>,
    first: &InFlight,
    second: &mut Option<InFlight>,
    request: &Inference,
    outgoing: &Outgoing,
    attempts: &mut Attempts,
) -> (By, Result<Begun, Failure>) {
    let attempted = attempt::attempt(app, first, request, outgoing);
    let Some(after) = request.settings.hedge_after else { return (By::First, attempted.await) };
    tokio::pin!(attempted);
    tokio::select! {
        answered = attempted.as_mut() => return (By::First, answered),
        () = sleep(after) => *second = place_for_second(app, request, attempts),
    }
    let Some(second) = second else { return (By::First, attempted.await) };
    app.metrics.hedges.inc();
    let raced = attempt::attempt(app, second, request, outgoing);
    tokio::pin!(raced);
    tokio::select! {
        answered = attempted.as_mut() => match answered {
            Ok(begun) => (By::First, Ok(begun)),
            Err(failure) => {
                note_failure(app, first, request, &failure);
                (By::Second, raced.await)
            }
        },
        answered = raced.as_mut() => match answered {
            Ok(begun) => (By::Second, Ok(begun)),
            Err(failure) => {
                note_failure(app, second, request, &failure);
                (By::First, attempted.await)
            }
        },
    }
}

/// A place for a second attempt: on another node within the same filters, without waiting, and if the budget allows it.
fn place_for_second(app: &Arc<App>, request: &Inference, attempts: &mut Attempts) -> Option<InFlight> {
    let found = candidates(app, request).ok()?;
    let needs = Needs::of(app, request);
    let (candidate, count) = place::take(&found, &attempts.tried, &needs).ok()?;
    if !app.budget.withdraw() {
        return None;
    }
    attempts.hedged(candidate.session());
    let span = request.attempt_span();
    span.set("otela.hedged", true);
    Some(InFlight::start(Arc::clone(needs.balancer), candidate, count, Arc::clone(&app.queues), span))
}
