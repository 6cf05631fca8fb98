//! The form of a state file: a line with form, version and checksum, then JSON.
//!
//! The checksum is there because a flipped bit in JSON is often JSON again, and an epoch read wrongly by one digit
//! would count for ever. This file does no I/O, so that it can be fuzzed.

use multiaddr::Multiaddr;
use otela_proto::{
    PeerId,
    id::{Epoch, MeshName},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fmt::Write as _};

/// Longest file that is read. What is written is far shorter.
pub(super) const BYTES_MAX: usize = 1024 * 1024;
/// Most peers that are remembered.
pub(super) const PEERS_MAX: usize = 64;
/// Most addresses of one of them.
pub(super) const ADDRESSES_MAX: usize = 8;
/// Most lists of bootstraps that are remembered.
pub(super) const LISTS_MAX: usize = 8;
/// Most addresses of one of them.
pub(super) const LISTED_MAX: usize = 64;
/// Most peers whose own epoch is remembered: one for each key that is used with the directory.
pub(super) const OWN_MAX: usize = 8;

const FORM: &str = "otela-state/";
const VERSION: u32 = 1;

/// A peer and where it was last known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) peer: PeerId,
    pub(crate) addresses: Vec<Multiaddr>,
}

/// What a state file says. The first of each list is the one to keep longest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Saved {
    /// The last epoch of peers that ran with this directory.
    pub(super) own: Vec<(PeerId, Epoch)>,
    /// Others.
    pub(super) peers: Vec<Known>,
    /// The last good answer of names and lists that bootstraps are found by, by how they were configured.
    pub(super) lists: BTreeMap<String, Vec<Multiaddr>>,
}

/// Why a state file is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    /// Something else, or its head is broken.
    #[error("it is not an otela state file")]
    Foreign,
    /// Written by a newer otela.
    #[error("it has version {0}, and this otela reads version {VERSION}")]
    Version(u32),
    /// Cut short or altered.
    #[error("it is damaged: the checksum does not match")]
    Checksum,
    /// Longer than any state.
    #[error("it is longer than {BYTES_MAX} bytes")]
    TooLong,
    /// Of another mesh.
    #[error("it belongs to another mesh")]
    OtherMesh,
    /// Whole, and yet not to be understood.
    #[error("its content makes no sense: {0}")]
    Content(String),
}

#[derive(Serialize, Deserialize)]
struct Body {
    mesh: String,
    own: Vec<OwnText>,
    peers: Vec<KnownText>,
    /// Not in files of the first otelas.
    #[serde(default)]
    lists: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
struct OwnText {
    peer: String,
    epoch: u64,
}

#[derive(Serialize, Deserialize)]
struct KnownText {
    peer: String,
    addresses: Vec<String>,
}

/// The file that says `saved`, no longer than [`BYTES_MAX`].
pub(super) fn encode(saved: &Saved, mesh: &MeshName) -> Vec<u8> {
    let own = saved.own.iter().take(OWN_MAX);
    let peers = saved.peers.iter().take(PEERS_MAX);
    let body = Body {
        mesh: mesh.to_string(),
        own: own.map(|(peer, epoch)| OwnText { peer: peer.to_string(), epoch: epoch.0 }).collect(),
        peers: peers
            .map(|known| KnownText {
                peer: known.peer.to_string(),
                addresses: known.addresses.iter().take(ADDRESSES_MAX).map(ToString::to_string).collect(),
            })
            .collect(),
        lists: saved
            .lists
            .iter()
            .take(LISTS_MAX)
            .map(|(list, addresses)| {
                (list.clone(), addresses.iter().take(LISTED_MAX).map(ToString::to_string).collect())
            })
            .collect(),
    };
    let body = serde_json::to_string_pretty(&body).expect("strings and numbers are JSON");
    with_head(body.as_bytes())
}

/// `body` behind its head.
pub(super) fn with_head(body: &[u8]) -> Vec<u8> {
    let mut head = format!("{FORM}{VERSION} sha256=");
    for byte in Sha256::digest(body) {
        // Writing into a string cannot fail.
        let _ = write!(head, "{byte:02x}");
    }
    head.push('\n');
    [head.as_bytes(), body].concat()
}

/// What `bytes` say, if they are a whole state file of `mesh`.
pub(super) fn decode(bytes: &[u8], mesh: &MeshName) -> Result<Saved, Damage> {
    if bytes.len() > BYTES_MAX {
        return Err(Damage::TooLong);
    }
    let line = bytes.iter().position(|byte| *byte == b'\n').ok_or(Damage::Foreign)?;
    let body = &bytes[line + 1..];
    let head = std::str::from_utf8(&bytes[..line]).ok().and_then(|head| head.strip_prefix(FORM));
    let (version, _) = head.and_then(|head| head.split_once(' ')).ok_or(Damage::Foreign)?;
    let version = version.parse().map_err(|_| Damage::Foreign)?;
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    if with_head(body) != bytes {
        return Err(Damage::Checksum);
    }
    let body: Body = serde_json::from_slice(body).map_err(|error| Damage::Content(error.to_string()))?;
    if body.mesh != mesh.as_str() {
        return Err(Damage::OtherMesh);
    }
    let own = body.own.iter().take(OWN_MAX).map(|own| Ok((peer(&own.peer)?, Epoch(own.epoch))));
    let peers = body.peers.iter().take(PEERS_MAX).map(|known| {
        // An address of a kind that we do not know is no reason to lose the others.
        let addresses = known.addresses.iter().filter_map(|address| address.parse().ok()).take(ADDRESSES_MAX);
        Ok(Known { peer: peer(&known.peer)?, addresses: addresses.collect() })
    });
    let lists = body.lists.into_iter().take(LISTS_MAX).map(|(list, addresses)| {
        let addresses = addresses.iter().filter_map(|address| address.parse().ok()).take(LISTED_MAX);
        (list, addresses.collect())
    });
    Ok(Saved {
        own: own.collect::<Result<_, Damage>>()?,
        peers: peers.collect::<Result<_, Damage>>()?,
        lists: lists.collect(),
    })
}

fn peer(text: &str) -> Result<PeerId, Damage> {
    text.parse().map_err(|_| Damage::Content(format!("{text:?} is not a peer id")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> MeshName {
        "lab".parse().unwrap()
    }

    fn saved() -> Saved {
        let known = |n: u16| Known {
            peer: PeerId::random(),
            addresses: (0..2).map(|m| format!("/ip4/10.0.0.{m}/tcp/{}", 7_000 + n).parse().unwrap()).collect(),
        };
        let lists = [("/dnsaddr/example.org".to_owned(), vec!["/dns/relay.example/tcp/443".parse().unwrap()])];
        Saved {
            own: vec![(PeerId::random(), Epoch(u64::MAX - 1))],
            peers: (0..3).map(known).collect(),
            lists: lists.into(),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        for saved in [Saved::default(), saved()] {
            assert_eq!(decode(&encode(&saved, &mesh()), &mesh()).unwrap(), saved);
        }
    }

    #[test]
    fn cut_off_anywhere_it_is_refused() {
        let whole = encode(&saved(), &mesh());
        for length in 0..whole.len() {
            assert!(decode(&whole[..length], &mesh()).is_err(), "{length} of {} bytes", whole.len());
        }
        assert!(decode(&[&whole[..], b"x"].concat(), &mesh()).is_err());
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let whole = encode(&saved(), &mesh());
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(decode(&flipped, &mesh()).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn every_cause_is_told_apart() {
        let whole = encode(&saved(), &mesh());
        let newer = [b"otela-state/2", &whole["otela-state/1".len()..]].concat();
        let content = |body: &str| decode(&with_head(body.as_bytes()), &mesh());
        assert!(matches!(decode(&newer, &mesh()), Err(Damage::Version(2))));
        assert!(matches!(decode(&whole, &"other".parse().unwrap()), Err(Damage::OtherMesh)));
        assert!(matches!(decode(b"", &mesh()), Err(Damage::Foreign)));
        assert!(matches!(decode(b"\x7fELF\n", &mesh()), Err(Damage::Foreign)));
        assert!(matches!(decode(&vec![b' '; BYTES_MAX + 1], &mesh()), Err(Damage::TooLong)));
        assert!(matches!(content("[]"), Err(Damage::Content(_))));
        assert!(matches!(
            content(r#"{"mesh":"lab","own":[{"peer":"me","epoch":1}],"peers":[]}"#),
            Err(Damage::Content(_))
        ));
    }

    #[test]
    fn lists_are_bounded_and_unknown_addresses_passed_over() {
        let many = Saved {
            own: (0..100).map(|n| (PeerId::random(), Epoch(n))).collect(),
            peers: (0..1_000)
                .map(|_| Known { peer: PeerId::random(), addresses: vec!["/ip4/10.0.0.1/tcp/1".parse().unwrap(); 50] })
                .collect(),
            lists: (0..100)
                .map(|n| (format!("http://{n}"), vec!["/ip4/10.0.0.1/tcp/1".parse().unwrap(); 99]))
                .collect(),
        };
        let read = decode(&encode(&many, &mesh()), &mesh()).unwrap();
        assert_eq!((read.own.len(), read.peers.len()), (OWN_MAX, PEERS_MAX));
        assert_eq!((read.own[0], &read.peers[0].peer), (many.own[0], &many.peers[0].peer));
        assert!(read.peers.iter().all(|known| known.addresses.len() == ADDRESSES_MAX));
        assert!(read.lists.len() == LISTS_MAX && read.lists.values().all(|list| list.len() == LISTED_MAX));
        let body = format!(
            r#"{{"mesh":"lab","own":[],"peers":[{{"peer":"{}","addresses":["/warp/9","/ip4/10.0.0.1/tcp/1"]}}]}}"#,
            PeerId::random()
        );
        assert_eq!(decode(&with_head(body.as_bytes()), &mesh()).unwrap().peers[0].addresses.len(), 1);
    }
}
