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
    actuator::{Overlay, Slurm},
    catalog::Catalog,
    controller::{self, Ask, Plans, Settings},
    plan::{Avoided, JobKind, Observation, Policy, PolicyError, decide},
    view::{Loads, nodes, read_counters},
};
use std::{
    env,
    path::Path,
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
    let mut policy = Policy::read(&name, &text(&wanted.policy)?, &catalog).map_err(SchedError::from)?;
    let beside = wanted.policy.parent().unwrap_or(Path::new(""));
    for kind in &mut policy.slurm.jobs {
        find_script(kind, beside, &name)?;
    }
    Ok((policy, catalog))
}

/// Finds a kind's script from the folder of the policy, and sees that it may be submitted.
fn find_script(kind: &mut JobKind, beside: &Path, policy: &str) -> Result<(), SchedError> {
    let path = std::path::absolute(beside.join(&kind.script));
    let path = path.map_err(|source| SchedError::Open { path: kind.script.clone(), source })?;
    let what = kind.check_script(&text(&path)?);
    let wrong = |what| format!("slurm.jobs, {:?}: {}: {what}", kind.name, kind.script.display());
    what.map_err(|what| PolicyError::Wrong { file: policy.to_owned(), what: wrong(what) })?;
    kind.script = path;
    Ok(())
}

/// What jobs are to find in their environment, so that their nodes come into this mesh and follow this scheduler. What is
/// set there already stays.
fn environment(config: &PeerConfig) -> Vec<(String, String)> {
    let me = config.identity.keypair().public().to_peer_id();
    let bootstrap = config.bootstrap.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let all = [
        ("OTELA_START_SCHEDULERS", me.to_string()),
        ("OTELA_PEER_MESH", config.mesh.to_string()),
        ("OTELA_PEER_BOOTSTRAP", bootstrap),
    ];
    let missing = all.into_iter().filter(|(name, value)| !value.is_empty() && env::var_os(name).is_none());
    missing.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Slurm, which must be there if the policy has jobs for it.
async fn slurm(policy: &Policy, environment: Vec<(String, String)>) -> Result<Slurm, SchedError> {
    let slurm = Slurm::new(environment);
    if !policy.slurm.jobs.is_empty() {
        slurm.check().await?;
    }
    Ok(slurm)
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
    let slurm = slurm(&policy, environment(&config)).await?;
    let (key, is_kept) = (config.identity.keypair().clone(), config.identity.is_kept());
    let (peer, _) = join(config, &tasks, &metrics).await?;
    drain_on_signal(&tasks)?;
    observed(&peer, http, || Ok(()), &tasks, &metrics).await?;
    tracing::info!("providers let their idle nodes follow it with --scheduler {}", peer.id());
    if !is_kept {
        tracing::warn!("no --key was given: with the next start this is another scheduler, whom no node follows");
    }
    let settings = Settings { policy, catalog, every: args.every, plans, ask: ask(args.wanted.ingresses), slurm };
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
    let slurm = slurm(&policy, Vec::new()).await?;
    let tasks = Tasks::new();
    let (peer, _) = Peer::start(config, &tasks, &Metrics::new()).await?;
    let joined = timeout(JOIN_WITHIN, peer.joined()).await;
    if joined.is_err() {
        tasks.shutdown(Duration::ZERO).await;
        return Err(SchedError::NotJoined(JOIN_WITHIN).into());
    }
    let (loads, ()) = tokio::join!(measured(args.wanted.ingresses), sleep(SETTLED_AFTER));
    let view = peer.view();
    let seen = nodes(&view, args.scheduler.as_ref());
    let queue = controller::queue(slurm, &policy, peer.mesh().as_str(), &view).await;
    tasks.shutdown(Duration::ZERO).await;
    let (queue, unknown) = queue.map_or_else(|why| (None, Some(why)), |queue| (Some(queue), None));
    let observation = Observation { nodes: seen, loads: loads?.measured(), now_ms: controller::now_ms(), queue };
    let decision = decide(&policy, &catalog, &observation, &Avoided::new());
    plans::print_decision(args.json, &decision, unknown.as_deref())
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
