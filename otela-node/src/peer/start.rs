//! How a peer starts: its tasks, and the channels between them.

use super::{
    Inbound, Inner, ListenError, Peer, PeerConfig, TransportError,
    admission::Admission,
    bootstrap::{self, Troubles},
    defaults::{DRIVER_QUEUE, HTTP_QUEUE, LISTS_QUEUE},
    gossip, link, metrics, probe, provider,
    state::Keeper,
    streams, swarm, tunnel,
};
use crate::{tasks::Tasks, telemetry::Metrics};
use libp2p::StreamProtocol;
use otela_proto::{
    id::MeshName,
    wire::{gossip_protocol, http_protocol, kademlia_protocol, probe_protocol},
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, watch};

/// Why a peer cannot start. Nothing was left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configured address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The key does not suit the transports.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl Peer {
    /// Starts a peer on `tasks`. It listens when this returns; it joins the mesh in the background. The receiver
    /// gives the substreams on which other peers send HTTP requests (for [`tunnel::serve`]); without
    /// [`PeerConfig::serves_http`] none arrive.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(
        config: PeerConfig,
        tasks: &Tasks,
        metrics: &Metrics,
    ) -> Result<(Self, mpsc::Receiver<Inbound>), StartError> {
        let id = config.identity.keypair().public().to_peer_id();
        let protocols = Protocols::of(&config.mesh);
        let counters = metrics::PeerMetrics::register(metrics);
        let offered = protocols.offered(config.serves_http);
        let (behaviour, streams, inbound) =
            streams::Behaviour::new(offered, protocols.gossip.clone(), counters.streams_refused.clone());
        let (events, event_queue) = gossip::Driver::queue();
        let (commands, command_queue) = mpsc::channel(DRIVER_QUEUE);
        let (published, swarm::Seen { addresses, reach, deserted, troubles }) = swarm::Published::new();
        let (told, told_queue) = mpsc::channel(LISTS_QUEUE);
        let door = Admission::start(&config, counters.tally.clone(), tasks);
        let driver = swarm::Driver::new(
            &config,
            (behaviour, streams.clone(), protocols.kademlia.clone()),
            door.clone(),
            swarm::Channels { commands: command_queue, told: told_queue, events: events.clone(), published },
            counters.clone(),
        )?;
        let published = gossip::Published::new(id);
        let gossip = gossip::Driver::new(
            &config,
            streams.clone(),
            gossip::Channels {
                protocol: protocols.gossip.clone(),
                events: event_queue,
                events_to_self: events.clone(),
                commands: commands.clone(),
                addresses: addresses.clone(),
                door: door.clone(),
            },
            published.clone(),
            counters.clone(),
            tasks,
        );
        tasks.spawn_to_end(driver.run(tasks.clone()));
        tasks.spawn_to_end(gossip.run(tasks.clone()));
        look_after_lists(&config, (told, deserted, troubles.clone()), &published, &counters, tasks);
        provider::start(&config, &door, &events, tasks);
        let (takers, http_queue) = Takers::new(&config.mesh, &streams, (&events, &commands), &counters);
        tasks.spawn(dispatch(inbound, protocols.clone(), takers, tasks.clone()));
        let inner = Inner {
            id,
            mesh: config.mesh,
            streams,
            tunnel: tunnel::Tunnel::new(protocols.http, tasks.clone()),
            probe: protocols.probe,
            published,
            addresses,
            reach,
            events,
            commands,
            metrics: counters,
            admission: door,
            troubles,
            tls: config.egress.tls.validity(),
            provider_of_file: config.provider.is_some_and(|provider| provider.is_of_file()),
            started_unix_ms: gossip::unix_ms(),
            _identity: config.identity,
        };
        let peer = Self { inner: Arc::new(inner) };
        if !config.listen.is_empty() {
            peer.listening().await;
        }
        Ok((peer, http_queue))
    }

    /// Waits until the operating system has given us our addresses.
    async fn listening(&self) {
        let (mut addresses, mut reach) = (self.inner.addresses.clone(), self.inner.reach.clone());
        let given = async {
            tokio::select! {
                _ = addresses.wait_for(|addresses| !addresses.is_empty()) => {}
                _ = reach.wait_for(|reach| !reach.left_out.is_empty()) => {}
            }
        };
        if tokio::time::timeout(Duration::from_secs(2), given).await.is_err() {
            tracing::warn!("no address to listen on yet: is there a network interface?");
        }
    }
}

/// Follows the bootstraps that stand for others, and keeps what a peer remembers, if it was told where.
fn look_after_lists(
    config: &PeerConfig,
    (told, deserted, troubles): (mpsc::Sender<bootstrap::Told>, watch::Receiver<bool>, Troubles),
    published: &gossip::Published,
    metrics: &metrics::PeerMetrics,
    tasks: &Tasks,
) {
    let bootstraps = config.bootstraps();
    let lists = watch::Sender::new(config.state.as_ref().map(|s| s.lists(&bootstraps)).unwrap_or_default());
    if let Some(state) = config.state.clone() {
        let session_lasts = config.identity.is_kept();
        let keeper = Keeper::new(state, session_lasts, published.clone(), lists.subscribe(), metrics.clone());
        tasks.spawn_to_end(keeper.run(tasks.clone()));
    }
    let shared = bootstrap::Shared { dns: config.dns, told, lists, deserted, troubles, metrics: metrics.clone() };
    bootstrap::follow(bootstraps, &shared, tasks);
}

/// The names of a mesh's protocols.
#[derive(Debug, Clone)]
pub(super) struct Protocols {
    pub(super) gossip: StreamProtocol,
    pub(super) probe: StreamProtocol,
    pub(super) http: StreamProtocol,
    pub(super) kademlia: StreamProtocol,
}

impl Protocols {
    pub(super) fn of(mesh: &MeshName) -> Self {
        let protocol = |name| StreamProtocol::try_from_owned(name).expect("a protocol name starts with a slash");
        let of = |name: fn(&MeshName) -> String| protocol(name(mesh));
        Self {
            gossip: of(gossip_protocol),
            probe: of(probe_protocol),
            http: of(http_protocol),
            kademlia: of(kademlia_protocol),
        }
    }

    fn offered(&self, http: bool) -> Vec<StreamProtocol> {
        let http = http.then(|| self.http.clone());
        [self.gossip.clone(), self.probe.clone()].into_iter().chain(http).collect()
    }
}

/// Who takes up inbound substreams.
struct Takers {
    gossip: link::Reader,
    probe: probe::Answerer,
    http: mpsc::Sender<Inbound>,
}

impl Takers {
    /// Those of a peer, and the queue of substreams that carry HTTP.
    fn new(
        mesh: &MeshName,
        streams: &streams::Streams,
        (events, commands): (&mpsc::Sender<gossip::Event>, &mpsc::Sender<swarm::Command>),
        metrics: &metrics::PeerMetrics,
    ) -> (Self, mpsc::Receiver<Inbound>) {
        let (http, http_queue) = mpsc::channel(HTTP_QUEUE);
        let gossip = link::Reader::new(mesh.clone(), events.clone(), metrics.clone());
        let probe = probe::Answerer::new(streams.clone(), commands.clone(), metrics.clone());
        (Self { gossip, probe, http }, http_queue)
    }
}

/// Hands inbound substreams to whom they are for.
async fn dispatch(mut inbound: mpsc::Receiver<Inbound>, protocols: Protocols, takers: Takers, tasks: Tasks) {
    while let Some(stream) = inbound.recv().await {
        if stream.protocol == protocols.gossip {
            tasks.spawn(takers.gossip.clone().read(stream.peer, stream.stream));
        } else if stream.protocol == protocols.probe {
            tasks.spawn(takers.probe.clone().answer(stream.peer, stream.stream));
        } else if takers.http.try_send(stream).is_err() {
            // Dropping resets the substream: the caller tries another node.
            tracing::warn!("request stream refused: the agent does not keep up");
        }
    }
}
