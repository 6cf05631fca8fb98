//! Texts of the command line as values.

use multiaddr::{Multiaddr, Protocol};
use std::net::IpAddr;

/// A peer's address: a multiaddress, or `HOST:PORT` for TCP.
pub(super) fn address(text: &str) -> Result<Multiaddr, String> {
    if text.starts_with('/') {
        return text
            .parse()
            .map_err(|error| format!("not a multiaddress ({error}); an example: /ip4/192.0.2.1/tcp/7411"));
    }
    let wrong = || "neither a multiaddress such as /ip4/192.0.2.1/tcp/7411 nor HOST:PORT".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match host.parse::<IpAddr>() {
        Ok(ip) => Protocol::from(ip),
        Err(_) if host.is_empty() || host.contains([':', '/', ' ']) => return Err(wrong()),
        Err(_) => Protocol::Dns(host.to_owned().into()),
    };
    Ok([host, Protocol::Tcp(port)].into_iter().collect())
}

/// A label: `KEY=VALUE`.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".to_owned()),
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
    }

    #[test]
    fn labels_need_a_key() {
        assert_eq!(label("a=b=c").unwrap(), ("a".into(), "b=c".into()));
        assert!(label("=b").is_err() && label("a").is_err());
    }
}
