//! `otela doctor`: which ways work from here, what is in the way, and what to do. A list of checks; each says what it
//! has found on one line, and what to do if that is not well.
//!
//! It joins the mesh as a peer that only looks, with a key of its own: an otela that runs here is not disturbed.

mod bootstraps;
mod disk;
mod finding;
mod gpu;
mod limits;
mod machine;
mod mesh;
mod nics;
mod proxy;
mod reach;
mod slurm;
mod variables;

use crate::{
    cli::{As, DoctorArgs, PlaceArgs},
    exit::CommandError,
    look::{print, tables},
    run::{ANY_PORT, RELAY_PORT},
};
use finding::{Finding, Verdict};
use otela_node::{
    agent::hardware::Tools,
    peer::{Bootstrap, Peer, PeerConfig},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::payload::Role;
use serde_json::json;
use std::{path::Path, process::ExitCode, time::Duration};

/// A mesh cannot be joined or served from here.
const SICK: u8 = 1;
/// Slurm's own tool, from `PATH`.
const SCONTROL: &str = "scontrol";

/// Makes every check, and prints what was found.
pub(crate) async fn run(args: DoctorArgs) -> Result<ExitCode, CommandError> {
    let (role, listen) = match args.role {
        As::Node => (Role::Node, ANY_PORT),
        As::Ingress => (Role::Ingress, ANY_PORT),
        As::Relay => (Role::Relay, RELAY_PORT),
    };
    // What is on disk is looked at, and belongs to whoever runs here.
    let mut findings = vec![machine::key(args.peer.key())];
    let mut config = args.peer.clone().observer(vec![role], &listen)?;
    // What is the only way out is dialled like others.
    config.bootstrap.extend(args.via.via.iter().cloned().map(Bootstrap::Address));
    findings.extend(of_machine(&args, &config));
    if args.role == As::Node {
        findings.extend(of_place(&args).await);
    }
    let tasks = Tasks::new();
    let peer = start(&config, &tasks).await?;
    let (addresses, lists) = bootstraps::addresses(&config).await;
    findings.extend(lists);
    findings.extend(bootstraps::names(&addresses).await);
    let met = bootstraps::meet(&peer, &addresses, config.egress.proxy.as_ref()).await;
    findings.extend(met.iter().map(bootstraps::Met::finding));
    findings.extend(bootstraps::udp(&met));
    findings.extend(args.peer.egress.unusable_proxy().map(proxy::unusable));
    findings.push(proxy::check(config.egress.proxy.as_ref(), &met));
    findings.push(mesh::joined(&peer, &met, args.role, args.within).await);
    findings.extend(mesh::clock(&peer, &met).await);
    findings.extend(reach::check(&peer, &config, &met, (args.role, args.within)).await);
    tasks.shutdown(Duration::ZERO).await;
    let well = findings.iter().all(|finding| finding.verdict != Verdict::Fail);
    let checks: Vec<_> = findings.iter().map(Finding::json).collect();
    let code = print(args.json, &json!({"ok": well, "checks": checks}), tables::doctor)?;
    Ok(if well { code } else { ExitCode::from(SICK) })
}

/// What is here, whatever is to run.
fn of_machine(args: &DoctorArgs, config: &PeerConfig) -> Vec<Finding> {
    let PlaceArgs { job, home, tmpdir, http_proxy, http_proxy_upper, .. } = &args.place;
    let is_node = args.role == As::Node;
    let mut findings = vec![machine::state(args.peer.state_dir(), &config.mesh)];
    // An engine keeps its own files in the last two.
    let paths = [
        (disk::Use::Key, args.peer.key()),
        (disk::Use::State, args.peer.state_dir()),
        (disk::Use::Home, home.as_deref().filter(|_| is_node)),
        (disk::Use::Scratch, tmpdir.as_deref().filter(|_| is_node)),
    ];
    let lies: Vec<_> = paths.into_iter().filter_map(|(what, path)| disk::read(what, path?)).collect();
    findings.extend(disk::judge(&lies, Some(job.slurm_job_id.as_str()).filter(|id| !id.is_empty())));
    findings.push(machine::open_files(args.role));
    findings.extend(machine::interfaces(&config.announce, &config.listen, &config.external));
    let nics = nics::read(Path::new("/sys/class/net"), &config.announce, &config.listen);
    findings.extend(nics::judge(&nics, !config.external.is_empty()));
    findings.extend(machine::ports(&config.listen));
    let [https, all, none] = args.peer.egress.spelled();
    findings.extend(variables::judge(&[("http_proxy", http_proxy, http_proxy_upper), https, all, none]));
    findings
}

/// What an engine finds here: accelerators, processors, memory, and the job around it.
async fn of_place(args: &DoctorArgs) -> Vec<Finding> {
    let (place, tools) = (&args.place, Tools::default());
    let stop = args.drain + args.stop_grace;
    let (gpus, job) =
        tokio::join!(gpu::read(&tools, &place.gpus), slurm::read(Path::new(SCONTROL), &place.job, stop, tools.limit));
    let mut findings = gpu::judge(&gpus);
    findings.extend(limits::judge(&limits::read(&place.job, gpus.shown())));
    findings.extend(job.iter().flat_map(slurm::judge));
    findings
}

/// A peer that only looks. It dials the bootstraps when it is told to, so that each way is tried by itself, and listens
/// wherever it may where another process has the port.
async fn start(config: &PeerConfig, tasks: &Tasks) -> Result<Peer, CommandError> {
    let listen = if machine::ports(&config.listen).is_empty() {
        config.listen.clone()
    } else {
        ANY_PORT.iter().filter_map(|address| address.parse().ok()).collect()
    };
    let looks = PeerConfig {
        observes: true,
        roles: Vec::new(),
        listen,
        bootstrap: Vec::new(),
        external: Vec::new(),
        serves_http: false,
        ..config.clone()
    };
    Ok(Peer::start(looks, tasks, &Metrics::new()).await?.0)
}
