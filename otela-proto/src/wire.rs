//! Messages between peers, and the names of the protocols that carry them.
//!
//! Protobuf with explicit field numbers; a number is never used again for another meaning. Frames of the gossip
//! protocol are length-delimited and at most [`FRAME_BYTES_MAX`] long.

use crate::id::MeshName;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Largest gossip frame in bytes; a longer one closes the stream.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// The gossip protocol of a mesh, for example `/otela/lab/gossip/1`.
#[must_use]
pub fn gossip_protocol(mesh: &MeshName) -> String {
    format!("/otela/{mesh}/gossip/1")
}

/// HTTP/1.1 over a substream, for example `/otela/lab/http/1`.
#[must_use]
pub fn http_protocol(mesh: &MeshName) -> String {
    format!("/otela/{mesh}/http/1")
}

/// Kademlia among the peers of a mesh, for example `/otela/lab/kad/1`.
#[must_use]
pub fn kademlia_protocol(mesh: &MeshName) -> String {
    format!("/otela/{mesh}/kad/1")
}

/// Measurements of the way between two peers, for example `/otela/lab/probe/1`: see [`measure`](crate::measure).
#[must_use]
pub fn probe_protocol(mesh: &MeshName) -> String {
    format!("/otela/{mesh}/probe/1")
}

/// A statement and its signer's signature over it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Signed {
    /// An encoded [`EntryBody`], [`AccusationBody`], [`ReleaseBody`], [`MembershipBody`], [`ProviderBody`] or
    /// [`DirectiveBody`].
    #[prost(bytes = "vec", tag = "1")]
    pub body: Vec<u8>,
    /// Ed25519 over the domain string, the mesh name and `body`, with a NUL after each of the first two. What is said
    /// for all meshes has an empty name there.
    #[prost(bytes = "vec", tag = "2")]
    pub signature: Vec<u8>,
}

/// What the owner signs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EntryBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// The owner's peer id (binary form), which holds its public key.
    #[prost(bytes = "vec", tag = "2")]
    pub owner: Vec<u8>,
    /// Which run of the owner.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// Number of the lifecycle state.
    #[prost(uint32, tag = "4")]
    pub lifecycle: u32,
    /// Grows with each publication within a run.
    #[prost(uint64, tag = "5")]
    pub version: u64,
    /// The owner's wall clock, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "6")]
    pub issued_at_ms: u64,
    /// Seconds after which the entry must have been renewed; for show, the mesh's own time to live counts.
    #[prost(uint64, tag = "7")]
    pub ttl_s: u64,
    /// An encoded [`Payload`](crate::payload::Payload).
    #[prost(bytes = "vec", tag = "8")]
    pub payload: Vec<u8>,
}

/// What an accuser signs.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AccusationBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// The accuser's peer id (binary form), which holds its public key.
    #[prost(bytes = "vec", tag = "2")]
    pub accuser: Vec<u8>,
    /// The subject's peer id (binary form).
    #[prost(bytes = "vec", tag = "3")]
    pub subject: Vec<u8>,
    /// The subject's epoch.
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    /// The subject's version that is accused; any later one refutes.
    #[prost(uint64, tag = "5")]
    pub version: u64,
    /// Number of the [`Verdict`](crate::accusation::Verdict).
    #[prost(uint32, tag = "6")]
    pub verdict: u32,
    /// The accuser's wall clock, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "7")]
    pub issued_at_ms: u64,
    /// Seconds after which the accusation is void; for show, the mesh's own time to live counts.
    #[prost(uint64, tag = "8")]
    pub ttl_s: u64,
}

/// What a maintainer signs of a binary, for all meshes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// SHA-256 of the binary.
    #[prost(bytes = "vec", tag = "2")]
    pub digest: Vec<u8>,
    /// Its version, a semantic one.
    #[prost(string, tag = "3")]
    pub version: String,
    /// From when it counts, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "4")]
    pub from_ms: u64,
    /// Until when it counts.
    #[prost(uint64, tag = "5")]
    pub until_ms: u64,
    /// The maintainer's key as a peer id (binary form).
    #[prost(bytes = "vec", tag = "6")]
    pub key: Vec<u8>,
}

/// What the authority of a mesh signs of a peer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MembershipBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// The member's peer id (binary form).
    #[prost(bytes = "vec", tag = "2")]
    pub member: Vec<u8>,
    /// From when it counts, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "3")]
    pub from_ms: u64,
    /// Until when it counts.
    #[prost(uint64, tag = "4")]
    pub until_ms: u64,
    /// The authority's key as a peer id (binary form).
    #[prost(bytes = "vec", tag = "5")]
    pub authority: Vec<u8>,
}

/// What a provider signs of a node, for one mesh or for all.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProviderBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// The provider's key as a peer id (binary form).
    #[prost(bytes = "vec", tag = "2")]
    pub provider: Vec<u8>,
    /// The node's peer id (binary form).
    #[prost(bytes = "vec", tag = "3")]
    pub subject: Vec<u8>,
    /// The mesh that it is signed for; empty for all.
    #[prost(string, tag = "4")]
    pub mesh: String,
    /// Labels that the node's entry must have, with these values.
    #[prost(btree_map = "string, string", tag = "5")]
    pub constraints: BTreeMap<String, String>,
    /// From when it counts, in milliseconds since the Unix epoch.
    #[prost(uint64, tag = "6")]
    pub from_ms: u64,
    /// Until when it counts.
    #[prost(uint64, tag = "7")]
    pub until_ms: u64,
}

/// What a scheduler signs for a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DirectiveBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// The node's peer id (binary form).
    #[prost(bytes = "vec", tag = "2")]
    pub node: Vec<u8>,
    /// Which run of the node it is for.
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    /// The scheduler's peer id (binary form).
    #[prost(bytes = "vec", tag = "4")]
    pub scheduler: Vec<u8>,
    /// The scheduler's generation.
    #[prost(uint64, tag = "5")]
    pub generation: u64,
    /// The number of its plan.
    #[prost(uint64, tag = "6")]
    pub plan: u64,
    /// What to serve; absent, if the node is to be idle.
    #[prost(message, optional, tag = "7")]
    pub work: Option<WorkBody>,
}

/// An engine to be started.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WorkBody {
    /// The provider's launch template.
    #[prost(string, tag = "1")]
    pub template: String,
    /// The model.
    #[prost(string, tag = "2")]
    pub model: String,
    /// Accelerators that one copy of the model is spread over.
    #[prost(uint32, tag = "3")]
    pub tensor_parallel: u32,
    /// Copies of the model.
    #[prost(uint32, tag = "4")]
    pub data_parallel: u32,
}

/// What a peer shows of itself before it is admitted to a connection.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HelloBody {
    /// Version of this message.
    #[prost(uint32, tag = "1")]
    pub schema: u32,
    /// Name of its mesh.
    #[prost(string, tag = "2")]
    pub mesh: String,
    /// Chosen by chance for this connection.
    #[prost(bytes = "vec", tag = "3")]
    pub nonce: Vec<u8>,
    /// A [`ReleaseBody`], signed.
    #[prost(message, optional, tag = "4")]
    pub release: Option<Signed>,
    /// A [`MembershipBody`], signed.
    #[prost(message, optional, tag = "5")]
    pub membership: Option<Signed>,
    /// Room for what a trusted execution environment says of the process. Nothing reads it yet.
    #[prost(bytes = "vec", tag = "6")]
    pub evidence: Vec<u8>,
}

/// One message of RG/1.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Frame {
    /// What it says; absent when a newer version says something that this one does not know.
    #[prost(oneof = "Say", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub say: Option<Say>,
}

/// The messages of RG/1.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Say {
    /// Entries, pushed or asked for.
    #[prost(message, tag = "1")]
    Entries(Entries),
    /// "This is the root of my registry."
    #[prost(message, tag = "2")]
    Root(Root),
    /// "These are the roots of my buckets": the answer to an unlike root of a large registry.
    #[prost(message, tag = "3")]
    Buckets(Buckets),
    /// "This is what I have", for all owners or for some buckets.
    #[prost(message, tag = "4")]
    Digest(Digest),
    /// "Send me these."
    #[prost(message, tag = "5")]
    Want(Want),
    /// "Are you there?"
    #[prost(message, tag = "6")]
    Probe(Probe),
    /// "I am here."
    #[prost(message, tag = "7")]
    Answer(Answer),
    /// "This one does not answer me: does it answer you?"
    #[prost(message, tag = "8")]
    Ask(Ask),
    /// "It does", or "it does not".
    #[prost(message, tag = "9")]
    Report(Report),
    /// "I close this link, for I have too many. I live."
    #[prost(message, tag = "10")]
    Bye(Bye),
}

/// Signed entries and accusations as their signers made them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Entries {
    /// Encoded [`Signed`] entries.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub signed: Vec<Bytes>,
    /// Encoded [`Signed`] accusations; they are to be read after the entries, which they may be about.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub accusations: Vec<Bytes>,
}

/// A probe of one peer by another.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Probe {
    /// Chosen by the sender; the answer repeats it.
    #[prost(uint32, tag = "1")]
    pub number: u32,
}

/// The answer to a [`Probe`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Answer {
    /// The probe's.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The answering peer's wall clock, in milliseconds since the Unix epoch. For the measurement of skew only.
    #[prost(uint64, tag = "2")]
    pub wall_ms: u64,
}

/// A wish that another peer probes a third one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ask {
    /// Chosen by the sender; the report repeats it.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The subject's peer id (binary form).
    #[prost(bytes = "vec", tag = "2")]
    pub subject: Vec<u8>,
}

/// The answer to an [`Ask`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Report {
    /// The question's.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// Whether the subject has answered.
    #[prost(bool, tag = "2")]
    pub alive: bool,
}

/// The announced end of a link.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Bye {}

/// A registry in 16 bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Root {
    /// XOR of the hashes of all entries and accusations.
    #[prost(bytes = "vec", tag = "1")]
    pub hash: Vec<u8>,
    /// How many entries.
    #[prost(uint64, tag = "2")]
    pub count: u64,
}

/// The roots of the sixteen buckets, by the upper four bits of an owner's place.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Buckets {
    /// XOR of the hashes of entries and accusations in each bucket, by the subject's place.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub hashes: Vec<Vec<u8>>,
}

/// Which entries a peer has.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Digest {
    /// Bit b is set when the digest is complete for bucket b.
    #[prost(uint32, tag = "1")]
    pub buckets: u32,
    /// Owners' places.
    #[prost(fixed64, repeated, tag = "2")]
    pub places: Vec<u64>,
    /// Epoch of each owner's entry.
    #[prost(uint64, repeated, tag = "3")]
    pub epochs: Vec<u64>,
    /// Version times four, plus the lifecycle's number, of each owner's entry.
    #[prost(uint64, repeated, tag = "4")]
    pub versions: Vec<u64>,
    /// First four bytes of the XOR of the hashes of each entry and of the accusations against its owner.
    #[prost(fixed32, repeated, tag = "5")]
    pub hashes: Vec<u32>,
}

/// Places of owners whose entries are asked for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Want {
    /// Owners' places.
    #[prost(fixed64, repeated, tag = "1")]
    pub places: Vec<u64>,
}
