//! Kademlia, reduced to a memory of public peers and to the question for more of them.
//!
//! libp2p's behaviour left to itself dials whomever it hears of, and with each new peer asks everybody around: among
//! 128 peers that is a full mesh and half a core. So the one here is on a short lead. It never dials: whom it would
//! dial it reports, and the driver decides. It asks only in a search that the driver has begun. Its table is fed with
//! addresses that their owners have signed, and it stores nothing for others.
//!
//! What it adds to the registry is that it forgets nobody because of age: k-buckets keep a peer that is gone until
//! another one takes its place.

use crate::peer::{defaults::LOOKUP_WITHIN, metrics::PeerMetrics};
use libp2p::{
    Multiaddr, PeerId, StreamProtocol,
    core::{Endpoint, transport::PortUse},
    kad::{
        self, Mode, ProviderRecord, QueryId, QueryResult, Record, RecordKey,
        store::{Error, RecordStore, Result as StoreResult},
    },
    swarm::{
        ConnectionDenied, ConnectionId, DialError, DialFailure, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent,
        THandlerOutEvent, ToSwarm,
    },
};
use std::{
    borrow::Cow,
    collections::HashMap,
    iter,
    task::{Context, Poll},
};

type Inner = kad::Behaviour<Nothing>;

/// What is told to the driver.
#[derive(Debug)]
pub(super) enum Event {
    /// A peer that is connected answers others.
    Public(PeerId),
    /// There is said to be a peer at these addresses. Who says so may lie.
    Found(PeerId, Vec<Multiaddr>),
    /// The search is over.
    Searched,
}

/// The behaviour.
pub(super) struct Behaviour {
    inner: Inner,
    /// What the table was fed with last.
    fed: HashMap<PeerId, Vec<Multiaddr>>,
    search: Option<QueryId>,
    metrics: PeerMetrics,
}

impl Behaviour {
    /// The behaviour of `me`, which answers others if it is `public`.
    pub(super) fn new(me: PeerId, protocol: StreamProtocol, public: bool, metrics: PeerMetrics) -> Self {
        let mut config = kad::Config::new(protocol);
        config
            .set_query_timeout(LOOKUP_WITHIN)
            .set_kbucket_inserts(kad::BucketInserts::Manual)
            .set_caching(kad::Caching::Disabled)
            .set_periodic_bootstrap_interval(None)
            .set_replication_interval(None)
            .set_publication_interval(None)
            .set_provider_publication_interval(None);
        let mut inner = Inner::with_config(me, Nothing { metrics: metrics.clone() }, config);
        // By itself it would take an address at a relay for a sign of being public.
        inner.set_mode(Some(if public { Mode::Server } else { Mode::Client }));
        Self { inner, fed: HashMap::new(), search: None, metrics }
    }

    /// These are public peers, at these addresses of their own. Those that were named before stay in the table.
    pub(super) fn feed(&mut self, public: impl IntoIterator<Item = (PeerId, Vec<Multiaddr>)>) {
        let public: HashMap<_, _> = public.into_iter().filter(|(_, addresses)| !addresses.is_empty()).collect();
        for (peer, addresses) in &public {
            if self.fed.get(peer) != Some(addresses) {
                self.inner.remove_peer(peer);
                for address in addresses {
                    self.inner.add_address(peer, address.clone());
                }
            }
        }
        if self.fed != public {
            self.fed = public;
            self.ask_nobody();
            let known: usize = self.inner.kbuckets().map(|bucket| bucket.num_entries()).sum();
            self.metrics.lookup_peers.set(i64::try_from(known).unwrap_or(i64::MAX));
        }
    }

    /// Half a second after a peer is added the table would be refreshed, which nobody can forbid it. A refresh that has
    /// begun keeps others from beginning, and one that is finished before it is polled asks nobody.
    fn ask_nobody(&mut self) {
        if let Ok(id) = self.inner.bootstrap() {
            self.finish(id);
        }
    }

    fn finish(&mut self, id: QueryId) {
        if let Some(mut query) = self.inner.query_mut(&id) {
            query.finish();
        }
    }

    /// Asks the public peers that are connected for those nearest to some place in the key space. Returns whether there
    /// is somebody in the table at all.
    pub(super) fn search(&mut self) -> bool {
        if self.search.is_some() || self.inner.kbuckets().next().is_none() {
            return false;
        }
        self.metrics.lookups.inc();
        self.search = Some(self.inner.get_closest_peers(PeerId::random()));
        true
    }

    /// What the inner behaviour makes of its news.
    fn on_event(&mut self, event: &kad::Event) -> Option<Event> {
        match event {
            kad::Event::OutboundQueryProgressed { id, result: QueryResult::Bootstrap(_), .. } => {
                // It goes on with the next bucket, if there is one.
                self.finish(*id);
                None
            }
            kad::Event::OutboundQueryProgressed { id, step, .. } if step.last && self.search == Some(*id) => {
                self.search = None;
                Some(Event::Searched)
            }
            kad::Event::RoutablePeer { peer, .. } | kad::Event::UnroutablePeer { peer } => Some(Event::Public(*peer)),
            kad::Event::InboundRequest { request: kad::InboundRequest::FindNode { .. } } => {
                self.metrics.lookups_answered.inc();
                None
            }
            _ => None,
        }
    }

    /// Says no to a dial, and what is known of where it would have led.
    fn on_dial(&mut self, peer: PeerId, id: ConnectionId) -> Option<Event> {
        let known = self.inner.handle_pending_outbound_connection(id, Some(peer), &[], Endpoint::Dialer);
        let denied = DialFailure { peer_id: Some(peer), error: &DialError::Aborted, connection_id: id };
        self.inner.on_swarm_event(FromSwarm::DialFailure(denied));
        self.search?;
        known.ok().filter(|addresses| !addresses.is_empty()).map(|addresses| Event::Found(peer, addresses))
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = <Inner as NetworkBehaviour>::ConnectionHandler;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        connection_id: ConnectionId,
        peer: PeerId,
        local_addr: &Multiaddr,
        remote_addr: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_inbound_connection(connection_id, peer, local_addr, remote_addr)
    }

    fn handle_established_outbound_connection(
        &mut self,
        connection_id: ConnectionId,
        peer: PeerId,
        addr: &Multiaddr,
        role_override: Endpoint,
        port_use: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.inner.handle_established_outbound_connection(connection_id, peer, addr, role_override, port_use)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            // It would refresh its empty table.
            FromSwarm::NewListenAddr(_) => {}
            // Where a peer was that cannot be reached now is what is worth remembering.
            FromSwarm::DialFailure(_) => {}
            other => self.inner.on_swarm_event(other),
        }
    }

    fn on_connection_handler_event(&mut self, peer: PeerId, id: ConnectionId, event: THandlerOutEvent<Self>) {
        self.inner.on_connection_handler_event(peer, id, event);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        while let Poll::Ready(ready) = self.inner.poll(cx) {
            let event = match ready {
                ToSwarm::Dial { opts } => opts.get_peer_id().and_then(|peer| self.on_dial(peer, opts.connection_id())),
                ToSwarm::GenerateEvent(event) => self.on_event(&event),
                other => return Poll::Ready(other.map_out(|_| Event::Searched)),
            };
            if let Some(event) = event {
                return Poll::Ready(ToSwarm::GenerateEvent(event));
            }
        }
        Poll::Pending
    }
}

/// A store that takes nothing.
pub(super) struct Nothing {
    metrics: PeerMetrics,
}

impl RecordStore for Nothing {
    type RecordsIter<'a> = iter::Empty<Cow<'a, Record>>;
    type ProvidedIter<'a> = iter::Empty<Cow<'a, ProviderRecord>>;

    fn get(&self, _: &RecordKey) -> Option<Cow<'_, Record>> {
        None
    }

    fn put(&mut self, _: Record) -> StoreResult<()> {
        self.metrics.lookups_refused.inc();
        Err(Error::MaxRecords)
    }

    fn remove(&mut self, _: &RecordKey) {}

    fn records(&self) -> Self::RecordsIter<'_> {
        iter::empty()
    }

    fn add_provider(&mut self, _: ProviderRecord) -> StoreResult<()> {
        self.metrics.lookups_refused.inc();
        Err(Error::MaxProvidedKeys)
    }

    fn providers(&self, _: &RecordKey) -> Vec<ProviderRecord> {
        Vec::new()
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        iter::empty()
    }

    fn remove_provider(&mut self, _: &RecordKey, _: &PeerId) {}
}
