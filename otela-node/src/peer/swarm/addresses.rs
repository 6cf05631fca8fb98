//! Addresses: which of ours are worth telling, and which numbers stand behind the names in others'.

use libp2p::{Multiaddr, multiaddr::Protocol};
use std::{collections::BTreeSet, io};

/// The addresses worth telling others: configured ones, and those we listen on. Loopback and link-local ones
/// only when there is nothing else, that is on a machine that talks to itself.
pub(super) fn announced<'a>(
    listening: impl Iterator<Item = &'a Multiaddr>,
    external: &[Multiaddr],
) -> BTreeSet<Multiaddr> {
    let (near, far): (BTreeSet<_>, BTreeSet<_>) = listening.cloned().partition(is_near);
    let addresses: BTreeSet<_> = external.iter().cloned().chain(far).collect();
    if addresses.is_empty() { near } else { addresses }
}

fn is_near(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => ip.is_loopback() || ip.is_link_local(),
        Some(Protocol::Ip6(ip)) => ip.is_loopback() || ip.is_unicast_link_local(),
        _ => false,
    }
}

/// Whether a resolver is needed before it can be dialled.
pub(super) fn has_name(address: &Multiaddr) -> bool {
    matches!(address.iter().next(), Some(Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_)))
}

/// Names are resolved by the system's resolver, which knows what the site's administrators set up. One name that
/// cannot be resolved does not spoil the other addresses.
pub(super) async fn resolve_all(addresses: Vec<Multiaddr>) -> io::Result<Vec<Multiaddr>> {
    let (mut found, mut failed) = (Vec::new(), None);
    for address in addresses {
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

    #[test]
    fn loopback_is_announced_only_when_there_is_nothing_else() {
        let near: Multiaddr = "/ip4/127.0.0.1/tcp/1".parse().unwrap();
        let far: Multiaddr = "/ip4/10.0.0.7/tcp/1".parse().unwrap();
        let public: Multiaddr = "/dns4/relay.example/tcp/443".parse().unwrap();
        let set = |addresses: &[&Multiaddr]| addresses.iter().map(|a| (*a).clone()).collect::<BTreeSet<_>>();
        assert_eq!(announced([&near].into_iter(), &[]), set(&[&near]));
        assert_eq!(announced([&near, &far].into_iter(), &[]), set(&[&far]));
        assert_eq!(announced([&near].into_iter(), std::slice::from_ref(&public)), set(&[&public]));
    }

    #[tokio::test]
    async fn names_become_numbers_and_the_rest_stays() {
        let resolved = resolve("/dns4/localhost/tcp/9/p2p-circuit".parse().unwrap()).await.unwrap();
        assert_eq!(resolved, ["/ip4/127.0.0.1/tcp/9/p2p-circuit".parse().unwrap()]);
    }
}
