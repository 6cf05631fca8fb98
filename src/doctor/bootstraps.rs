//! Checks of the bootstraps: their names, and each of them over each transport.

use super::finding::Finding;
use futures::future::join_all;
use multiaddr::{Multiaddr, Protocol};
use otela_node::{
    peer::{Bootstrap, Connection, Peer, PeerConfig, Proxy, probe::Wanted},
    telemetry::chain,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Enough to know that a peer is of this mesh, and how far it is.
const A_FEW: Wanted = Wanted { count: 5, bytes: 0, within: Duration::from_millis(1) };

/// Of one list so many addresses are tried.
const LISTED_MAX: usize = 4;

/// What carries the bytes, by what an address says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Tcp,
    Quic,
    /// The site's HTTP proxy, where nothing else leads there.
    Proxy,
    /// A transport of which there is no other.
    Other,
}

impl Over {
    /// That of an address.
    pub(super) fn of(address: &Multiaddr) -> Self {
        let mut parts = address.iter().skip(1);
        match (parts.next(), parts.find(|part| !matches!(part, Protocol::P2p(_)))) {
            (Some(Protocol::Tcp(_)), None) => Self::Tcp,
            (Some(Protocol::Udp(_)), Some(Protocol::QuicV1)) => Self::Quic,
            _ => Self::Other,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Quic => "QUIC",
            Self::Proxy => "the HTTP proxy",
            Self::Other => "its own way",
        }
    }
}

/// What became of one bootstrap over one transport.
#[derive(Debug)]
pub(super) struct Met {
    /// The address as it was given.
    pub(super) given: Multiaddr,
    /// The address that was dialled.
    pub(super) dialled: Multiaddr,
    pub(super) over: Over,
    /// Whether the bootstrap could be reached over this transport or the other.
    pub(super) otherwise: bool,
    /// The connection, and its median round trip if the peer there is of this mesh; or why not, in words.
    pub(super) outcome: Result<(Arc<Connection>, Duration), String>,
    took: Duration,
}

/// Whether the names in the bootstraps' addresses can be resolved.
pub(super) async fn names(bootstraps: &[Multiaddr]) -> Vec<Finding> {
    let named = bootstraps.iter().filter_map(|address| match address.iter().next() {
        Some(Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name)) => Some(name.into_owned()),
        _ => None,
    });
    let mut names: Vec<_> = named.collect();
    names.sort_unstable();
    names.dedup();
    join_all(names.into_iter().map(resolved)).await
}

async fn resolved(name: String) -> Finding {
    let began = Instant::now();
    match tokio::net::lookup_host((name.as_str(), 0)).await {
        Ok(found) => {
            let mut ips: Vec<_> = found.map(|socket| socket.ip().to_string()).collect();
            ips.dedup();
            let took = began.elapsed().as_millis();
            Finding::ok("names", format!("{name} is {} (after {took} ms)", ips.join(", ")))
        }
        Err(error) => {
            let advice =
                "check the name, and with `getent hosts` what this machine's resolver says; or give the number";
            Finding::warn("names", format!("{name} cannot be resolved: {error}"), advice)
        }
    }
}

/// The addresses of the bootstraps, with those that stand for others read, and what came of reading them.
pub(super) async fn addresses(config: &PeerConfig) -> (Vec<Multiaddr>, Vec<Finding>) {
    let (mut addresses, mut findings) = (Vec::new(), Vec::new());
    for bootstrap in &config.bootstrap {
        let read = bootstrap.addresses(&config.dns).await;
        if let (Bootstrap::Address(_), Ok(address)) = (bootstrap, &read) {
            addresses.extend_from_slice(address);
            continue;
        }
        findings.push(match read {
            Ok(read) => {
                addresses.extend(read.iter().take(LISTED_MAX).cloned());
                Finding::ok("lists", format!("{bootstrap} has {} addresses", read.len()))
            }
            Err(error) => {
                let advice = "see that this machine reaches it, with the same proxy in its environment";
                Finding::warn("lists", format!("{bootstrap} cannot be read: {}", chain(&error)), advice)
            }
        });
    }
    (addresses, findings)
}

/// Dials every bootstrap over TCP, QUIC and what else its address says, and where nothing leads there through the proxy.
pub(super) async fn meet(peer: &Peer, bootstraps: &[Multiaddr], proxy: Option<&Proxy>) -> Vec<Met> {
    let of_one = async |given: &Multiaddr| {
        let mut met = Vec::new();
        // The way that was given comes first: what relays see of a second one from the same port says less.
        for dialled in ways(given) {
            met.push(dial(peer, given, dialled).await);
        }
        let through =
            proxy.and_then(|proxy| proxy.through(given)).filter(|_| met.iter().all(|met| met.outcome.is_err()));
        if let Some(through) = through {
            met.push(Met { over: Over::Proxy, ..dial(peer, given, through).await });
        }
        let otherwise = met.iter().any(|met| met.outcome.is_ok());
        met.into_iter().map(|met| Met { otherwise, ..met }).collect::<Vec<_>>()
    };
    join_all(bootstraps.iter().map(of_one)).await.into_iter().flatten().collect()
}

async fn dial(peer: &Peer, given: &Multiaddr, dialled: Multiaddr) -> Met {
    let began = Instant::now();
    let expected = match dialled.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    };
    let connected = peer.dial_at(expected, &dialled).await;
    let took = began.elapsed();
    let outcome = match connected {
        Err(why) => Err(why.to_string()),
        Ok(connection) => match peer.measure(&connection, &A_FEW).await {
            Ok(measured) => Ok((connection, measured.round_trips[measured.round_trips.len() / 2])),
            Err(error) => Err(format!(
                "{} is there, and not of this version: it does not let itself be measured ({})",
                connection.peer(),
                chain(&error)
            )),
        },
    };
    Met { given: given.clone(), over: Over::of(&dialled), dialled, otherwise: false, outcome, took }
}

/// The address as it was given, and the same port over the other transport.
fn ways(given: &Multiaddr) -> Vec<Multiaddr> {
    let host = given.iter().next();
    let id: Vec<_> = given.iter().filter(|part| matches!(part, Protocol::P2p(_))).collect();
    let other = |middle: Vec<Protocol<'static>>| -> Multiaddr {
        host.iter().cloned().chain(middle).chain(id.clone()).collect()
    };
    let mut ways = vec![given.clone()];
    match (Over::of(given), given.iter().nth(1)) {
        (Over::Tcp, Some(Protocol::Tcp(port))) => ways.push(other(vec![Protocol::Udp(port), Protocol::QuicV1])),
        (Over::Quic, Some(Protocol::Udp(port))) => ways.push(other(vec![Protocol::Tcp(port)])),
        _ => {}
    }
    ways
}

impl Met {
    /// Whether somebody was there, though perhaps not as a peer of this mesh.
    pub(super) fn is_answered(&self) -> bool {
        let answers = ["certificate", "refuses", "another peer", "not of this version", "of another mesh"];
        self.outcome.as_ref().map_or_else(|why| answers.iter().any(|word| why.contains(word)), |_| true)
    }

    /// What is to be said of it. One way is enough; what was given and leads nowhere is a reason to look.
    pub(super) fn finding(&self) -> Finding {
        let over = self.over.name();
        // Whose it should be is in the flags, and who is there in the finding.
        let dialled: Multiaddr = match self.dialled.iter().last() {
            Some(Protocol::P2p(_)) => self.dialled.iter().take(self.dialled.iter().count() - 1).collect(),
            _ => self.dialled.clone(),
        };
        match &self.outcome {
            Ok((connection, round_trip)) => {
                let (took, round_trip) = (self.took.as_secs_f64() * 1e3, round_trip.as_secs_f64() * 1e3);
                let who = connection.peer();
                Finding::ok(
                    "bootstrap",
                    format!("{over}: {dialled} is {who}, after {took:.1} ms, round trip {round_trip:.2} ms"),
                )
            }
            Err(why) if self.otherwise => {
                let says = format!("{over}: {dialled}: {why}");
                if self.dialled == self.given {
                    Finding::warn("bootstrap", says, "it is reached over another transport: give that address instead")
                } else {
                    Finding::note("bootstrap", says, "not needed: it is reached otherwise")
                }
            }
            Err(why) => Finding::warn("bootstrap", format!("{over}: {dialled}: {why}"), advice(why)),
        }
    }
}

fn advice(why: &str) -> &'static str {
    if why.contains("another peer") {
        "the relay there has another key than when the address was written: ask for its present one"
    } else if why.contains("of another mesh") {
        "give the mesh's name with --mesh; without it the mesh `otela` is meant"
    } else if why.contains("has expired") {
        "have the certificate there renewed, and the relay started again; until then use another of its addresses"
    } else if why.contains("is for other names") {
        "write the name that the certificate is for, or have one made for this name"
    } else if why.contains("certificate") {
        "if the site has an authority of its own, give its certificate with --tls-ca; or it is not the relay that answers"
    } else if why.contains("refuses") {
        "give the mesh's present mesh file with --mesh-file, and what that asks for: see docs/admission.md"
    } else if why.contains("refused") {
        "check the port, and that a relay runs there"
    } else if why.contains("not of this version") {
        "compare the versions on both sides"
    } else if why.contains("resolved") {
        "check the name"
    } else if why.contains("route") || why.contains("nreachable") {
        "see `ip route`: this machine has no way there, or its network is down"
    } else {
        "check the address, and which ports get out of this site: where 443 alone does, a relay has to listen there \
         (docs/fabric.md, hard sites)"
    }
}

/// Whether datagrams get out at all, as far as bootstraps can tell.
pub(super) fn udp(met: &[Met]) -> Option<Finding> {
    let of = |over: Over| met.iter().filter(move |met| met.over == over);
    let works = |over: Over| of(over).any(|met| met.outcome.is_ok());
    if works(Over::Quic) {
        return Some(Finding::ok("udp", "QUIC gets out"));
    }
    let advice = "QUIC is not needed; but a direct way to peers behind NATs is then looked for over TCP only";
    let says = if of(Over::Quic).any(|met| met.outcome.as_ref().is_err_and(|why| why.contains("no answer"))) {
        "no datagram has come back: a firewall drops UDP, or no bootstrap listens on QUIC"
    } else {
        "no bootstrap is reached over QUIC"
    };
    (works(Over::Tcp) && of(Over::Quic).next().is_some()).then(|| Finding::warn("udp", says, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bootstrap_has_two_ways_or_its_own() {
        let id = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
        let of = |text: &str| ways(&text.parse().unwrap()).iter().map(Multiaddr::to_string).collect::<Vec<_>>();
        assert_eq!(
            of(&format!("/ip4/192.0.2.1/tcp/7411/p2p/{id}")),
            [format!("/ip4/192.0.2.1/tcp/7411/p2p/{id}"), format!("/ip4/192.0.2.1/udp/7411/quic-v1/p2p/{id}")]
        );
        assert_eq!(of("/dns/r/udp/7/quic-v1"), ["/dns/r/udp/7/quic-v1", "/dns/r/tcp/7"]);
        let wss = "/dns4/r.example/tcp/443/wss";
        assert_eq!(of(wss), [wss]);
        let relayed = format!("/ip4/192.0.2.1/tcp/7411/p2p/{id}/p2p-circuit/p2p/{id}");
        assert_eq!(of(&relayed), [relayed]);
    }

    #[test]
    fn udp_is_judged_by_who_was_reached() {
        let met = |over, outcome: &str| {
            let address: Multiaddr = "/ip4/192.0.2.1/tcp/1".parse().unwrap();
            let outcome = Err(outcome.to_owned());
            Met { given: address.clone(), dialled: address, over, otherwise: false, outcome, took: Duration::ZERO }
        };
        assert!(udp(&[]).is_none());
        assert!(
            udp(&[met(Over::Tcp, "refused"), met(Over::Quic, "no answer within 5s")]).is_none(),
            "nothing is known"
        );
    }
}
