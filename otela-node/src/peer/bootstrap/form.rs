//! How bootstraps are written: one address, and lists of them.
//!
//! Lists come from others, so everything about them is bounded. This file does no I/O, so that it can be fuzzed.

use multiaddr::{Multiaddr, Protocol};
use otela_proto::PeerId;
use serde_json::Value;
use std::net::IpAddr;

/// Longest list that is read.
pub(super) const BYTES_MAX: usize = 64 * 1024;
/// Most addresses that are taken from a list.
pub(super) const ADDRESSES_MAX: usize = 64;

/// Longest address that is read; those of peers behind several relays have some hundred bytes.
const ADDRESS_BYTES_MAX: usize = 1024;

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It begins like a multiaddress and is none.
    #[error("not a multiaddress ({0}); an example: /ip4/192.0.2.1/tcp/7411")]
    Multiaddr(String),
    /// It looks like nothing that is known here.
    #[error("neither HOST:PORT nor a multiaddress such as /ip4/192.0.2.1/tcp/7411 (is the port missing?)")]
    Unknown,
}

/// A peer's address: a multiaddress, or `HOST:PORT` for TCP.
///
/// # Errors
/// [`AddressError`].
pub fn address(text: &str) -> Result<Multiaddr, AddressError> {
    // To read a peer's id in it takes time by the square of its length, and lists come from others.
    if text.len() > ADDRESS_BYTES_MAX {
        return Err(AddressError::Unknown);
    }
    if text.starts_with('/') {
        return text.parse().map_err(|error: multiaddr::Error| AddressError::Multiaddr(error.to_string()));
    }
    let (host, port) = text.rsplit_once(':').ok_or(AddressError::Unknown)?;
    let port = port.parse().map_err(|_| AddressError::Unknown)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match host.parse::<IpAddr>() {
        Ok(ip) => Protocol::from(ip),
        Err(_) if host.is_empty() || host.contains([':', '/', ' ']) => return Err(AddressError::Unknown),
        Err(_) => Protocol::Dns(host.to_owned().into()),
    };
    Ok([host, Protocol::Tcp(port)].into_iter().collect())
}

/// What a list says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct List {
    /// Addresses that can be dialled, at most [`ADDRESSES_MAX`].
    pub(super) addresses: Vec<Multiaddr>,
    /// What else was there: no addresses, of kinds that cannot be dialled, or too many.
    pub(super) passed_over: usize,
}

/// Why a list is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListError {
    /// Longer than any list.
    #[error("it is longer than {BYTES_MAX} bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("it is not text")]
    NotText,
    /// It begins like JSON and is none.
    #[error("it is not JSON: {0}")]
    Json(String),
    /// JSON of another shape.
    #[error("it is JSON, but neither a list nor an object with the list `bootstraps`")]
    Shape,
    /// Nothing in it helps.
    #[error("none of its {0} entries is an address that can be dialled")]
    Useless(usize),
}

impl List {
    /// The list in `bytes`: a JSON list, an object with one named `bootstraps`, or an address in each line, where what
    /// begins with `#` is a remark.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, ListError> {
        if bytes.len() > BYTES_MAX {
            return Err(ListError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| ListError::NotText)?.trim();
        let mut list = Self::default();
        if text.starts_with(['[', '{']) {
            let entries = match serde_json::from_str(text).map_err(|error| ListError::Json(error.to_string()))? {
                Value::Array(entries) => entries,
                Value::Object(mut object) => match object.remove("bootstraps") {
                    Some(Value::Array(entries)) => entries,
                    _ => return Err(ListError::Shape),
                },
                _ => return Err(ListError::Shape),
            };
            entries.iter().for_each(|entry| list.add(entry.as_str().and_then(|text| address(text).ok())));
        } else {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.for_each(|line| list.add(address(line).ok()));
        }
        list.useful()
    }

    /// Takes an entry, which may be no address.
    pub(super) fn add(&mut self, entry: Option<Multiaddr>) {
        match entry {
            Some(address) if self.addresses.contains(&address) => {}
            Some(address) if can_be_dialled(&address) && self.addresses.len() < ADDRESSES_MAX => {
                self.addresses.push(address);
            }
            _ => self.passed_over += 1,
        }
    }

    /// This list, if there is an address in it.
    pub(super) fn useful(self) -> Result<Self, ListError> {
        if self.addresses.is_empty() { Err(ListError::Useless(self.passed_over)) } else { Ok(self) }
    }
}

/// The peer that an address ends with.
pub(crate) fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

/// Whether an address begins with a machine and a port. What else a transport needs, it will say.
pub(super) fn can_be_dialled(address: &Multiaddr) -> bool {
    let mut parts = address.iter();
    let host = parts.next().is_some_and(|part| {
        matches!(part, Protocol::Ip4(_) | Protocol::Ip6(_) | Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_))
    });
    host && match parts.next() {
        Some(Protocol::Tcp(1..)) => true,
        Some(Protocol::Udp(1..)) => parts.next() == Some(Protocol::QuicV1),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_both_forms() {
        for (text, address_text) in [
            ("/ip4/192.0.2.1/udp/7/quic-v1", "/ip4/192.0.2.1/udp/7/quic-v1"),
            ("192.0.2.1:7411", "/ip4/192.0.2.1/tcp/7411"),
            ("[2001:db8::1]:7411", "/ip6/2001:db8::1/tcp/7411"),
            ("relay.example:7411", "/dns/relay.example/tcp/7411"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), address_text);
        }
        for bad in ["", "relay", "relay:", ":7411", "relay:x", "/ip4/1", "a b:1", "2001:db8::1:x"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        // To read these would take minutes.
        for long in [format!("/ip4/192.0.2.1/tcp/1/p2p/{}", "z".repeat(1_000_000)), format!("{}:1", "a".repeat(2_000))]
        {
            assert_eq!(address(&long), Err(AddressError::Unknown));
        }
    }

    fn texts(list: &List) -> Vec<String> {
        list.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lists_in_every_form() {
        let wanted = ["/ip4/192.0.2.1/tcp/7411", "/dns/relay.example/tcp/443"];
        for text in [
            r#"["/ip4/192.0.2.1/tcp/7411", "relay.example:443"]"#,
            r#" {"bootstraps": ["/ip4/192.0.2.1/tcp/7411", "relay.example:443"], "more": 1}"#,
            "# ours\n/ip4/192.0.2.1/tcp/7411\r\n\n  relay.example:443  \n",
            "192.0.2.1:7411\n192.0.2.1:7411\nrelay.example:443",
        ] {
            let list = List::read(text.as_bytes()).unwrap();
            assert_eq!((texts(&list), list.passed_over), (wanted.map(String::from).into(), 0), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_dialled_is_passed_over_and_counted() {
        let text =
            r#"["/ip4/192.0.2.1/tcp/1", 7, null, "", "/memory/1", "/ip4/192.0.2.1", "/dnsaddr/x", "x:0", ["a:1"]]"#;
        let list = List::read(text.as_bytes()).unwrap();
        assert_eq!((texts(&list), list.passed_over), (vec!["/ip4/192.0.2.1/tcp/1".to_owned()], 8));
        let many: String = (1..=1_000).map(|port| format!("10.0.0.1:{port}\n")).collect();
        let list = List::read(many.as_bytes()).unwrap();
        assert_eq!((list.addresses.len(), list.passed_over), (ADDRESSES_MAX, 1_000 - ADDRESSES_MAX));
    }

    #[test]
    fn every_cause_is_told_apart() {
        assert_eq!(List::read(&vec![b'\n'; BYTES_MAX + 1]), Err(ListError::TooLong));
        assert_eq!(List::read(b"\xff"), Err(ListError::NotText));
        assert!(matches!(List::read(b"[\"10.0.0.1:1\""), Err(ListError::Json(_))));
        assert!(matches!(List::read(&vec![b'['; BYTES_MAX]), Err(ListError::Json(_))), "nested without end");
        assert_eq!(List::read(br#"{"nodes": []}"#), Err(ListError::Shape));
        assert_eq!(List::read(br#"{"bootstraps": "10.0.0.1:1"}"#), Err(ListError::Shape));
        assert_eq!(List::read(b""), Err(ListError::Useless(0)));
        assert_eq!(List::read(b"<html>\n<p>Please log in</p>\n</html>"), Err(ListError::Useless(3)));
    }
}
