//! What peers say that break the rules: signed bytes of every wrong kind, made by hand and sent past the core.

use super::{
    host::{WALL_START_MS, announcement, key},
    world::{World, mesh},
};
use bytes::Bytes;
use libp2p_identity::{Keypair, PeerId};
use otela_proto::{
    accusation::{Accusation, Charge, Verdict},
    clock::millis,
    entry::{CLOCK_SLACK, Draft, Entry, Rank, TTL},
    id::{Epoch, MeshName},
    lifecycle::Lifecycle,
    payload::{PAYLOAD_BYTES_MAX, Payload, Role},
    wire::{self, Entries, EntryBody, Frame, Say, Signed},
};
use prost::Message;
use std::time::Duration;

/// Wrong entries about another peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// Names the victim as owner, is signed by the liar.
    WrongSigner,
    /// The victim's own entry with its addresses replaced and the signature kept.
    Altered,
    /// The victim's own entry, as it stands, with a field behind it that decoders skip.
    Longer,
    /// The victim's signature for another mesh.
    OtherMesh,
    /// Issued well ahead, by the victim's own key.
    FromTheFuture,
    /// Issued long ago, by the victim's own key.
    Expired,
    /// Not protobuf.
    Noise,
    /// Ten thousand models, of the liar's own.
    ManyModels,
    /// Labels of 1 MiB, of the liar's own.
    LargeLabels,
}

/// All of them.
pub(crate) const FORGERIES: [Forgery; 9] = [
    Forgery::WrongSigner,
    Forgery::Altered,
    Forgery::Longer,
    Forgery::OtherMesh,
    Forgery::FromTheFuture,
    Forgery::Expired,
    Forgery::Noise,
    Forgery::ManyModels,
    Forgery::LargeLabels,
];

impl Forgery {
    /// The reason for which it must be refused.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::WrongSigner | Self::Altered | Self::OtherMesh => "bad_signature",
            Self::FromTheFuture => "from_the_future",
            Self::Expired => "expired",
            Self::Noise | Self::Longer => "malformed",
            Self::ManyModels => "too_large",
            // Its frame is: a reader does not even look at the entry.
            Self::LargeLabels => "frame_too_large",
        }
    }
}

impl World {
    /// The bytes of a forgery by `liar` about `victim`.
    pub(crate) fn forge(&self, liar: usize, victim: usize, forgery: Forgery) -> Vec<u8> {
        let (liar, victim) = (&self.hosts[liar], &self.hosts[victim]);
        let epoch = victim.member.as_ref().map_or(1, |member| member.session().epoch.0) + 1;
        let rank = Rank { epoch: Epoch(epoch), lifecycle: Lifecycle::Left, version: 1 };
        let now_ms = WALL_START_MS + self.now.as_millis() as u64;
        let draft = |issued_at_ms| Draft { rank, issued_at_ms, payload: Payload::default() };
        let sign = |key: &Keypair, mesh: &MeshName, draft: Draft| {
            Entry::sign(key, mesh, draft).expect("an Ed25519 key signs").signed().to_vec()
        };
        match forgery {
            Forgery::WrongSigner => {
                let own = sign(&liar.key, &mesh(), draft(now_ms));
                altered(&own, |body| body.owner = victim.peer.to_bytes())
            }
            Forgery::Altered => {
                let own = sign(&victim.key, &mesh(), draft(now_ms));
                let payload = Payload { addresses: vec![liar.address().to_vec()], ..Payload::default() };
                altered(&own, |body| body.payload = payload.encode_to_vec())
            }
            Forgery::Longer => {
                let known = liar.member.as_ref().and_then(|member| member.registry().get(&victim.peer));
                let mut longer =
                    known.map_or_else(|| sign(&victim.key, &mesh(), draft(now_ms)), |e| e.signed().to_vec());
                longer.extend([0x78, 1]);
                longer
            }
            Forgery::OtherMesh => sign(&victim.key, &"other".parse().expect("legal"), draft(now_ms)),
            Forgery::FromTheFuture => sign(&victim.key, &mesh(), draft(now_ms + 3 * millis(CLOCK_SLACK))),
            Forgery::Expired => sign(&victim.key, &mesh(), draft(now_ms - millis(TTL + 3 * CLOCK_SLACK))),
            Forgery::Noise => vec![0xff; 300],
            Forgery::ManyModels => {
                let mut services = announcement(0, 0, 0).services;
                let model = services[0].models[0].clone();
                services[0].models = vec![model; 10_000];
                oversize(&liar.key, epoch, now_ms, &Payload { services, ..Payload::default() })
            }
            Forgery::LargeLabels => {
                let labels = [("site".to_owned(), "x".repeat(1 << 20))].into();
                oversize(&liar.key, epoch, now_ms, &Payload { labels, ..Payload::default() })
            }
        }
    }

    /// Sends raw statements to everybody who is linked to `from`.
    pub(crate) fn broadcast(&mut self, from: usize, signed: &[Vec<u8>], accusations: &[Vec<u8>]) {
        let neighbours: Vec<PeerId> = self.hosts[from].links.keys().copied().collect();
        for to in neighbours {
            let bytes = |list: &[Vec<u8>]| list.iter().cloned().map(Bytes::from).collect();
            let page = Entries { signed: bytes(signed), accusations: bytes(accusations) };
            if let Some(link) = self.hosts[from].links.get(&to).copied() {
                self.send(link, self.side_of(link, from), Frame { say: Some(Say::Entries(page)) });
            }
        }
    }

    /// An accusation by `liar` of what it knows of `victim`.
    pub(crate) fn accusation(&self, liar: usize, victim: &PeerId, verdict: Verdict) -> Option<Vec<u8>> {
        let liar = &self.hosts[liar];
        let rank = liar.member.as_ref()?.registry().rank(victim)?;
        let charge = Charge { subject: *victim, epoch: rank.epoch, version: rank.version, verdict };
        Some(Accusation::sign(&liar.key, &mesh(), charge, liar.wall_ms(self.now)).ok()?.signed().to_vec())
    }

    /// Entries of `count` peers that nobody has ever met, numbered from `first`, with addresses of no machine.
    pub(crate) fn ghosts(&self, first: usize, count: usize, lifecycle: Lifecycle, age: Duration) -> Vec<Vec<u8>> {
        let issued_at_ms = WALL_START_MS + self.now.as_millis() as u64 - age.as_millis() as u64;
        (first..first + count)
            .map(|number| {
                let host = 1_000_000 + number;
                let rank = Rank { epoch: Epoch(issued_at_ms), lifecycle, version: 1 };
                let said = announcement(number % super::network::SITES, number, 0);
                let payload = Payload {
                    addresses: vec![super::host::address_of(host).to_vec()],
                    roles: vec![Role::Node as i32],
                    services: said.services,
                    labels: said.labels,
                    ..Payload::default()
                };
                let draft = Draft { rank, issued_at_ms, payload };
                Entry::sign(&key(self.seed, host, 0), &mesh(), draft).expect("small enough").signed().to_vec()
            })
            .collect()
    }
}

/// The statement with its body changed and its signature kept.
fn altered(signed: &[u8], change: impl FnOnce(&mut EntryBody)) -> Vec<u8> {
    let mut message = Signed::decode(signed).expect("made by Entry::sign");
    let mut body = EntryBody::decode(message.body.as_slice()).expect("made by Entry::sign");
    change(&mut body);
    message.body = body.encode_to_vec();
    message.encode_to_vec()
}

/// An entry that its owner has signed though it is too large. [`Entry::sign`] would not.
fn oversize(key: &Keypair, epoch: u64, issued_at_ms: u64, payload: &Payload) -> Vec<u8> {
    assert!(payload.encoded_len() > PAYLOAD_BYTES_MAX);
    let body = EntryBody {
        schema: 1,
        owner: key.public().to_peer_id().to_bytes(),
        epoch,
        lifecycle: u32::from(Lifecycle::Serving.number()),
        version: 1,
        issued_at_ms,
        ttl_s: 3_600 * 24,
        payload: payload.encode_to_vec(),
    }
    .encode_to_vec();
    let mut transcript = b"otela/entry/1\0".to_vec();
    transcript.extend_from_slice(mesh().as_str().as_bytes());
    transcript.push(0);
    transcript.extend_from_slice(&body);
    let signature = key.sign(&transcript).expect("an Ed25519 key signs");
    wire::Signed { body, signature }.encode_to_vec()
}
