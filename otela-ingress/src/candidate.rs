//! From what a request asks for to the replicas that may be picked: the registry's view, indexed once for each of its
//! generations.

use crate::{
    require::{Facts, Requirements, Unmet},
    standing::{Standing, Standings},
    trust::Trusted,
};
use arc_swap::ArcSwap;
use http::HeaderValue;
use otela_node::peer::Peer;
use otela_proto::{
    PeerId,
    id::Session,
    provider::ProviderId,
    registry::{Replica, View},
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

/// Questions whose answers are kept for one generation of the view.
const POOLS_MAX: usize = 4_096;
/// Selectors whose answers are kept for one question.
const SELECTORS_MAX: usize = 64;

/// What a request asks for. All that is given must hold; a model, a service or a node is always given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    /// A model, exactly as the client wrote it.
    pub(crate) model: Option<String>,
    /// A service by its name.
    pub(crate) service: Option<String>,
    /// One node.
    pub(crate) node: Option<PeerId>,
    /// A label of the node and its value.
    pub(crate) label: Option<(String, String)>,
}

impl Wanted {
    /// A short name for queues, policies and logs. Never empty.
    pub(crate) fn name(&self) -> &str {
        self.model.as_deref().or(self.service.as_deref()).unwrap_or("node")
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.model, &self.service) {
            (Some(model), None) => write!(f, "The model `{}`", shortened(model))?,
            (Some(model), Some(service)) => {
                write!(f, "The model `{}` of the service `{}`", shortened(model), shortened(service))?;
            }
            (None, Some(service)) => write!(f, "The service `{}`", shortened(service))?,
            (None, None) => f.write_str("What was asked for")?,
        }
        if let Some(node) = &self.node {
            write!(f, " on node {node}")?;
        }
        if let Some((key, value)) = &self.label {
            write!(f, " on nodes with {}={}", shortened(key), shortened(value))?;
        }
        Ok(())
    }
}

/// A client's own text, repeated to it: bounded, since it may be of any length.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Which candidates a request allows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Selector {
    /// Whom the caller trusts; `None` trusts everybody.
    pub(crate) trusted: Option<Trusted>,
    pub(crate) require: Requirements,
}

/// A replica that may be picked.
#[derive(Debug)]
pub(crate) struct Candidate {
    replica: Arc<Replica>,
    facts: Facts,
    standing: Arc<Standing>,
    tag: u64,
    /// The node's id as text, which every answer and every line of the log has.
    name: HeaderValue,
}

impl Candidate {
    fn new(replica: &Arc<Replica>, standings: &Standings) -> Self {
        let session = replica.session();
        Self {
            replica: Arc::clone(replica),
            facts: Facts::of(replica),
            standing: standings.of(session),
            tag: tag(&session.peer),
            name: HeaderValue::from_str(&session.peer.to_base58()).expect("base58 is ASCII"),
        }
    }

    pub(crate) fn replica(&self) -> &Replica {
        &self.replica
    }

    pub(crate) fn session(&self) -> Session {
        self.replica.session()
    }

    pub(crate) fn node(&self) -> PeerId {
        self.replica.session().peer
    }

    /// The node's id as the value of a header.
    pub(crate) fn name(&self) -> &HeaderValue {
        &self.name
    }

    /// Whom the node is run for, if it has proven that.
    pub(crate) fn provider(&self) -> Option<&ProviderId> {
        self.replica.provider()
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// What it has to do, see [`crate::standing::Load::weight`].
    pub(crate) fn load(&self) -> f64 {
        self.standing.load.weight()
    }

    /// A number of the node's own, the same on every ingress.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    /// How long the node's allocation still lasts at `unix_ms`; `None` if it has no end.
    pub(crate) fn ends_in(&self, unix_ms: u64) -> Option<Duration> {
        let end = self.replica.entry().payload().ends_at_ms?;
        Some(Duration::from_millis(end.saturating_sub(unix_ms)))
    }

    /// Whether its engine can do what is called `feature` in the registry.
    pub(crate) fn has_feature(&self, feature: &str) -> bool {
        self.replica.service().features.iter().any(|has| has == feature)
    }
}

/// The first bytes of a peer id's digest of its own: peer ids are hashes or keys, so they are random enough.
fn tag(peer: &PeerId) -> u64 {
    let bytes = peer.to_bytes();
    let tail = bytes.last_chunk::<8>().copied().unwrap_or_default();
    u64::from_be_bytes(tail)
}

/// Why there is no candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoCandidate {
    /// Nobody has ever announced it: asking again is pointless.
    Unknown,
    /// This ingress has not heard of its mesh yet: asking again may help.
    Joining,
    /// It is known, but nobody is ready to serve it now: asking again may help.
    NotReady,
    /// None of the replicas that are ready is of a provider whom the caller trusts.
    Untrusted {
        /// Replicas that are ready.
        ready: usize,
        /// Whether a trusted provider has one that is not ready.
        awaited: bool,
    },
    /// None of the trusted replicas that are ready meets the requirements.
    Unmet {
        /// Trusted replicas that are ready.
        of: usize,
        /// What is wrong with them.
        unmet: Vec<Unmet>,
    },
}

impl NoCandidate {
    /// What it means that the registry does not know it.
    pub(crate) fn unknown(has_joined: bool) -> Self {
        if has_joined { Self::Unknown } else { Self::Joining }
    }
}

type Fit = Result<Arc<[Arc<Candidate>]>, NoCandidate>;

/// The ready replicas for one question.
#[derive(Debug)]
pub(crate) struct Pool {
    view: Arc<View>,
    wanted: Wanted,
    all: Arc<[Arc<Candidate>]>,
    fit: Mutex<Vec<(Selector, Fit)>>,
}

impl Pool {
    /// The candidates that `selector` allows, ordered by session, as `filter` finds them; found once for each view.
    pub(crate) fn fit(&self, selector: &Selector, filter: impl FnOnce(&Self) -> Fit) -> Fit {
        if *selector == Selector::default() {
            return Ok(Arc::clone(&self.all));
        }
        let mut known = self.fit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, fit)) = known.iter().find(|(of, _)| of == selector) {
            return fit.clone();
        }
        let fit = filter(self);
        if known.len() >= SELECTORS_MAX {
            known.clear();
        }
        known.push((selector.clone(), fit.clone()));
        fit
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Arc<Candidate>] {
        &self.all
    }

    /// The view that they are from.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// What they are for.
    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }
}

/// The candidates of the newest view.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    now: ArcSwap<Index>,
    pub(crate) standings: Standings,
}

#[derive(Debug, Default)]
struct Index {
    generation: u64,
    pools: RwLock<HashMap<Wanted, Arc<Pool>>>,
    /// Those of the view before, whose candidates are used again where nothing has changed.
    before: HashMap<Wanted, Arc<Pool>>,
}

impl Candidates {
    /// The replicas that are ready to serve what is `wanted`. Never waits.
    pub(crate) fn of(&self, peer: &Peer, wanted: &Wanted) -> Result<Arc<Pool>, NoCandidate> {
        self.of_view(&peer.view(), wanted, || peer.has_joined())
    }

    pub(crate) fn of_view(
        &self,
        view: &Arc<View>,
        wanted: &Wanted,
        has_joined: impl FnOnce() -> bool,
    ) -> Result<Arc<Pool>, NoCandidate> {
        let mut index = self.now.load_full();
        if index.generation != view.generation {
            self.standings.keep(view);
            let before = index.pools.read().unwrap_or_else(PoisonError::into_inner).clone();
            index = Arc::new(Index { generation: view.generation, pools: RwLock::default(), before });
            self.now.store(Arc::clone(&index));
        }
        if let Some(pool) = index.pools.read().unwrap_or_else(PoisonError::into_inner).get(wanted) {
            return Ok(Arc::clone(pool));
        }
        let ready = ready(view, wanted, has_joined)?;
        let pool = Arc::new(Pool {
            view: Arc::clone(view),
            wanted: wanted.clone(),
            all: self.candidates(&ready, index.before.get(wanted)),
            fit: Mutex::default(),
        });
        let mut pools = index.pools.write().unwrap_or_else(PoisonError::into_inner);
        if pools.len() >= POOLS_MAX {
            pools.clear();
        }
        pools.insert(wanted.clone(), Arc::clone(&pool));
        Ok(pool)
    }

    fn candidates(&self, ready: &[Arc<Replica>], before: Option<&Arc<Pool>>) -> Arc<[Arc<Candidate>]> {
        let known: BTreeMap<_, _> = before
            .iter()
            .flat_map(|pool| pool.all.iter())
            .map(|candidate| ((candidate.session(), candidate.replica.entry().rank()), candidate))
            .collect();
        ready
            .iter()
            .map(|replica| match known.get(&(replica.session(), replica.entry().rank())) {
                // The registry says the same of it, but for the provider, which time alone may change.
                Some(known) if known.provider() == replica.provider() => Arc::clone(known),
                _ => Arc::new(Candidate::new(replica, &self.standings)),
            })
            .collect()
    }
}

/// The ready replicas of `view`, ordered by session.
fn ready(view: &View, wanted: &Wanted, has_joined: impl FnOnce() -> bool) -> Result<Vec<Arc<Replica>>, NoCandidate> {
    let all = match (&wanted.model, &wanted.service, &wanted.node) {
        (Some(model), ..) => view.model(model).map(|(_, state)| state.ready.to_vec()),
        (None, Some(service), _) => view.service(service),
        (None, None, Some(node)) => view.node(node).map(|_| view.replicas_of(node)),
        (None, None, None) => None,
    };
    let Some(all) = all else { return Err(NoCandidate::unknown(has_joined())) };
    let is_there = wanted.node.is_none_or(|node| view.node(&node).is_some())
        && wanted.service.as_ref().is_none_or(|service| view.service(service).is_some());
    if !is_there {
        return Err(NoCandidate::unknown(has_joined()));
    }
    let is_wanted = |replica: &Arc<Replica>| {
        let labels = &replica.entry().payload().labels;
        wanted.service.as_ref().is_none_or(|service| replica.service().name == *service)
            && wanted.node.is_none_or(|node| replica.session().peer == node)
            && wanted.label.as_ref().is_none_or(|(key, value)| labels.get(key) == Some(value))
    };
    let ready: Vec<_> = all.into_iter().filter(is_wanted).collect();
    match ready.is_empty() {
        true if is_announced(view, wanted) => Err(NoCandidate::NotReady),
        true => Err(NoCandidate::unknown(has_joined())),
        false => Ok(ready),
    }
}

/// Whether somebody has the service and the label that are wanted, ready or not: what nobody has is not waited for.
fn is_announced(view: &View, wanted: &Wanted) -> bool {
    view.nodes().any(|(_, node)| {
        let payload = node.entry.payload();
        let serves = |service: &String| payload.services.iter().any(|announced| announced.name == *service);
        wanted.service.as_ref().is_none_or(serves)
            && wanted.label.as_ref().is_none_or(|(key, value)| payload.labels.get(key) == Some(value))
    })
}

#[cfg(test)]
pub(crate) mod tests;
