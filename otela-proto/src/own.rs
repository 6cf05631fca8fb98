//! What a peer says of itself, and which run and version that is; the signer of its statements.

use crate::{
    accusation::{Accusation, Charge},
    assignment::{Assigned, Claim, Offer},
    entry::{Draft, Entry, Rank},
    id::{Epoch, MeshName, Session},
    lifecycle::Lifecycle,
    payload::{Hardware, PAYLOAD_BYTES_MAX, Payload, Role, Service},
    sign::Refusal,
};
use libp2p_identity::{Keypair, PeerId};
use multiaddr::Multiaddr;
use std::collections::BTreeMap;

/// The label by which a peer names its site.
pub const SITE_LABEL: &str = "site";

/// What a peer says of itself, beyond what it knows by itself (addresses, roles, software).
#[derive(Debug, Clone, Default, PartialEq)]
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
    /// What the node can be told to serve, and by whom.
    pub offer: Option<Offer>,
    /// What it was told to serve last.
    pub assigned: Option<Assigned>,
    /// A scheduler's claim to be the one that acts.
    pub claim: Option<Claim>,
}

/// The writer of one peer's entry.
#[derive(Debug)]
pub struct Own {
    key: Keypair,
    id: PeerId,
    mesh: MeshName,
    base: Payload,
    announced: Announcement,
    addresses: Vec<Multiaddr>,
    epoch: Epoch,
    version: u64,
}

impl Own {
    /// A new session of the owner of `key`, above `highest`, the last epoch of this key that is known. `now_ms` is
    /// wall time in milliseconds since the Unix epoch.
    #[must_use]
    pub fn new(
        key: Keypair,
        mesh: MeshName,
        roles: &[Role],
        software: String,
        highest: Option<Epoch>,
        now_ms: u64,
    ) -> Self {
        let roles = roles.iter().map(|role| *role as i32).collect();
        let base = Payload { roles, software, started_at_ms: now_ms, ..Payload::default() };
        Self {
            id: key.public().to_peer_id(),
            key,
            mesh,
            base,
            announced: Announcement::default(),
            addresses: Vec::new(),
            epoch: Epoch::at_start(now_ms, highest),
            version: 0,
        }
    }

    /// Publishes `site` as the label of that name, unless the announcement has one of its own.
    #[must_use]
    pub fn at_site(mut self, site: Option<String>) -> Self {
        self.base.labels.extend(site.map(|site| (SITE_LABEL.to_owned(), site)));
        self
    }

    /// Shows this provider certificate, encoded; an empty one is none.
    #[must_use]
    pub fn certified(mut self, certificate: Vec<u8>) -> Self {
        self.base.provider_certificate = certificate;
        self
    }

    /// Whose entry it is.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// This run.
    #[must_use]
    pub fn session(&self) -> Session {
        Session { peer: self.id, epoch: self.epoch }
    }

    /// The rank of what was published last.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank { epoch: self.epoch, lifecycle: self.announced.lifecycle, version: self.version }
    }

    /// What is said.
    #[must_use]
    pub fn announced(&self) -> &Announcement {
        &self.announced
    }

    /// Whether `announcement` can be published.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if others would not take it.
    pub fn fits(&self, announcement: &Announcement) -> Result<(), Refusal> {
        let size_bytes = self.payload(announcement).size_bytes();
        if size_bytes > PAYLOAD_BYTES_MAX { Err(Refusal::TooLarge) } else { Ok(()) }
    }

    /// Whether `announcement` is what was published last: then there is nothing to say.
    #[must_use]
    pub fn has_said(&self, announcement: &Announcement) -> bool {
        self.version > 0 && self.announced == *announcement
    }

    /// Takes what is to be said from now on. A session never goes back: an earlier state is lifted to the present
    /// one.
    ///
    /// # Errors
    /// As [`Self::fits`]. What was said before stands.
    pub fn announce(&mut self, mut announcement: Announcement) -> Result<(), Refusal> {
        self.fits(&announcement)?;
        announcement.lifecycle = self.announced.lifecycle.max(announcement.lifecycle);
        self.announced = announcement;
        Ok(())
    }

    /// Takes the addresses at which the peer can be dialled.
    pub fn set_addresses(&mut self, addresses: Vec<Multiaddr>) {
        self.addresses = addresses;
    }

    /// Takes the provider certificate to be shown from now on, as in [`Self::certified`].
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if others would not take the entry with it. What was shown before stands.
    pub fn set_certificate(&mut self, certificate: Vec<u8>) -> Result<(), Refusal> {
        let before = std::mem::replace(&mut self.base.provider_certificate, certificate);
        self.fits(&self.announced).inspect_err(|_| self.base.provider_certificate = before)
    }

    /// Takes the membership to be shown from now on, encoded; an empty one is none.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if others would not take the entry with it. What was shown before stands.
    pub fn set_membership(&mut self, membership: Vec<u8>) -> Result<(), Refusal> {
        let before = std::mem::replace(&mut self.base.membership, membership);
        self.fits(&self.announced).inspect_err(|_| self.base.membership = before)
    }

    /// The membership that is shown, encoded.
    #[must_use]
    pub fn membership(&self) -> &[u8] {
        &self.base.membership
    }

    /// From now on this session has left; what it was stays readable.
    pub fn leave(&mut self) {
        self.announced.lifecycle = Lifecycle::Left;
    }

    /// The entry as it should read now, under a new version.
    ///
    /// # Errors
    /// [`Refusal::TooLarge`] if the addresses have made it so.
    pub fn publish(&mut self, now_ms: u64) -> Result<Entry, Refusal> {
        self.version += 1;
        let payload = self.payload(&self.announced);
        Entry::sign(&self.key, &self.mesh, Draft { rank: self.rank(), issued_at_ms: now_ms, payload })
    }

    /// Starts a new session above `seen`: this one was evicted, or the mesh knows a later one.
    pub fn renew_session(&mut self, seen: Epoch, now_ms: u64) {
        self.epoch = Epoch::at_start(now_ms, Some(seen.max(self.epoch)));
        self.version = 0;
    }

    /// Starts a new session by the peer's own will, in which it says this; whatever came before.
    ///
    /// # Errors
    /// As [`Self::fits`]. The old session stands.
    pub fn begin_again(&mut self, announcement: Announcement, now_ms: u64) -> Result<(), Refusal> {
        self.fits(&announcement)?;
        self.renew_session(self.epoch, now_ms);
        self.announced = announcement;
        Ok(())
    }

    /// Signs an accusation.
    ///
    /// # Errors
    /// [`Refusal::NotEd25519`].
    pub fn accuse(&self, charge: Charge, now_ms: u64) -> Result<Accusation, Refusal> {
        Accusation::sign(&self.key, &self.mesh, charge, now_ms)
    }

    fn payload(&self, said: &Announcement) -> Payload {
        Payload {
            addresses: self.addresses.iter().map(Multiaddr::to_vec).collect(),
            hardware: said.hardware.clone(),
            services: said.services.clone(),
            labels: self.base.labels.iter().chain(&said.labels).map(|(k, v)| (k.clone(), v.clone())).collect(),
            ends_at_ms: said.ends_at_ms,
            draining: said.draining,
            offer: said.offer.clone(),
            assigned: said.assigned.clone(),
            claim: said.claim,
            ..self.base.clone()
        }
    }
}
