//! `/dnsaddr/HOST`: TXT records at `_dnsaddr.HOST` name addresses, or further names.
//!
//! Who can write these records can make us ask and dial, so depth, questions and addresses are bounded.

use super::form::{List, ListError, peer_of};
use futures::future::join_all;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::{RData, RecordType},
};
use multiaddr::{Multiaddr, Protocol};
use otela_proto::PeerId;
use std::{collections::HashSet, net::SocketAddr, time::Duration};

/// Names that lead to names that lead to names.
const DEPTH_MAX: usize = 4;
/// Questions for one bootstrap.
const QUESTIONS_MAX: usize = 16;
/// Longest record that is read; an address of a peer is far shorter.
const RECORD_BYTES_MAX: usize = 1_024;
/// A name server has this long, and then once more.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Who is asked for names that stand for several addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dns {
    /// The name servers in `/etc/resolv.conf`, which is read for each question anew and may be missing.
    #[default]
    System,
    /// This one.
    Server(SocketAddr),
}

/// Why a name gave no address.
#[derive(Debug, thiserror::Error)]
pub(super) enum DnsError {
    /// There is nobody to ask.
    #[error("no name server can be asked, see /etc/resolv.conf")]
    Setup(#[source] NetError),
    /// The one that was asked knows nothing, or does not answer.
    #[error("no TXT records of {name}")]
    Lookup {
        name: String,
        #[source]
        source: NetError,
    },
    /// There are records, and none helps.
    #[error("the TXT records: {0}")]
    Useless(ListError),
}

impl Dns {
    /// The addresses that `host` stands for: of `peer`, if one is named, else of anybody.
    pub(super) async fn resolve(self, host: &str, peer: Option<PeerId>) -> Result<List, DnsError> {
        let resolver = self.resolver().map_err(DnsError::Setup)?;
        let mut walk = Walk::new(host, peer);
        let mut failed = None;
        // All names of one depth are asked at once: one whose server is slow does not hold up the others.
        while let Some(round) = walk.round() {
            let answers =
                join_all(round.iter().map(|asked| resolver.lookup(asked.name.as_str(), RecordType::TXT))).await;
            for (asked, answer) in round.into_iter().zip(answers) {
                match answer {
                    Ok(answer) => {
                        let records = answer.answers().iter().filter_map(|record| match &record.data {
                            RData::TXT(text) => Some(text.txt_data.concat()),
                            _ => None,
                        });
                        walk.answered(&asked, records);
                    }
                    // One name that is gone does not spoil the others.
                    Err(source) => failed = Some(DnsError::Lookup { name: asked.name, source }),
                }
            }
        }
        match (walk.list.useful(), failed) {
            (Ok(list), _) => Ok(list),
            (Err(_), Some(failed)) => Err(failed),
            (Err(useless), None) => Err(DnsError::Useless(useless)),
        }
    }

    fn resolver(self) -> Result<TokioResolver, NetError> {
        let mut builder = match self {
            Self::System => TokioResolver::builder_tokio()?,
            Self::Server(server) => {
                let at = |mut connection: ConnectionConfig| {
                    connection.port = server.port();
                    connection
                };
                let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(at).into();
                let server = NameServerConfig::new(server.ip(), true, connections);
                let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        builder.options_mut().timeout = ANSWER_WITHIN;
        builder.options_mut().attempts = 2;
        builder.build()
    }
}

/// The way from a name to addresses. It asks nobody itself.
struct Walk {
    /// What is to be asked next.
    names: Vec<Asked>,
    /// All that was ever to be asked.
    seen: HashSet<(String, Option<PeerId>)>,
    list: List,
}

/// One question.
struct Asked {
    name: String,
    /// The peer that its addresses must be of.
    wanted: Option<PeerId>,
    /// How many names led to it.
    depth: usize,
}

impl Walk {
    fn new(host: &str, peer: Option<PeerId>) -> Self {
        let mut walk = Self { names: Vec::new(), seen: HashSet::new(), list: List::default() };
        walk.add(host, peer, 0);
        walk
    }

    /// The questions to ask now; `None` when all have been.
    fn round(&mut self) -> Option<Vec<Asked>> {
        (!self.names.is_empty()).then(|| std::mem::take(&mut self.names))
    }

    /// These records are at the name that was asked for.
    fn answered(&mut self, asked: &Asked, records: impl Iterator<Item = Vec<u8>>) {
        let (wanted, depth) = (asked.wanted, asked.depth);
        for record in records {
            let text = (record.len() <= RECORD_BYTES_MAX).then(|| String::from_utf8(record).ok()).flatten();
            let address = text.as_deref().and_then(|text| text.strip_prefix("dnsaddr=")?.parse::<Multiaddr>().ok());
            let Some(address) = address else {
                self.list.passed_over += 1;
                continue;
            };
            match (name(&address), peer_of(&address)) {
                // Somebody else's.
                (_, Some(peer)) if wanted.is_some_and(|wanted| wanted != peer) => self.list.passed_over += 1,
                (Some(host), peer) => self.add(&host, peer.or(wanted), depth + 1),
                (None, None) if wanted.is_some() => self.list.passed_over += 1,
                (None, _) => self.list.add(Some(address)),
            }
        }
    }

    fn add(&mut self, host: &str, peer: Option<PeerId>, depth: usize) {
        let host = host.to_ascii_lowercase();
        if depth >= DEPTH_MAX || self.seen.len() >= QUESTIONS_MAX {
            self.list.passed_over += 1;
        } else if self.seen.insert((host.clone(), peer)) {
            // With a dot at its end it is looked for nowhere else.
            let name = format!("_dnsaddr.{}.", host.trim_end_matches('.'));
            self.names.push(Asked { name, wanted: peer, depth });
        }
    }
}

/// The name that an address leads to in place of a machine.
pub(super) fn name(address: &Multiaddr) -> Option<String> {
    match address.iter().next() {
        Some(Protocol::Dnsaddr(host)) => Some(host.into_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks through `zone`, which answers any name, and says how many questions that took.
    fn walk(peer: Option<PeerId>, zone: impl Fn(&str) -> Vec<String>) -> (List, usize) {
        let mut walk = Walk::new("Example.org", peer);
        let mut questions = 0;
        while let Some(round) = walk.round() {
            for asked in round {
                questions += 1;
                assert!(questions < 1_000, "without end");
                walk.answered(&asked, zone(&asked.name).into_iter().map(String::into_bytes));
            }
        }
        (walk.list, questions)
    }

    #[test]
    fn names_lead_to_names_and_to_addresses() {
        let [a, b] = [PeerId::random(), PeerId::random()];
        let zone = |name: &str| match name {
            "_dnsaddr.example.org." => vec![
                "v=spf1 -all".to_owned(),
                format!("dnsaddr=/ip4/192.0.2.1/tcp/7411/p2p/{a}"),
                format!("dnsaddr=/dnsaddr/more.example.org/p2p/{b}"),
            ],
            "_dnsaddr.more.example.org." => {
                vec![
                    format!("dnsaddr=/ip4/192.0.2.2/tcp/7411/p2p/{b}"),
                    format!("dnsaddr=/ip4/192.0.2.3/tcp/7411/p2p/{a}"),
                    "dnsaddr=/ip4/192.0.2.4/tcp/7411".to_owned(),
                ]
            }
            other => panic!("{other}"),
        };
        let (list, questions) = walk(None, zone);
        let wanted =
            [format!("/ip4/192.0.2.1/tcp/7411/p2p/{a}"), format!("/ip4/192.0.2.2/tcp/7411/p2p/{b}")].map(|text| {
                let address: Multiaddr = text.parse().unwrap();
                address
            });
        assert_eq!((list.addresses, questions), (wanted.to_vec(), 2));
        // The remark, and in the second place what is not of the peer that was promised.
        assert_eq!(list.passed_over, 3);
        let (list, questions) = walk(Some(a), zone);
        assert_eq!((list.addresses, questions), (wanted[..1].to_vec(), 1), "b's records are not even asked for");
    }

    #[test]
    fn hostile_records_cost_little() {
        let itself = |_: &str| vec!["dnsaddr=/dnsaddr/EXAMPLE.org".to_owned()];
        assert_eq!(walk(None, itself).1, 1, "a loop");
        let deeper = |name: &str| {
            let host = name.trim_start_matches("_dnsaddr.").trim_end_matches('.');
            vec![format!("dnsaddr=/dnsaddr/x.{host}")]
        };
        assert_eq!(walk(None, deeper).1, DEPTH_MAX);
        let wide = |name: &str| (0..500).map(|n| format!("dnsaddr=/dnsaddr/{n}.{}", name.len())).collect();
        let (list, questions) = walk(None, wide);
        assert_eq!(questions, QUESTIONS_MAX);
        assert!(list.passed_over >= 500 - QUESTIONS_MAX);
        let many = |_: &str| (1..=9_000).map(|port| format!("dnsaddr=/ip4/10.0.0.1/tcp/{port}")).collect();
        assert_eq!(walk(None, many).0.addresses.len(), super::super::form::ADDRESSES_MAX);
        let rubbish = |_: &str| {
            vec![
                format!("dnsaddr=/ip4/10.0.0.1/tcp/1{}", "/p2p-circuit".repeat(500)),
                "dnsaddr=".to_owned(),
                "dnsaddr=/ip4/10.0.0.1/tcp/1/p2p/nobody".to_owned(),
                "dnsaddr=/memory/7".to_owned(),
                String::new(),
            ]
        };
        assert_eq!(walk(None, rubbish).0, List { addresses: Vec::new(), passed_over: 5 });
    }
}
