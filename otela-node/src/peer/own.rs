//! This peer's own entry: what it says, and which run and version that is.

use super::config::PeerConfig;
use libp2p::Multiaddr;
use libp2p_identity::Keypair;
use otela_proto::{
    entry::{Draft, Entry, Rank, Refusal},
    id::{Epoch, MeshName, Session},
    lifecycle::Lifecycle,
    payload::{Hardware, PAYLOAD_BYTES_MAX, Payload, Service},
};
use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

/// What a peer says of itself, beyond what it knows by itself (addresses, roles, software).
#[derive(Debug, Clone, Default)]
pub struct Announcement {
    /// How far this session has come.
    pub lifecycle: Lifecycle,
    /// Accelerators and host.
    pub hardware: Option<Hardware>,
    /// Engines and their models.
    pub services: Vec<Service>,
    /// The provider's labels.
    pub labels: BTreeMap<String, String>,
    /// When the allocation ends, in milliseconds since the Unix epoch.
    pub ends_at_ms: Option<u64>,
    /// No new requests are wanted.
    pub draining: bool,
}

/// The writer of this peer's entry.
#[derive(Debug)]
pub(super) struct Own {
    key: Keypair,
    mesh: MeshName,
    base: Payload,
    announced: Announcement,
    addresses: Vec<Multiaddr>,
    epoch: Epoch,
    version: u64,
}

impl Own {
    pub(super) fn new(config: &PeerConfig) -> Self {
        let now_ms = unix_ms();
        let roles = config.roles.iter().map(|role| *role as i32).collect();
        let base = Payload { roles, software: config.software.clone(), started_at_ms: now_ms, ..Payload::default() };
        Self {
            key: config.identity.keypair().clone(),
            mesh: config.mesh.clone(),
            base,
            announced: Announcement::default(),
            addresses: Vec::new(),
            epoch: Epoch::at_start(now_ms, None),
            version: 0,
        }
    }

    pub(super) fn session(&self) -> Session {
        Session { peer: self.key.public().to_peer_id(), epoch: self.epoch }
    }

    /// Takes what is to be said from now on. A session never goes back: an earlier state is lifted to the present
    /// one.
    pub(super) fn announce(&mut self, mut announcement: Announcement) -> Result<(), Refusal> {
        let before = self.announced.lifecycle;
        announcement.lifecycle = before.max(announcement.lifecycle);
        if self.payload(&announcement).size_bytes() > PAYLOAD_BYTES_MAX {
            return Err(Refusal::TooLarge);
        }
        self.announced = announcement;
        Ok(())
    }

    /// From now on this session has left; what it was stays readable.
    pub(super) fn leave(&mut self) {
        self.announced.lifecycle = Lifecycle::Left;
    }

    /// The entry as it should read now, under a new version.
    pub(super) fn entry(&mut self, addresses: Vec<Multiaddr>) -> Result<Entry, Refusal> {
        self.addresses = addresses;
        self.version += 1;
        let rank = Rank { epoch: self.epoch, lifecycle: self.announced.lifecycle, version: self.version };
        let payload = self.payload(&self.announced);
        Entry::sign(&self.key, &self.mesh, Draft { rank, issued_at_ms: unix_ms(), payload })
    }

    /// Whether `rank`, the greatest of this peer that the mesh knows, is not of this run; if so, moves this run
    /// above it.
    pub(super) fn overtaken(&mut self, rank: Rank) -> bool {
        let overtaken = rank.epoch > self.epoch || rank.epoch == self.epoch && rank.version > self.version;
        if overtaken {
            self.epoch = Epoch::at_start(unix_ms(), Some(rank.epoch));
            self.version = 0;
        }
        overtaken
    }

    fn payload(&self, said: &Announcement) -> Payload {
        Payload {
            addresses: self.addresses.iter().map(Multiaddr::to_vec).collect(),
            hardware: said.hardware.clone(),
            services: said.services.clone(),
            labels: said.labels.clone(),
            ends_at_ms: said.ends_at_ms,
            draining: said.draining,
            ..self.base.clone()
        }
    }
}

pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
