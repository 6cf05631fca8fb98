//! Texts of the command line as values.

pub(super) use otela_node::peer::bootstrap::address;

use super::Whom;
use multiaddr::{Multiaddr, Protocol};
use otela_proto::engine_path;
use std::time::Duration;

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

/// Host and port of an engine.
pub(super) fn engine_url(text: &str) -> Result<(String, u16), String> {
    let example = "an example: http://127.0.0.1:8000";
    let url: url::Url = text.parse().map_err(|error| format!("not a URL ({error}); {example}"))?;
    let port = url.port_or_known_default();
    match (url.scheme(), url.host_str(), port, url.path().trim_end_matches('/')) {
        ("http", Some(host), Some(port), "" | "/v1") if url.query().is_none() => {
            Ok((host.trim_matches(['[', ']']).to_owned(), port))
        }
        ("http", ..) => Err(format!("only a host and a port; {example}")),
        _ => Err(format!("engines are asked by http:// on this machine or beside it; {example}")),
    }
}

/// The time between two looks at something.
pub(super) fn pause(text: &str) -> Result<Duration, String> {
    let pause = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(100)..=Duration::from_hours(24 * 30);
    if allowed.contains(&pause) { Ok(pause) } else { Err("not between 100ms and 30days".to_owned()) }
}

/// A label: `KEY=VALUE`.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not KEY=VALUE".to_owned()),
    }
}

/// The name of a service, as the Go implementation has it.
pub(super) fn service(text: &str) -> Result<String, String> {
    let is_legal = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char);
    let starts_well = text.starts_with(|char: char| char.is_ascii_alphanumeric());
    if starts_well && text.len() <= 80 && text.chars().all(is_legal) {
        Ok(text.to_owned())
    } else {
        Err("not 1 to 80 letters, digits, '.', '_' and '-', beginning with a letter or a digit".to_owned())
    }
}

/// A path that is opened to the mesh. All of an engine cannot be: its controls are among it.
pub(super) fn open_path(text: &str) -> Result<String, String> {
    if engine_path::is_opened(text, &[text.to_owned()]) && text != "/" {
        Ok(text.to_owned())
    } else {
        Err("not a plain path such as /v1/echo or /custom/; / itself cannot be opened".to_owned())
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
    fn services_and_paths_are_plain() {
        assert!(service("llm").is_ok() && service("a.b-c_1").is_ok());
        assert!(service("").is_err() && service("-a").is_err() && service("a/b").is_err());
        assert!(open_path("/v1/echo").is_ok() && open_path("/custom/").is_ok());
        for bad in ["", "/", "v1/echo", "/a/../b", "//a", "/a?b", "/a%2f"] {
            assert!(open_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn engines_have_a_host_and_a_port() {
        assert_eq!(engine_url("http://127.0.0.1:8000/v1"), Ok(("127.0.0.1".into(), 8000)));
        assert_eq!(engine_url("http://[::1]:7/"), Ok(("::1".into(), 7)));
        assert_eq!(engine_url("http://engine"), Ok(("engine".into(), 80)));
        for bad in ["https://a:1", "127.0.0.1:8000", "http://a:1/v2", "http://a:1?x", ""] {
            assert!(engine_url(bad).unwrap_err().contains("an example"), "{bad}");
        }
    }

    #[test]
    fn labels_need_a_key() {
        assert_eq!(label("a=b=c").unwrap(), ("a".into(), "b=c".into()));
        assert!(label("=b").is_err() && label("a").is_err());
    }
}
