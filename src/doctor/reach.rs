//! Whether others could reach a peer here: at its own addresses, through relays, or by a hole in a NAT.

use super::{
    bootstraps::{Met, Over},
    finding::Finding,
};
use crate::cli::As;
use multiaddr::{Multiaddr, Protocol};
use otela_node::peer::{Interfaces, Observed, Path, Peer, PeerConfig, Reach};
use otela_proto::measure::Outcome;
use std::{collections::BTreeSet, net::IpAddr, time::Duration};
use tokio::time::timeout;

/// How others see what leaves this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nat {
    /// Nobody has said, or only one, who cannot tell how it looks to others.
    Unknown,
    /// Addresses arrive as they are.
    None,
    /// The same port for everybody: direct ways can be found.
    EndpointIndependent,
    /// Another port for each destination: they cannot.
    Symmetric,
}

pub(super) async fn check(
    peer: &Peer,
    config: &PeerConfig,
    met: &[Met],
    (role, within): (As, Duration),
) -> Vec<Finding> {
    let Some(first) = met.iter().find_map(|met| met.outcome.as_ref().ok()).map(|(connection, _)| connection) else {
        return Vec::new();
    };
    let mut changes = peer.reach_changes();
    let is_settled = |reach: &Reach| reach.relays_known == Some(0) || !reach.relays.is_empty();
    // What is known by then is what is told.
    let _ = timeout(within, changes.wait_for(is_settled)).await;
    let reach = peer.reach();
    let own: BTreeSet<_> = Interfaces::now().iter().map(|(_, ip)| ip).collect();
    let nat = nat(&reach.observed, &own);
    let mut findings = vec![of_nat(nat, &reach.observed)];
    let addresses: Vec<_> = match config.external.is_empty() {
        true => peer.addresses().into_iter().filter(|address| ip_of(address).is_some()).collect(),
        false => config.external.clone(),
    };
    let seen: BTreeSet<_> = reach.observed.iter().filter_map(|seen| ip_of(&seen.address)).collect();
    let mine: Vec<_> =
        addresses.into_iter().filter(|a| !is_relayed(a) && ip_of(a).is_some_and(|ip| seen.contains(&ip))).collect();
    let outcomes = if first.path() == Path::Direct && !mine.is_empty() {
        Some(peer.dialled_back(first, mine).await.unwrap_or_default())
    } else {
        None
    };
    let is_dialled = outcomes.iter().flatten().any(|outcome| outcome.failed.is_none());
    findings.push(of_dials(outcomes.as_deref(), role));
    findings.push(of_relays(&reach, is_dialled || !config.external.is_empty()));
    findings
}

/// What came of having this machine dialled; `None` if none of its addresses is one that others see.
fn of_dials(outcomes: Option<&[Outcome]>, role: As) -> Finding {
    let check = "reachable";
    let reached = outcomes.into_iter().flatten().find(|outcome| outcome.failed.is_none());
    match (reached, outcomes.map(<[_]>::first)) {
        (Some(outcome), _) => Finding::ok(check, format!("a bootstrap could dial {}", outcome.address)),
        (None, Some(Some(outcome))) => Finding::warn(
            check,
            format!("a bootstrap could not dial {}: {}", outcome.address, outcome.failed.as_deref().unwrap_or("")),
            "open the port to this machine; until then others come through relays",
        ),
        (None, Some(None)) => Finding::ok(check, "no bootstrap would try to dial this machine"),
        (None, None) if role == As::Relay => Finding::warn(
            check,
            "others do not see this machine at any address that it announces",
            "a relay is of use only where others reach it: have the port passed on to it, and name it with --external",
        ),
        (None, None) => Finding::ok(
            check,
            "others do not see this machine at any address that it announces: they come through relays or holes in a NAT",
        ),
    }
}

fn of_relays(reach: &Reach, has_others: bool) -> Finding {
    let check = "relays";
    match (reach.relays.len(), reach.relays_known) {
        (0, None) => Finding::warn(check, "the mesh has not told of its relays yet", "give it more time with --within"),
        (0, Some(0)) if has_others => Finding::ok(check, "the mesh has none, and none is needed"),
        (0, Some(0)) => {
            let advice = "start `otela relay` at an address that all sites reach, if there is more than one";
            Finding::warn(check, "the mesh has none: peers behind NATs cannot be reached from other sites", advice)
        }
        (0, Some(known)) if has_others => Finding::warn(
            check,
            format!("none of {known} relays for this machine"),
            "see their logs; others reach it at its own addresses only",
        ),
        (0, Some(known)) => {
            let advice = "see their logs for why they refuse: raise --reservations-max, or start another relay";
            Finding::fail(
                check,
                format!("none of {known} relays for this machine, so that nobody could reach it"),
                advice,
            )
        }
        (held, known) => Finding::ok(check, format!("{held} of {} relay for this machine", known.unwrap_or(held))),
    }
}

fn of_nat(nat: Nat, observed: &[Observed]) -> Finding {
    let check = "nat";
    let seen: BTreeSet<_> = observed.iter().map(|seen| seen.address.to_string()).collect();
    let seen = seen.into_iter().collect::<Vec<_>>().join(", ");
    match nat {
        Nat::Unknown if observed.is_empty() => {
            Finding::ok(check, "nobody has told how this machine looks from outside")
        }
        Nat::Unknown => {
            Finding::ok(check, format!("there is one; seen as {seen}, by too few to tell its kind (two relays can)"))
        }
        Nat::None => Finding::ok(check, format!("none: this machine is seen as {seen}")),
        Nat::EndpointIndependent => {
            Finding::ok(check, format!("it keeps ports, so direct ways can be found; seen as {seen}"))
        }
        Nat::Symmetric => Finding::warn(
            check,
            format!("it has another port for each destination, so no direct way can be found; seen as {seen}"),
            "requests go through relays; for direct ways open a port and name it with --external",
        ),
    }
}

/// Judged by what different peers see of the same port, which each transport has one of.
fn nat(observed: &[Observed], own: &BTreeSet<IpAddr>) -> Nat {
    if observed.is_empty() {
        return Nat::Unknown;
    }
    if observed.iter().all(|seen| ip_of(&seen.address).is_some_and(|ip| own.contains(&ip))) {
        return Nat::None;
    }
    let of = |over: Over| {
        let seen = observed.iter().filter(move |seen| Over::of(&seen.address) == over);
        (seen.clone().count(), seen.map(|seen| &seen.address).collect::<BTreeSet<_>>().len())
    };
    let kinds = [of(Over::Tcp), of(Over::Quic)];
    if kinds.iter().any(|(told, different)| *told > 1 && *different > 1) {
        Nat::Symmetric
    } else if kinds.iter().any(|(told, _)| *told > 1) {
        Nat::EndpointIndependent
    } else {
        Nat::Unknown
    }
}

fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => Some(ip.into()),
        Some(Protocol::Ip6(ip)) => Some(ip.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;
    use otela_proto::Keypair;

    fn seen(addresses: &[&str]) -> Vec<Observed> {
        let by = || Keypair::generate_ed25519().public().to_peer_id();
        addresses.iter().map(|address| Observed { by: by(), address: address.parse().unwrap() }).collect()
    }

    #[test]
    fn p47_the_kind_of_a_nat_is_what_two_others_see() {
        let own = BTreeSet::from(["192.168.10.2".parse().unwrap()]);
        for (addresses, kind) in [
            (&[][..], Nat::Unknown),
            (&["/ip4/192.168.10.2/tcp/5", "/ip4/192.168.10.2/tcp/77"], Nat::None),
            (&["/ip4/10.77.0.101/tcp/5"], Nat::Unknown),
            (&["/ip4/10.77.0.101/tcp/5", "/ip4/10.77.0.101/udp/6/quic-v1"], Nat::Unknown),
            (&["/ip4/10.77.0.101/tcp/5", "/ip4/10.77.0.101/tcp/5"], Nat::EndpointIndependent),
            (&["/ip4/10.77.0.101/tcp/5", "/ip4/10.77.0.101/tcp/6"], Nat::Symmetric),
            (&["/ip4/10.77.0.101/udp/5/quic-v1", "/ip4/10.77.0.101/udp/6/quic-v1"], Nat::Symmetric),
        ] {
            assert_eq!(nat(&seen(addresses), &own), kind, "{addresses:?}");
        }
        assert_eq!(of_nat(Nat::Symmetric, &seen(&["/ip4/10.77.0.101/tcp/5"])).verdict, Verdict::Warn);
    }

    #[test]
    fn what_came_of_being_dialled_is_always_told() {
        let outcome = |failed: Option<&str>| Outcome {
            address: "/ip4/192.0.2.1/tcp/1".parse().unwrap(),
            failed: failed.map(str::to_owned),
        };
        for (outcomes, role, verdict) in [
            (Some(&[outcome(Some("silence")), outcome(None)][..]), As::Node, Verdict::Ok),
            (Some(&[outcome(Some("silence"))]), As::Node, Verdict::Warn),
            (Some(&[]), As::Node, Verdict::Ok),
            (None, As::Node, Verdict::Ok),
            (None, As::Relay, Verdict::Warn),
        ] {
            assert_eq!(of_dials(outcomes, role).verdict, verdict, "{outcomes:?}");
        }
    }

    #[test]
    fn p45_a_machine_that_nobody_could_reach_is_not_well() {
        let known = |relays_known| Reach { relays_known, ..Reach::default() };
        assert_eq!(of_relays(&known(Some(2)), false).verdict, Verdict::Fail);
        assert_eq!(of_relays(&known(Some(2)), true).verdict, Verdict::Warn);
        assert_eq!(of_relays(&known(Some(0)), false).verdict, Verdict::Warn);
        assert_eq!(of_relays(&known(Some(0)), true).verdict, Verdict::Ok);
        let by = Keypair::generate_ed25519().public().to_peer_id();
        let held = Reach { relays: vec![by], ..known(Some(3)) };
        assert_eq!(of_relays(&held, false).says, "1 of 3 relay for this machine");
    }
}
