//! `otela sched run` and `otela sched plan`: the scheduler of a mesh, and what it would do.

use super::{SchedError, catalog, plans, simulate::text};
use crate::{
    cli::{PlanArgs, RunArgs, Target, WantedArgs},
    exit::CommandError,
    files, look,
    run::{ANY_PORT, join, leave, observed, unless_superseded},
    signals::drain_on_signal,
};
use futures::{FutureExt, future::join_all};
use otela_node::{
    peer::{Peer, PeerConfig},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::payload::Role;
use otela_sched::{
    actuator::Overlay,
    catalog::Catalog,
    controller::{self, Ask, Plans, Settings},
    plan::{Avoided, Observation, Policy, decide},
    view::{Loads, nodes, read_counters},
};
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// From the start until the mesh is known.
const JOIN_WITHIN: Duration = Duration::from_secs(15);
/// A mesh has told all it knows so long after the first word.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// Nodes that have gone are not to wait for an ingress that does not answer.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// Ingresses are asked twice, with so much time between: a shorter one shows chance.
const LOAD_WITHIN: Duration = Duration::from_secs(12);

/// What is wanted, and the models and accelerators that it may name.
fn read(wanted: &WantedArgs) -> Result<(Policy, Catalog), CommandError> {
    let catalog = catalog(&wanted.known)?;
    let name = wanted.policy.display().to_string();
    let policy = Policy::read(&name, &text(&wanted.policy)?, &catalog).map_err(SchedError::from)?;
    Ok((policy, catalog))
}

fn ask(ingresses: Vec<Target>) -> Ask {
    Box::new(move || {
        let asked = ingresses.clone().into_iter().map(|ingress| async move {
            let counted = match timeout(TOLD_WITHIN, look::text(&ingress, "/metrics")).await {
                Ok(told) => told.map(|text| read_counters(&text)).map_err(|error| CommandError::from(error).line()),
                Err(_) => Err(format!("no answer within {TOLD_WITHIN:?}")),
            };
            (ingress.to_string(), counted)
        });
        join_all(asked).boxed()
    })
}

/// Runs the scheduler until it is asked to stop.
pub(super) async fn run(args: RunArgs) -> Result<ExitCode, CommandError> {
    files::raise_limit();
    let (policy, catalog) = read(&args.wanted)?;
    let plans = Plans::open(&args.plans).map_err(SchedError::from)?;
    let (tasks, metrics, http) = (Tasks::new(), Metrics::new(), args.http);
    let config = PeerConfig { via: args.via.via, ..args.peer.config(vec![Role::Scheduler], &ANY_PORT)? };
    let (key, is_kept) = (config.identity.keypair().clone(), config.identity.is_kept());
    let (peer, _) = join(config, &tasks, &metrics).await?;
    drain_on_signal(&tasks)?;
    observed(&peer, http, &tasks, &metrics).await?;
    tracing::info!("providers let their idle nodes follow it with --scheduler {}", peer.id());
    if !is_kept {
        tracing::warn!("no --key was given: with the next start this is another scheduler, whom no node follows");
    }
    let settings = Settings { policy, catalog, every: args.every, plans, ask: ask(args.wanted.ingresses) };
    let overlay = Overlay::new(peer.clone(), key);
    controller::run(settings, peer.clone(), overlay, &tasks, &metrics).await;
    leave(&peer, &tasks).await;
    unless_superseded(&peer, ExitCode::SUCCESS)
}

/// Prints what would be placed where.
pub(super) async fn plan(args: PlanArgs) -> Result<ExitCode, CommandError> {
    let (policy, catalog) = read(&args.wanted)?;
    let config = args.peer.observer(Vec::new(), &ANY_PORT)?;
    let config = PeerConfig { observes: true, reserves: false, via: args.via.via, ..config };
    if config.bootstrap.is_empty() && config.via.is_empty() {
        return Err(SchedError::NoBootstrap.into());
    }
    let tasks = Tasks::new();
    let (peer, _) = Peer::start(config, &tasks, &Metrics::new()).await?;
    let joined = timeout(JOIN_WITHIN, peer.joined()).await;
    if joined.is_err() {
        tasks.shutdown(Duration::ZERO).await;
        return Err(SchedError::NotJoined(JOIN_WITHIN).into());
    }
    let (loads, ()) = tokio::join!(measured(args.wanted.ingresses), sleep(SETTLED_AFTER));
    let seen = nodes(&peer.view(), args.scheduler.as_ref());
    tasks.shutdown(Duration::ZERO).await;
    let observation = Observation { nodes: seen, loads: loads?.measured() };
    let decision = decide(&policy, &catalog, &observation, &Avoided::new());
    plans::print_decision(args.json, &decision)
}

/// What ingresses count now, by asking them twice.
async fn measured(ingresses: Vec<Target>) -> Result<Loads, CommandError> {
    let (mut loads, begun) = (Loads::default(), Instant::now());
    if ingresses.is_empty() {
        return Ok(loads);
    }
    for wait in [Duration::ZERO, LOAD_WITHIN] {
        sleep(wait).await;
        for ingress in &ingresses {
            let counted = read_counters(&look::text(ingress, "/metrics").await?);
            loads.take(&ingress.to_string(), begun.elapsed(), counted);
        }
    }
    Ok(loads)
}
