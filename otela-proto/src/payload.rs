//! What a node tells of itself: the payload of its entry.
//!
//! Protobuf messages, so that newer peers can add fields. An entry travels as its owner's signed bytes and is
//! never encoded again from these structs, which is why unknown fields survive and signatures stay valid.

use crate::assignment::{Assigned, Claim, Offer};
use std::collections::BTreeMap;

/// The largest payload that peers accept, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 4096;

/// What a peer does in the mesh; one peer may do several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Role {
    /// Not told, or a role that this version does not know.
    Unknown = 0,
    /// Runs engines, or offers its hardware for them.
    Node = 1,
    /// Takes clients' HTTP requests.
    Ingress = 2,
    /// Public meeting point of peers.
    Relay = 3,
    /// Tells idle nodes what to serve.
    Scheduler = 4,
}

impl Role {
    /// The role's name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Node => "node",
            Self::Ingress => "ingress",
            Self::Relay => "relay",
            Self::Scheduler => "scheduler",
        }
    }
}

/// A node's self-description.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    /// Multiaddresses (binary form) at which the peer can be dialled.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub addresses: Vec<Vec<u8>>,
    /// What the peer does.
    #[prost(enumeration = "Role", repeated, tag = "2")]
    pub roles: Vec<i32>,
    /// Accelerators and host.
    #[prost(message, optional, tag = "3")]
    pub hardware: Option<Hardware>,
    /// Services that are ready, or loading as [`Service::loading`] tells.
    #[prost(message, repeated, tag = "4")]
    pub services: Vec<Service>,
    /// The provider's own labels, for example `slurm_job_id`.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// When the node's allocation ends, in milliseconds since the Unix epoch; absent when it has no end.
    #[prost(uint64, optional, tag = "6")]
    pub ends_at_ms: Option<u64>,
    /// Version of the otela binary.
    #[prost(string, tag = "7")]
    pub software: String,
    /// No new requests are wanted; running ones finish.
    #[prost(bool, tag = "8")]
    pub draining: bool,
    /// When this session started, in milliseconds since the Unix epoch, by its own clock. For show only.
    #[prost(uint64, tag = "9")]
    pub started_at_ms: u64,
    /// An encoded [`Signed`](crate::wire::Signed) [`ProviderBody`](crate::wire::ProviderBody); empty when there is none.
    /// Whatever is wrong with it, the rest counts.
    #[prost(bytes = "vec", tag = "10")]
    pub provider_certificate: Vec<u8>,
    /// What a node can be told to serve, and by whom; absent where nobody can.
    #[prost(message, optional, tag = "11")]
    pub offer: Option<Offer>,
    /// What such a node was told to serve last.
    #[prost(message, optional, tag = "12")]
    pub assigned: Option<Assigned>,
    /// A scheduler's claim to be the one that acts.
    #[prost(message, optional, tag = "13")]
    pub claim: Option<Claim>,
    /// An encoded [`Signed`](crate::wire::Signed) [`MembershipBody`](crate::wire::MembershipBody) of the owner; empty when
    /// there is none. In a private mesh the entry counts only with it.
    #[prost(bytes = "vec", tag = "14")]
    pub membership: Vec<u8>,
}

/// Accelerators and host of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hardware {
    /// One element for each kind of accelerator.
    #[prost(message, repeated, tag = "1")]
    pub accelerators: Vec<Accelerator>,
    /// Host name.
    #[prost(string, tag = "2")]
    pub hostname: String,
    /// Logical processors.
    #[prost(uint32, tag = "3")]
    pub cpus: u32,
    /// Host memory in bytes.
    #[prost(uint64, tag = "4")]
    pub memory_bytes: u64,
    /// Accelerator driver version, empty when there is none.
    #[prost(string, tag = "5")]
    pub driver: String,
}

/// Accelerators of one kind.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Accelerator {
    /// Normalised kind, for example `A100-80GB`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// The name as its driver reports it.
    #[prost(string, tag = "2")]
    pub name: String,
    /// How many of them this node may use.
    #[prost(uint32, tag = "3")]
    pub count: u32,
    /// Memory of each one in bytes.
    #[prost(uint64, tag = "4")]
    pub memory_bytes: u64,
}

/// One engine and what it serves.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Service {
    /// Name of the service; `llm` for engines that speak the OpenAI API.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Engine, for example `vllm`.
    #[prost(string, tag = "2")]
    pub engine: String,
    /// Version that the engine reports, empty when it does not.
    #[prost(string, tag = "3")]
    pub engine_version: String,
    /// Models that the engine lists.
    #[prost(message, repeated, tag = "4")]
    pub models: Vec<ModelCard>,
    /// What the engine can do beyond the plain API, for example `continue_final_message`.
    #[prost(string, repeated, tag = "5")]
    pub features: Vec<String>,
    /// While the engine loads: the stage it is in. Empty once it is ready.
    #[prost(string, tag = "6")]
    pub loading: String,
    /// Most requests that the node lets in at once; 0 when it sets no bound.
    #[prost(uint32, tag = "7")]
    pub in_flight_max: u32,
    /// Paths of the engine that may be reached beyond the inference routes; one that ends in `/` stands for all below it.
    #[prost(string, repeated, tag = "8")]
    pub paths: Vec<String>,
}

/// One model that an engine serves.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelCard {
    /// The id that clients ask for. Case counts.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Context length in tokens; 0 when the engine does not tell.
    #[prost(uint64, tag = "2")]
    pub context_length: u64,
    /// What the engine says the model was made from; empty when it does not tell.
    #[prost(string, tag = "3")]
    pub root: String,
    /// Quantisation, empty when not told.
    #[prost(string, tag = "4")]
    pub quantization: String,
    /// Number format of the weights, empty when not told.
    #[prost(string, tag = "5")]
    pub dtype: String,
    /// When the engine says the model was created, in seconds since the Unix epoch.
    #[prost(uint64, tag = "6")]
    pub created_s: u64,
    /// Owner that the engine names.
    #[prost(string, tag = "7")]
    pub owned_by: String,
}

impl Payload {
    /// The addresses that can be parsed; others are passed over, they may be of a newer kind.
    pub fn multiaddrs(&self) -> impl Iterator<Item = multiaddr::Multiaddr> + '_ {
        self.addresses.iter().filter_map(|bytes| multiaddr::Multiaddr::try_from(bytes.clone()).ok())
    }

    /// The size of its encoding in bytes, to be compared with [`PAYLOAD_BYTES_MAX`].
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        prost::Message::encoded_len(self)
    }

    /// Whether the peer has `role`.
    #[must_use]
    pub fn has_role(&self, role: Role) -> bool {
        self.roles.contains(&(role as i32))
    }

    /// The models of all services, ready or loading.
    pub fn models(&self) -> impl Iterator<Item = (&Service, &ModelCard)> {
        self.services.iter().flat_map(|service| service.models.iter().map(move |model| (service, model)))
    }
}
