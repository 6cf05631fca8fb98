//! Where a peer is, as far as that matters: peers of one site share its fate.

use crate::{entry::Entry, own::SITE_LABEL};
use multiaddr::{Multiaddr, Protocol};

/// The site of an entry's owner: its label `site`, or else the network of its first address (16 bits of IPv4, 32 of
/// IPv6). Peers without either are taken for neighbours.
pub(super) fn of(entry: &Entry) -> String {
    let payload = entry.payload();
    payload
        .labels
        .get(SITE_LABEL)
        .cloned()
        .unwrap_or_else(|| payload.multiaddrs().find_map(|address| network(&address)).unwrap_or_default())
}

fn network(address: &Multiaddr) -> Option<String> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(format!("{}.{}", ip.octets()[0], ip.octets()[1])),
        Protocol::Ip6(ip) => Some(format!("{:x}:{:x}", ip.segments()[0], ip.segments()[1])),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => Some(name.into_owned()),
        _ => None,
    }
}
