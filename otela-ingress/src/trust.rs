//! The trust filter (OpenTela section 3.3): of the candidates, those whose provider the caller trusts. It comes before
//! everything else and holds for every attempt: nothing is dispatched outside it, not on a retry, not when hedging, not
//! when a stream is continued.

use crate::candidate::{Candidate, NoCandidate, Pool};
use otela_proto::provider::ProviderId;
use std::{collections::BTreeSet, sync::Arc};

/// As many as anybody lists.
const PROVIDERS_MAX: usize = 256;

/// The providers whom a caller trusts. Never empty: an empty list is refused when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Trusted(BTreeSet<ProviderId>);

/// A list that cannot be used. It is the message to the client; going on without the list would be unsafe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidTrust {
    #[error("The list of trusted providers is empty: name some, or leave it out to trust everybody.")]
    Empty,
    #[error("At most {PROVIDERS_MAX} trusted providers can be named.")]
    TooMany,
    #[error("{0:?} is not a provider's id: one looks like 12D3KooW… and is shown by /v1/registry/nodes.")]
    NotAnId(String),
}

impl Trusted {
    /// Reads a list of ids.
    pub(crate) fn of<'a>(ids: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidTrust> {
        let mut trusted = BTreeSet::new();
        for (nth, id) in ids.into_iter().map(str::trim).filter(|id| !id.is_empty()).enumerate() {
            // Also one that is named again and again has to be read each time.
            if nth >= PROVIDERS_MAX {
                return Err(InvalidTrust::TooMany);
            }
            let provider = id.parse().map_err(|_| InvalidTrust::NotAnId(id.chars().take(80).collect()))?;
            trusted.insert(provider);
        }
        if trusted.is_empty() { Err(InvalidTrust::Empty) } else { Ok(Self(trusted)) }
    }

    /// Those in both lists; `None` if there are none.
    pub(crate) fn and(self, other: &Self) -> Option<Self> {
        let both: BTreeSet<_> = self.0.intersection(&other.0).copied().collect();
        (!both.is_empty()).then_some(Self(both))
    }

    /// Whether the list has it. A node that has not proven its provider is in no list.
    fn has(&self, provider: Option<&ProviderId>) -> bool {
        provider.is_some_and(|provider| self.0.contains(provider))
    }
}

/// Of the candidates, those that may be used.
pub(crate) fn filter(pool: &Pool, trusted: Option<&Trusted>) -> Result<Vec<Arc<Candidate>>, NoCandidate> {
    let Some(trusted) = trusted else { return Ok(pool.all().to_vec()) };
    let ready: Vec<_> = pool.all().iter().filter(|candidate| trusted.has(candidate.provider())).cloned().collect();
    if ready.is_empty() {
        return Err(NoCandidate::Untrusted { ready: pool.all().len(), awaited: is_awaited(pool, trusted) });
    }
    Ok(ready)
}

/// Whether a trusted provider has a node that announces what is wanted and is not ready now.
fn is_awaited(pool: &Pool, trusted: &Trusted) -> bool {
    let wanted = pool.wanted();
    pool.view().nodes().any(|(peer, node)| {
        let is_meant = wanted.node.is_none_or(|wanted| wanted == *peer);
        let announces = |name: &String| node.entry.payload().models().any(|(_, model)| model.id == *name);
        is_meant
            && node.is_listed()
            && trusted.has(node.provider.verified())
            && wanted.model.as_ref().is_some_and(announces)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p_identity::Keypair;

    #[test]
    fn lists_are_read_or_refused() {
        let [a, b] = [1, 2].map(|n| {
            let key = Keypair::ed25519_from_bytes([n; 32]).unwrap();
            ProviderId::of(&key).unwrap().to_string()
        });
        let both = Trusted::of([a.as_str(), " ", &format!(" {b} ")]).unwrap();
        assert_eq!(both.0.len(), 2);
        assert_eq!(Trusted::of(["", " "]), Err(InvalidTrust::Empty));
        assert!(matches!(Trusted::of([a.as_str(), "eth"]), Err(InvalidTrust::NotAnId(id)) if id == "eth"));
        assert_eq!(Trusted::of(vec![a.as_str(); PROVIDERS_MAX]).unwrap().0.len(), 1);
        assert_eq!(Trusted::of(vec![a.as_str(); PROVIDERS_MAX + 1]), Err(InvalidTrust::TooMany));
        let only_a = Trusted::of([a.as_str()]).unwrap();
        assert_eq!(both.clone().and(&only_a), Some(only_a.clone()));
        assert_eq!(only_a.and(&Trusted::of([b.as_str()]).unwrap()), None, "nothing is left, and nobody is trusted");
        assert!(!both.has(None));
    }
}
