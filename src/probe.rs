//! `otela probe`: a peer that only looks joins the mesh, and measures the ways to another.

use crate::{
    cli::{ProbeArgs, Whom},
    exit::CommandError,
    look::{print, tables},
    run::ANY_PORT,
};
use multiaddr::{Multiaddr, Protocol};
use otela_node::{
    peer::{
        Bootstrap, Peer, PeerConfig,
        probe::{HolePunch, Measured, Survey, Way},
    },
    tasks::Tasks,
    telemetry::{Metrics, chain},
};
use otela_proto::{PeerId, admission::Refused};
use serde_json::{Value, json};
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// From the start until the peer is known.
const FIND_WITHIN: Duration = Duration::from_secs(15);
/// The same where an address was given: what else is known of it is good to have.
const LEARN_WITHIN: Duration = Duration::from_secs(5);
/// A mesh has told all it knows so long after the first word.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const MEGABYTE: f64 = 1e6;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeFailed {
    /// An id alone leads nowhere.
    #[error("an id alone does not tell where {0} is: name its mesh with --bootstrap, or give its multiaddress")]
    NoBootstrap(PeerId),
    /// The mesh has not been found.
    #[error("the mesh was not found within {FIND_WITHIN:?}: see `otela doctor` with the same flags")]
    NotJoined,
    /// The mesh does not let us look.
    #[error(
        "peers of the mesh refuse this one: {0}. Give the same --mesh-file, --release, --membership and --key as a member"
    )]
    Refused(Refused),
    /// The mesh does not know it.
    #[error("the mesh does not know {0}: `otela nodes` lists those it knows")]
    Unknown(PeerId),
    /// It is known and cannot be reached, or not measured.
    #[error("no way to {0} was measured, see above")]
    NoWay(PeerId),
}

/// Measures, and prints what came of it.
pub(crate) async fn run(args: ProbeArgs) -> Result<ExitCode, CommandError> {
    let (wanted, punch_within, json) = (args.wanted(), args.punch_within, args.json);
    let Whom { peer: to, address } = args.whom;
    // Key and state belong to whoever runs here.
    let config = args.peer.observer(Vec::new(), &ANY_PORT)?;
    let mut config = PeerConfig { observes: true, reserves: false, via: args.via.via, ..config };
    if address.is_none() && config.bootstrap.is_empty() && config.via.is_empty() {
        return Err(ProbeFailed::NoBootstrap(to).into());
    }
    config.bootstrap.extend(address.clone().map(Bootstrap::Address));
    let (tasks, mesh) = (Tasks::new(), config.mesh.clone());
    let (peer, _) = Peer::start(config, &tasks, &Metrics::new()).await?;
    let within = if address.is_some() { LEARN_WITHIN } else { FIND_WITHIN };
    // Whatever comes of it, an address that was given is tried.
    let _ = timeout(within, until_known_or_heard_of_all(&peer, &to)).await;
    let view = peer.view();
    let known = view.node(&to).into_iter().flat_map(|node| node.entry.payload().multiaddrs());
    let mut addresses: Vec<_> = known.collect();
    let ends_alike = |known: &Multiaddr, given: &Multiaddr| {
        known == given || known.clone().with_p2p(to).is_ok_and(|known| known == *given)
    };
    addresses.extend(address.filter(|given| !addresses.iter().any(|known| ends_alike(known, given))));
    if addresses.is_empty() {
        let failed = match (peer.has_joined(), peer.refuses_us().first()) {
            (true, _) => ProbeFailed::Unknown(to),
            (false, Some(refused)) => ProbeFailed::Refused(*refused),
            (false, None) => ProbeFailed::NotJoined,
        };
        tasks.shutdown(Duration::ZERO).await;
        return Err(failed.into());
    }
    let survey = peer.survey(&to, addresses, &wanted, punch_within).await;
    tasks.shutdown(Duration::ZERO).await;
    let answer = as_json(&to, mesh.as_str(), &survey);
    let code = print(json, &answer, tables::probe)?;
    let measured = survey.ways.iter().any(|way| way.measured.is_ok());
    if measured { Ok(code) } else { Err(ProbeFailed::NoWay(to).into()) }
}

/// Waits until the peer is known, or the mesh has long told all it knows.
async fn until_known_or_heard_of_all(peer: &Peer, to: &PeerId) {
    let (mut changes, mut joined) = (peer.view_changes(), None);
    while peer.view().node(to).is_none() {
        // Another bootstrap may know more, or let us in.
        let has_answered = peer.has_joined() || !peer.refuses_us().is_empty();
        if has_answered && joined.get_or_insert_with(Instant::now).elapsed() > SETTLED_AFTER {
            return;
        }
        // Joining changes nothing in the view.
        let _ = timeout(LOOK_EVERY, changes.changed()).await;
    }
}

fn as_json(to: &PeerId, mesh: &str, survey: &Survey) -> Value {
    let ms = |time: &Duration| time.as_secs_f64() * 1e3;
    let tried = |tried: &otela_node::peer::probe::Tried| {
        json!({
            "address": tried.address.to_string(),
            "reached": tried.failed.is_none(),
            "after_ms": ms(&tried.after),
            "error": tried.failed.as_ref().map(ToString::to_string),
        })
    };
    let (result, after) = match &survey.hole_punch {
        HolePunch::NotNeeded => ("not_needed", None),
        HolePunch::NoRelay => ("no_relay", None),
        HolePunch::Found(after) => ("found", Some(ms(after))),
        HolePunch::NotFound(after) => ("not_found", Some(ms(after))),
    };
    json!({
        "peer": to.to_string(),
        "mesh": mesh,
        "tried": survey.tried.iter().map(tried).collect::<Vec<_>>(),
        "hole_punch": {"result": result, "after_ms": after},
        "ways": survey.ways.iter().map(way).collect::<Vec<_>>(),
    })
}

fn way(way: &Way) -> Value {
    let connection = &way.connection;
    let measured = way.measured.as_ref();
    json!({
        "path": connection.path().name(),
        "transport": connection.carrier_name(),
        "address": without_id(connection.remote()).to_string(),
        "relay": connection.relay().map(|relay| relay.to_string()),
        "round_trips": measured.ok().map(round_trips),
        "up": measured.ok().map(|measured| rate(measured.up)),
        "down": measured.ok().map(|measured| rate(measured.down)),
        "error": measured.err().map(|error| chain(error).replace('\n', " ")),
    })
}

/// Whose it is, is known.
fn without_id(address: &Multiaddr) -> Multiaddr {
    match address.iter().last() {
        Some(Protocol::P2p(_)) => address.iter().take(address.iter().count() - 1).collect(),
        _ => address.clone(),
    }
}

fn round_trips(measured: &Measured) -> Value {
    let all = &measured.round_trips;
    let at = |quantile: f64| {
        // The smallest that so large a part of them does not exceed.
        let place = ((all.len() as f64 * quantile).ceil() as usize).clamp(1, all.len().max(1)) - 1;
        all.get(place).map(|time| time.as_secs_f64() * 1e3)
    };
    json!({"count": all.len(), "min_ms": at(0.0), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)})
}

fn rate(rate: otela_node::peer::probe::Rate) -> Value {
    json!({
        "bytes": rate.bytes,
        "took_ms": rate.took.as_secs_f64() * 1e3,
        "megabytes_per_s": rate.bytes_per_s() / MEGABYTE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use otela_node::peer::probe::Rate;

    #[test]
    fn quantiles_are_measured_values() {
        let round_trips = (1..=100).map(Duration::from_millis).collect();
        let measured = Measured { round_trips, up: Rate::default(), down: Rate::default() };
        let told = super::round_trips(&measured);
        assert_eq!(told, json!({"count": 100, "min_ms": 1.0, "p50_ms": 50.0, "p99_ms": 99.0, "max_ms": 100.0}));
        let one = Measured { round_trips: vec![Duration::from_millis(7)], ..measured };
        assert_eq!(super::round_trips(&one)["p50_ms"], 7.0);
        let told = rate(Rate { bytes: 3_000_000, took: Duration::from_millis(500) });
        assert_eq!(told["megabytes_per_s"], 6.0);
        assert_eq!(rate(Rate::default())["megabytes_per_s"], 0.0);
    }
}
