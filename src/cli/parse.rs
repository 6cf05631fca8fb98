//! Texts of the command line as values.

pub(super) use otela_node::peer::bootstrap::address;

use super::Whom;
use multiaddr::{Multiaddr, Protocol};

/// A peer: its id, or a multiaddress that ends in it.
pub(super) fn whom(text: &str) -> Result<Whom, String> {
    let wrong = || "neither a peer's id such as 12D3KooW… nor a multiaddress that ends in /p2p/ID".to_owned();
    if !text.starts_with('/') {
        let peer = text.parse().map_err(|_| wrong())?;
        return Ok(Whom { peer, address: None });
    }
    let address: Multiaddr = address(text).map_err(|error| error.to_string())?;
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Ok(Whom { peer, address: Some(address) }),
        _ => Err(wrong()),
    }
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
    fn peers_by_id_and_by_address() {
        let id = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
        assert_eq!(whom(id).unwrap(), Whom { peer: id.parse().unwrap(), address: None });
        let long = format!("/ip4/192.0.2.1/tcp/7411/p2p/{id}");
        assert_eq!(whom(&long).unwrap().address.unwrap().to_string(), long);
        for bad in
            ["", "node1", "/ip4/192.0.2.1/tcp/7411", "/ip4/1", &format!("/ip4/192.0.2.1/tcp/1/p2p/{id}/p2p-circuit")]
        {
            assert!(
                whom(bad).unwrap_err().contains("an example") || whom(bad).unwrap_err().contains("/p2p/ID"),
                "{bad}"
            );
        }
    }

    #[test]
    fn labels_need_a_key() {
        assert_eq!(label("a=b=c").unwrap(), ("a".into(), "b=c".into()));
        assert!(label("=b").is_err() && label("a").is_err());
    }
}
