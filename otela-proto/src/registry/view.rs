//! What readers see: an immutable snapshot with an index from model to the replicas that serve it.

use super::Registry;
use crate::{
    accusation::Accusation,
    clock::Now,
    entry::Entry,
    id::Session,
    lifecycle::Lifecycle,
    payload::{ModelCard, Service},
    provider::{Provider, ProviderId, ProviderRules},
};
use libp2p_identity::PeerId;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

/// For how long a model counts as known after its last node has left on purpose: clients that ask for it are
/// told to come back (503) rather than that it does not exist (404).
const LEFT_MODEL_KNOWN_FOR: Duration = Duration::from_mins(5);

/// Certificates that last longer are judged again all the same.
const JUDGED_AGAIN_WITHIN: Duration = Duration::from_hours(24);

/// What this peer believes of a node, apart from what the node says of itself. Never travels. Times are on this
/// peer's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Belief {
    /// Nothing speaks against it.
    #[default]
    Alive,
    /// This peer could not reach it, since then: out of rotation here.
    Unreachable(Duration),
    /// It did not answer on any path, or somebody whom this peer trusts in this says so, since then: out of rotation.
    Suspect(Duration),
    /// A quorum has evicted it, at this time: it counts as Left.
    Evicted(Duration),
}

impl Belief {
    /// The belief's name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Unreachable(_) => "unreachable",
            Self::Suspect(_) => "suspect",
            Self::Evicted(_) => "evicted",
        }
    }

    /// Since when; alive is the rule and has no beginning.
    #[must_use]
    pub const fn since(self) -> Option<Duration> {
        match self {
            Self::Alive => None,
            Self::Unreachable(since) | Self::Suspect(since) | Self::Evicted(since) => Some(since),
        }
    }
}

/// A node in the view.
#[derive(Debug, Clone)]
pub struct Node {
    /// What the owner said last.
    pub entry: Entry,
    /// When that arrived here, on our own monotonic clock.
    pub learned_at: Duration,
    /// What we believe.
    pub belief: Belief,
    /// For whom it is run, and whether that is proven.
    pub provider: Provider,
    /// Who accuses it, and of what.
    pub accusations: Arc<[Accusation]>,
}

impl Node {
    /// Whether it is part of the mesh as seen from here: neither left nor evicted.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.departed_at().is_none()
    }

    /// Since when it has left or was evicted, on our own monotonic clock.
    #[must_use]
    pub fn departed_at(&self) -> Option<Duration> {
        match self.belief {
            _ if self.entry.rank().lifecycle == Lifecycle::Left => Some(self.learned_at),
            Belief::Evicted(since) => Some(since),
            Belief::Alive | Belief::Unreachable(_) | Belief::Suspect(_) => None,
        }
    }

    /// Whether new requests may go there.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        self.entry.rank().lifecycle == Lifecycle::Serving
            && self.belief == Belief::Alive
            && !self.entry.payload().draining
    }
}

/// One running engine that serves a model: the unit of picking.
#[derive(Debug, Clone)]
pub struct Replica {
    entry: Entry,
    provider: Option<ProviderId>,
    service: usize,
    model: usize,
}

impl Replica {
    /// The run of the node agent that serves it.
    #[must_use]
    pub fn session(&self) -> Session {
        self.entry.session()
    }

    /// The node's entry.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// For whom the node is run, if that is proven: what a trust filter asks for.
    #[must_use]
    pub fn provider(&self) -> Option<&ProviderId> {
        self.provider.as_ref()
    }

    /// The service that serves the model.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.entry.payload().services[self.service]
    }

    /// The model as the engine lists it.
    #[must_use]
    pub fn model(&self) -> &ModelCard {
        &self.service().models[self.model]
    }
}

/// Where a model stands.
#[derive(Debug, Clone, Default)]
pub struct ModelState {
    /// Replicas that may be picked, ordered by session.
    pub ready: Arc<[Arc<Replica>]>,
    /// Replicas that serve or load it but may not be picked now.
    pub unready: usize,
    /// The model stays known until then; `None` while a listed node announces it.
    known_until: Option<Duration>,
}

/// An immutable snapshot of the registry and of what we believe.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Grows with each snapshot of one peer.
    pub generation: u64,
    nodes: BTreeMap<PeerId, Node>,
    models: BTreeMap<Arc<str>, ModelState>,
    /// When the next model will cease to be known, the next node is no longer shown, or the next certificate begins or
    /// ends.
    stale_at: Option<Duration>,
}

impl View {
    /// A snapshot of `registry` at `now`, with what we believe of each owner; who is not in `beliefs` is alive.
    /// Departed nodes are shown for `retention`. Providers' certificates are judged by `rules` and by the wall clock;
    /// everything else goes by the monotonic one.
    #[must_use]
    pub fn build(
        registry: &Registry,
        beliefs: &HashMap<PeerId, Belief>,
        rules: &ProviderRules,
        clock: Now,
        retention: Duration,
        generation: u64,
    ) -> Self {
        let now = clock.mono;
        let mut nodes = BTreeMap::new();
        let mut stale_at = None;
        let mut drafts: BTreeMap<Arc<str>, Draft> = BTreeMap::new();
        for entry in registry.entries() {
            let owner = entry.owner();
            let node = Node {
                entry: entry.clone(),
                learned_at: registry.learned_at(&owner).unwrap_or(now),
                belief: beliefs.get(&owner).copied().unwrap_or_default(),
                provider: provider(entry, rules, clock.wall_ms),
                accusations: registry.accusations(&owner),
            };
            let hidden_at = node.departed_at().map(|at| at + retention);
            for (service, model, replica) in replicas(&node) {
                let state = drafts.entry(model.id.as_str().into()).or_default();
                state.add(&node, service, replica);
            }
            match hidden_at {
                Some(at) if at <= now => continue,
                Some(at) => stale_at = stale_at.into_iter().chain([at]).min(),
                None => {}
            }
            stale_at = stale_at.into_iter().chain(judged_again_at(entry, clock)).min();
            nodes.insert(owner, node);
        }
        let models: BTreeMap<Arc<str>, ModelState> = drafts
            .into_iter()
            .filter(|(_, draft)| draft.known_until.is_none_or(|until| now < until))
            .map(|(id, draft)| (id, draft.finish()))
            .collect();
        let stale_at = models.values().filter_map(|state| state.known_until).chain(stale_at).min();
        Self { generation, nodes, models, stale_at }
    }

    /// All nodes that the registry remembers, ordered by peer id; [`Node::is_listed`] tells the present ones.
    pub fn nodes(&self) -> impl Iterator<Item = (&PeerId, &Node)> {
        self.nodes.iter()
    }

    /// One node.
    #[must_use]
    pub fn node(&self, peer: &PeerId) -> Option<&Node> {
        self.nodes.get(peer)
    }

    /// Models that somebody serves or loads, ordered by id.
    pub fn models(&self) -> impl Iterator<Item = (&Arc<str>, &ModelState)> {
        self.models.iter()
    }

    /// Where `model` stands; `None` when nobody has announced it. Case counts.
    #[must_use]
    pub fn model(&self, model: &str) -> Option<(&Arc<str>, &ModelState)> {
        self.models.get_key_value(model)
    }

    /// The replicas of `node` that may be picked, in the order of its services and their models.
    #[must_use]
    pub fn replicas_of(&self, node: &PeerId) -> Vec<Arc<Replica>> {
        let routable = self.nodes.get(node).filter(|node| node.is_routable());
        let all = routable.into_iter().flat_map(replicas);
        all.filter(|(service, ..)| service.loading.is_empty()).map(|(.., replica)| Arc::new(replica)).collect()
    }

    /// One replica of each node that is ready to serve `service`, ordered by session; `None` when no listed node
    /// announces it.
    #[must_use]
    pub fn service(&self, service: &str) -> Option<Vec<Arc<Replica>>> {
        let mut announce = self
            .nodes
            .iter()
            .filter(|(_, node)| node.is_listed() && node.entry.payload().services.iter().any(|s| s.name == service))
            .peekable();
        announce.peek()?;
        let ready = announce.filter_map(|(peer, _)| {
            self.replicas_of(peer).into_iter().find(|replica| replica.service().name == service)
        });
        Some(ready.collect())
    }

    /// When the next model will cease to be known, the next departed node be shown no more, or the next certificate of a
    /// provider begin or end, on the monotonic clock of [`View::build`].
    #[must_use]
    pub fn stale_at(&self) -> Option<Duration> {
        self.stale_at
    }
}

#[derive(Default)]
struct Draft {
    ready: Vec<Arc<Replica>>,
    unready: usize,
    known_until: Option<Duration>,
    announced: bool,
}

impl Draft {
    fn add(&mut self, node: &Node, service: &Service, replica: Replica) {
        if node.is_routable() && service.loading.is_empty() {
            self.ready.push(Arc::new(replica));
        } else if node.is_listed() {
            self.unready += 1;
        } else {
            if let Some(since) = node.departed_at()
                && !self.announced
            {
                self.known_until = self.known_until.max(Some(since + LEFT_MODEL_KNOWN_FOR));
            }
            return;
        }
        self.announced = true;
        self.known_until = None;
    }

    fn finish(self) -> ModelState {
        ModelState { ready: self.ready.into(), unready: self.unready, known_until: self.known_until }
    }
}

fn provider(entry: &Entry, rules: &ProviderRules, now_ms: u64) -> Provider {
    Provider::judge(entry.certificate(), &entry.owner(), &entry.payload().labels, rules, now_ms)
}

/// When time alone may change what is made of the certificate that `entry` shows.
fn judged_again_at(entry: &Entry, clock: Now) -> Option<Duration> {
    let certificate = entry.certificate()?.as_ref().ok()?;
    let change_ms = certificate.terms().validity.next_change_ms(clock.wall_ms)?;
    // Anybody can sign for any time; a timer is not to be set for the end of the world.
    Some(clock.mono + Duration::from_millis(change_ms - clock.wall_ms).min(JUDGED_AGAIN_WITHIN))
}

fn replicas(node: &Node) -> impl Iterator<Item = (&Service, &ModelCard, Replica)> {
    let (entry, provider) = (&node.entry, node.provider.verified().copied());
    entry.payload().services.iter().enumerate().flat_map(move |(s, service)| {
        service.models.iter().enumerate().map(move |(m, model)| {
            let replica = Replica { entry: entry.clone(), provider, service: s, model: m };
            (service, model, replica)
        })
    })
}
