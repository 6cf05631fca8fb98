//! A place for a request: at once where there is one, otherwise after its turn in the queue.

use crate::{
    account::Account,
    balance::InFlight,
    candidate::{Candidate, NoCandidate},
    forward::{App, ForwardError},
    place::{self, Needs, NoPlace},
    request::Inference,
};
use otela_proto::id::Session;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// Whoever waits looks at least this often, whatever it is told: allocations begin to end without anybody saying so.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why a request found no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotPlaced {
    /// Whoever could serve it has been tried.
    Tried,
    /// As many wait as may; there may be room after this time.
    QueueFull(Duration),
    /// It has waited for as long as it may.
    Waited(Duration),
}

/// Takes a place on one of `candidates` that is not among those `tried`, and waits for one if all are full.
pub(crate) async fn place<F>(
    app: &App,
    request: &Inference,
    tried: &[Session],
    account: &mut Account,
    candidates: F,
) -> Result<InFlight, ForwardError>
where
    F: Fn() -> Result<Arc<[Arc<Candidate>]>, NoCandidate>,
{
    let name = request.wanted.name();
    let look = |account: &mut Account| {
        let looked = Instant::now();
        let found = candidates();
        if found.is_ok() {
            account.is_for(name);
        }
        let placed = found.map_err(ForwardError::NoCandidate).map(|found| take(app, request, tried, &found));
        account.stages.lookup += looked.elapsed();
        placed
    };
    // Nobody goes before those who wait already.
    if app.queues.is_empty(name) {
        match look(account)? {
            Ok(in_flight) => return Ok(in_flight),
            Err(NoPlace::Tried) => return Err(ForwardError::NoPlace(NotPlaced::Tried)),
            Err(NoPlace::Full(_)) => {}
        }
    }
    let settings = &request.settings;
    let until_free = || app.paces.until_free(name, app.queues.depth(name));
    let full = |_| ForwardError::NoPlace(NotPlaced::QueueFull(until_free()));
    let ticket = app.queues.join(name, request.caller, settings.queue_max).map_err(full)?;
    let waiting = Waiting::new(app);
    let _queued = request.span.step("otela.queue");
    let deadline = waiting.since + settings.queue_within;
    let mut look_at = waiting.since;
    loop {
        if ticket.is_first() {
            match look(account) {
                Ok(Ok(in_flight)) => {
                    waiting.ends(account);
                    return Ok(in_flight);
                }
                Ok(Err(NoPlace::Tried)) => return Err(ForwardError::NoPlace(NotPlaced::Tried)),
                Ok(Err(NoPlace::Full(busy_for))) => {
                    look_at = Instant::now() + busy_for.map_or(LOOK_EVERY, |busy| busy.min(LOOK_EVERY));
                }
                Err(error) => {
                    waiting.ends(account);
                    return Err(error);
                }
            }
        }
        tokio::select! {
            () = ticket.called() => {}
            () = sleep_until(look_at), if ticket.is_first() => {}
            () = sleep_until(deadline) => {
                waiting.ends(account);
                return Err(ForwardError::NoPlace(NotPlaced::Waited(until_free())));
            }
        }
    }
}

fn take(app: &App, request: &Inference, tried: &[Session], found: &[Arc<Candidate>]) -> Result<InFlight, NoPlace> {
    let needs = Needs::of(app, request);
    let (candidate, count) = place::take(found, tried, &needs)?;
    let (balancer, queues) = (Arc::clone(needs.balancer), Arc::clone(&app.queues));
    Ok(InFlight::start(balancer, candidate, count, queues, request.attempt_span()))
}

/// Counts a request that waits.
struct Waiting<'a> {
    app: &'a App,
    since: Instant,
}

impl<'a> Waiting<'a> {
    fn new(app: &'a App) -> Self {
        app.metrics.waiting.inc();
        Self { app, since: Instant::now() }
    }

    fn ends(&self, account: &mut Account) {
        let waited = self.since.elapsed();
        account.stages.queue += waited;
        self.app.metrics.queue.observe(waited.as_secs_f64());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.app.metrics.waiting.dec();
    }
}
