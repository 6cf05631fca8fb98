//! Addresses: which of ours are worth telling, and which numbers stand behind the names in others'.

use crate::peer::{
    choice::{AddressChoice, Interfaces, Reason, Verdict, is_near},
    defaults::{
        DIRECT_ADDRESSES_MAX, DIRECT_FIRST_FOR, LAST_RESORT_AFTER, PROXIED_ADDRESSES_MAX, RELAYED_ADDRESSES_MAX,
    },
    streams::Carrier,
    transport::{Proxy, is_proxied},
};
use libp2p::{Multiaddr, PeerId, multiaddr::Protocol};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashSet, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// An address that we listen on and do not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The address.
    pub address: Multiaddr,
    /// Whose it is, as far as that is known.
    pub interface: Option<String>,
    /// Why it is left out.
    pub reason: Reason,
}

/// The addresses worth telling others: configured ones, of those we listen on what is chosen, and those at relays.
/// Loopback and link-local ones only when there is nothing else, that is on a machine that talks to itself. And those
/// that we listen on and do not tell.
pub(super) fn announced<'a>(
    listening: impl Iterator<Item = &'a Multiaddr>,
    external: &'a [Multiaddr],
    choice: &AddressChoice,
    interfaces: &Interfaces,
) -> (BTreeSet<Multiaddr>, Vec<LeftOut>) {
    let (relayed, listening): (Vec<_>, Vec<_>) = listening.partition(|address| is_relayed(address));
    let (relayed_external, mut told): (Vec<_>, Vec<_>) = external.iter().partition(|address| is_relayed(address));
    let (mut spare, mut left_out) = (Vec::new(), Vec::new());
    for address in listening {
        let Some(ip) = ip_of(address) else { continue };
        match choice.verdict(ip, &interfaces.of(ip)) {
            Verdict::Told => told.push(address),
            Verdict::Spare => spare.push(address),
            Verdict::LeftOut(reason) => left_out.push((address, reason)),
        }
    }
    // A relay that is near too is as good as they are; one that is not is another way.
    let mut relayed: Vec<_> = relayed_external.into_iter().chain(relayed).collect();
    let is_far = |address: &&Multiaddr| !ip_of(address).is_some_and(is_near);
    if told.is_empty() && !relayed.iter().any(is_far) {
        told = spare;
    } else {
        left_out.extend(spare.into_iter().map(|address| (address, Reason::Near)));
        relayed.retain(is_far);
    }
    let surplus = told.split_off(told.len().min(DIRECT_ADDRESSES_MAX));
    left_out.extend(surplus.into_iter().map(|address| (address, Reason::TooMany)));
    let relayed = of_each_relay(relayed);
    let left_out = left_out.into_iter().map(|(address, reason)| {
        let interface = ip_of(address).and_then(|ip| interfaces.of(ip).first().map(|name| (*name).to_owned()));
        LeftOut { address: address.clone(), interface, reason }
    });
    (told.into_iter().cloned().chain(relayed).collect(), left_out.collect())
}

fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => Some(ip.into()),
        Some(Protocol::Ip6(ip)) => Some(ip.into()),
        _ => None,
    }
}

/// One address at each relay, over TCP if there is one, without our own id at its end: whoever reads it knows whose it
/// is, and each of them is sent to everybody.
fn of_each_relay(mut relayed: Vec<&Multiaddr>) -> Vec<Multiaddr> {
    relayed.sort_by_key(|address| (relay_of(address), Carrier::of(address)));
    relayed.dedup_by_key(|address| relay_of(address));
    let short = |address: &Multiaddr| {
        let is_circuit = |part: &Protocol| matches!(part, Protocol::P2pCircuit);
        let circuit = address.iter().position(|part| is_circuit(&part)).unwrap_or(0);
        address.iter().take(circuit + 1).collect()
    };
    relayed.into_iter().map(short).collect()
}

/// Whether an address leads through a relay.
pub(in crate::peer) fn is_relayed(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// The relay that an address leads through.
pub(in crate::peer) fn relay_of(address: &Multiaddr) -> Option<PeerId> {
    let mut before = None;
    for part in address {
        match part {
            Protocol::P2p(peer) => before = Some(peer),
            Protocol::P2pCircuit => return before,
            _ => {}
        }
    }
    None
}

/// Those of a peer's addresses that are tried: not all that it may have written, and none that leads through `me` or
/// through a proxy, which is nobody else's to choose.
pub(super) fn bounded(addresses: Vec<Multiaddr>, me: &PeerId) -> Vec<Multiaddr> {
    let (relayed, own): (Vec<_>, Vec<_>) =
        addresses.into_iter().filter(|address| !is_proxied(address)).partition(is_relayed);
    let relayed = relayed.into_iter().filter(|address| relay_of(address) != Some(*me)).take(RELAYED_ADDRESSES_MAX);
    own.into_iter().take(DIRECT_ADDRESSES_MAX).chain(relayed).collect()
}

/// The ways to a peer, in the order in which they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Its own addresses, over TCP if it has that.
    Own,
    /// Addresses at relays, and over QUIC, where it takes seconds until the death of a peer is noticed.
    Around,
    /// What looks like the web.
    Wss,
    /// Whatever the site's proxy may lead to.
    Proxy,
}

impl Way {
    /// That of a connection that we have begun.
    pub(super) fn of(address: &Multiaddr) -> Self {
        match address {
            proxied if is_proxied(proxied) => Self::Proxy,
            relayed if is_relayed(relayed) => Self::Around,
            wss if Carrier::of(wss) == Carrier::Wss => Self::Wss,
            _ => Self::Own,
        }
    }
}

/// Addresses that are dialled together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    way: Way,
    pub(super) addresses: Vec<Multiaddr>,
}

impl Stage {
    /// Circuits, dialled together.
    pub(super) fn of_circuits(addresses: Vec<Multiaddr>) -> Self {
        Self { way: Way::Around, addresses }
    }

    /// How long those before it have.
    pub(super) fn after(&self, before: &Self) -> Duration {
        let is_last_resort = |stage: &Self| stage.way >= Way::Wss;
        if is_last_resort(self) && !is_last_resort(before) { LAST_RESORT_AFTER } else { DIRECT_FIRST_FOR }
    }
}

/// What is dialled first, what in the second place, and so on, each with its further ways through the `proxy`. Where the
/// peer was last reached by the way `last`, all up to that is dialled at once, and what was of use comes first.
pub(super) fn staged(addresses: &[Multiaddr], proxy: Option<&Proxy>, last: Way) -> VecDeque<Stage> {
    let is_own_tcp = |a: &Multiaddr| Way::of(a) == Way::Own && Carrier::of(a) == Carrier::Tcp;
    let has_tcp = addresses.iter().any(is_own_tcp);
    let way = |a: &Multiaddr| match Way::of(a) {
        Way::Own if has_tcp && !is_own_tcp(a) => Way::Around,
        way => way,
    };
    let mut through: Vec<_> = addresses.iter().filter_map(|address| proxy?.through(address)).collect();
    // A relay is asked in the last place, as it is known to others as well.
    through.sort_by_key(is_relayed);
    through.truncate(PROXIED_ADDRESSES_MAX);
    let mut stages = VecDeque::<Stage>::new();
    let mut all: Vec<_> = addresses.iter().cloned().map(|a| (way(&a), a)).collect();
    all.extend(through.into_iter().map(|a| (Way::Proxy, a)));
    all.sort_by_key(|(way, _)| if *way <= last { (Way::Own, Reverse(*way)) } else { (*way, Reverse(*way)) });
    for (way, address) in all {
        let stage = if way <= last { Way::Own } else { way };
        match stages.back_mut() {
            Some(back) if back.way == stage => back.addresses.push(address),
            _ => stages.push_back(Stage { way: stage, addresses: vec![address] }),
        }
    }
    stages
}

/// Where the TCP connections of this process's network lead that begin at one of its addresses. Empty where the system
/// does not tell.
pub(super) fn tcp_remotes(own: IpAddr) -> HashSet<SocketAddr> {
    let tables = [procfs::net::tcp(), procfs::net::tcp6()].into_iter().flatten().flatten();
    let from_it = tables.filter(|socket| socket.local_address.ip().to_canonical() == own);
    from_it
        .map(|socket| SocketAddr::new(socket.remote_address.ip().to_canonical(), socket.remote_address.port()))
        .collect()
}

/// Whether a resolver is needed before it can be dialled. Those that look like the web keep their names, as certificates
/// are for names; those through a proxy keep theirs for the proxy.
pub(super) fn has_name(address: &Multiaddr) -> bool {
    let is_name = matches!(address.iter().next(), Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)));
    is_name && !is_proxied(address) && Carrier::of(address) != Carrier::Wss
}

/// Names are resolved by the system's resolver, which knows what the site's administrators set up. One name that
/// cannot be resolved does not spoil the other addresses.
pub(in crate::peer) async fn resolve_all(addresses: Vec<Multiaddr>) -> io::Result<Vec<Multiaddr>> {
    let (mut found, mut failed) = (Vec::new(), None);
    for address in addresses {
        if !has_name(&address) {
            found.push(address);
            continue;
        }
        match resolve(address).await {
            Ok(resolved) => found.extend(resolved),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

async fn resolve(address: Multiaddr) -> io::Result<Vec<Multiaddr>> {
    let (name, keep) = match address.iter().next() {
        Some(Protocol::Dns(name)) => (name.into_owned(), (true, true)),
        Some(Protocol::Dns4(name)) => (name.into_owned(), (true, false)),
        Some(Protocol::Dns6(name)) => (name.into_owned(), (false, true)),
        _ => return Ok(vec![address]),
    };
    let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
    let ips = found.map(|socket| socket.ip()).filter(|ip| if ip.is_ipv4() { keep.0 } else { keep.1 });
    Ok(ips.map(|ip| std::iter::once(Protocol::from(ip)).chain(address.iter().skip(1)).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<'a>(
        listening: impl Iterator<Item = &'a Multiaddr>,
        external: &'a [Multiaddr],
    ) -> (BTreeSet<Multiaddr>, Vec<LeftOut>) {
        announced(listening, external, &AddressChoice::default(), &Interfaces::default())
    }

    #[test]
    fn p53_of_too_many_the_first_are_told_and_the_rest_is_known() {
        let many: Vec<Multiaddr> = (1..=10).map(|n| format!("/ip4/10.0.0.{n}/tcp/1").parse().unwrap()).collect();
        let (told, left_out) = all(many.iter(), &[]);
        assert_eq!(told, many[..DIRECT_ADDRESSES_MAX].iter().cloned().collect());
        let rest: Vec<_> = left_out.iter().map(|left| (left.address.clone(), left.reason)).collect();
        assert_eq!(rest, many[DIRECT_ADDRESSES_MAX..].iter().map(|a| (a.clone(), Reason::TooMany)).collect::<Vec<_>>());
    }

    #[test]
    fn loopback_is_announced_only_when_there_is_nothing_else() {
        let near: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let far: Multiaddr = "/ip4/10.0.0.7/tcp/1".parse().unwrap();
        let public: Multiaddr = "/dns4/relay.example/tcp/443".parse().unwrap();
        let at_relay: Multiaddr = format!("{far}/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
        let set = |addresses: &[&Multiaddr]| addresses.iter().map(|a| (*a).clone()).collect::<BTreeSet<_>>();
        assert_eq!(all([&near].into_iter(), &[]), (set(&[&near]), vec![]));
        let left_out = vec![LeftOut { address: near.clone(), interface: None, reason: Reason::Near }];
        assert_eq!(all([&near, &far].into_iter(), &[]), (set(&[&far]), left_out.clone()));
        assert_eq!(all([&near, &at_relay].into_iter(), &[]), (set(&[&at_relay]), left_out.clone()));
        let at_near_relay: Multiaddr = format!("{near}/p2p/{}/p2p-circuit", PeerId::random()).parse().unwrap();
        assert_eq!(all([&near, &at_near_relay].into_iter(), &[]).0, set(&[&near, &at_near_relay]));
        assert_eq!(all([&near, &far, &at_near_relay].into_iter(), &[]).0, set(&[&far]));
        assert_eq!(all([&near].into_iter(), std::slice::from_ref(&public)), (set(&[&public]), left_out));
    }

    #[test]
    fn of_each_relay_one_short_address_is_told() {
        let [first, second, me] = [PeerId::random(), PeerId::random(), PeerId::random()];
        let at = |relay: &PeerId, how: &str| -> Multiaddr {
            format!("/ip4/10.77.0.11/{how}/p2p/{relay}/p2p-circuit/p2p/{me}").parse().unwrap()
        };
        let reserved = [at(&first, "udp/1/quic-v1"), at(&first, "tcp/1"), at(&second, "udp/1/quic-v1")];
        let (told, _) = all(reserved.iter(), &[]);
        let short = |relay: &PeerId, how: &str| -> Multiaddr {
            format!("/ip4/10.77.0.11/{how}/p2p/{relay}/p2p-circuit").parse().unwrap()
        };
        assert_eq!(told, [short(&first, "tcp/1"), short(&second, "udp/1/quic-v1")].into());
        assert!(told.iter().all(|address| relay_of(address).is_some_and(|relay| relay != me)));
        assert_eq!(bounded(told.into_iter().collect(), &first).len(), 1, "not through ourselves");
    }

    #[test]
    fn names_stay_where_others_need_them() {
        let has = |address: &str| has_name(&address.parse().unwrap());
        assert!(has("/dns4/relay.example/tcp/443"));
        assert!(!has("/ip4/192.0.2.1/tcp/443") && !has("/dns4/relay.example/tcp/443/tls/ws"));
        assert!(!has("/dns/proxy.site/tcp/3128/http/dns4/relay.example/tcp/443"));
    }

    #[test]
    fn nobody_else_chooses_a_proxy() {
        let told = vec!["/ip4/192.0.2.1/tcp/3128/http/ip4/192.0.2.2/tcp/443".parse().unwrap()];
        assert!(bounded(told, &PeerId::random()).is_empty());
    }

    #[tokio::test]
    async fn names_become_numbers_and_the_rest_stays() {
        let resolved = resolve("/dns4/localhost/tcp/9/p2p-circuit".parse().unwrap()).await.unwrap();
        assert_eq!(resolved, ["/ip4/127.0.0.1/tcp/9/p2p-circuit".parse().unwrap()]);
    }
}
