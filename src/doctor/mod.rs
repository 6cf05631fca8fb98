//! `otela doctor`: which ways work from here, what is in the way, and what to do. A list of checks; each says what it
//! has found on one line, and what to do if that is not well.
//!
//! It joins the mesh as a peer that only looks, with a key of its own: an otela that runs here is not disturbed.

mod bootstraps;
mod finding;
mod machine;
mod mesh;
mod proxy;
mod reach;

use crate::{
    cli::{As, DoctorArgs},
    exit::CommandError,
    look::{print, tables},
    run::{ANY_PORT, RELAY_PORT},
};
use finding::{Finding, Verdict};
use otela_node::{
    peer::{Bootstrap, Peer, PeerConfig},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::payload::Role;
use serde_json::json;
use std::{process::ExitCode, time::Duration};

/// A mesh cannot be joined or served from here.
const SICK: u8 = 1;

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
    findings.push(machine::state(args.peer.state_dir(), &config.mesh));
    findings.push(machine::open_files(args.role));
    findings.extend(machine::interfaces(&config.announce, &config.listen, &config.external));
    findings.extend(machine::ports(&config.listen));
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
