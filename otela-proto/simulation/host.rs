//! A machine: its clocks, its site, and the process that runs on it, if any.

use super::{driver::Driver, traffic::Traffic};
use libp2p_identity::{Keypair, PeerId};
use multiaddr::{Multiaddr, Protocol};
use otela_proto::{
    clock::Now,
    lifecycle::Lifecycle,
    member::{Member, NewSession},
    own::Announcement,
    payload::{ModelCard, Role, Service},
};
use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

/// Wall time at the beginning of the world, in milliseconds since the Unix epoch.
pub(crate) const WALL_START_MS: u64 = 1_900_000_000_000;
const PORT: u16 = 7411;

/// What the process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// There is none, and the machine refuses connections.
    Off,
    /// There is none, and the machine answers nothing.
    Powerless,
    Running,
    /// Stopped by SIGSTOP: the machine goes on taking connections and bytes.
    Paused,
}

/// What a process was told and has told us, apart from what it sends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes {
    /// Refused statements by reason, at the readers and in the core.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// Frames that broke the protocol.
    pub(crate) malformed: u64,
    /// New sessions that the peer began by itself.
    pub(crate) new_sessions: Vec<NewSession>,
    /// Peers that it was to reach, all in all.
    pub(crate) reached_for: u64,
    /// It was told that another process goes on with its key.
    pub(crate) is_twin: bool,
}

/// A machine.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) number: usize,
    pub(crate) site: usize,
    pub(crate) key: Keypair,
    pub(crate) peer: PeerId,
    pub(crate) state: State,
    /// Which process: events for earlier ones are void.
    pub(crate) run: u32,
    pub(crate) member: Option<Member>,
    pub(crate) started: Duration,
    /// How far the wall clock is off.
    pub(crate) wall_offset_ms: i64,
    /// Open ends, by the peer at the other one.
    pub(crate) links: BTreeMap<PeerId, u64>,
    pub(crate) driver: Driver,
    /// When the next tick has been planned for.
    pub(crate) wake_at: Duration,
    /// When it ticked last, and how often it had before at that moment.
    pub(crate) ticks: (Duration, u32),
    pub(crate) announcement: Announcement,
    pub(crate) traffic: Traffic,
    pub(crate) notes: Notes,
    /// What the next process of this machine does in the mesh.
    pub(crate) role: Role,
    /// How many keys this machine has used.
    pub(crate) keys: u32,
    /// Somebody here signs what the core would not: nothing is expected of what it says.
    pub(crate) is_liar: bool,
}

impl Host {
    pub(crate) fn new(number: usize, site: usize, seed: u64) -> Self {
        let key = key(seed, number, 0);
        Self {
            number,
            site,
            peer: key.public().to_peer_id(),
            key,
            state: State::Off,
            run: 0,
            member: None,
            started: Duration::ZERO,
            wall_offset_ms: 0,
            links: BTreeMap::new(),
            driver: Driver::default(),
            wake_at: Duration::MAX,
            ticks: (Duration::ZERO, 0),
            announcement: announcement(site, number, 0),
            traffic: Traffic::default(),
            notes: Notes::default(),
            role: Role::Node,
            keys: 1,
            is_liar: false,
        }
    }

    /// What the clocks of the process read at world time `at`.
    pub(crate) fn now(&self, at: Duration) -> Now {
        Now { mono: at.saturating_sub(self.started), wall_ms: self.wall_ms(at) }
    }

    pub(crate) fn wall_ms(&self, at: Duration) -> u64 {
        (WALL_START_MS + at.as_millis() as u64).saturating_add_signed(self.wall_offset_ms)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Where its process listens.
    pub(crate) fn address(&self) -> Multiaddr {
        address_of(self.number)
    }
}

/// The key number `nth` of a host.
pub(crate) fn key(seed: u64, host: usize, nth: u32) -> Keypair {
    let mut secret = [7; 32];
    secret[..8].copy_from_slice(&seed.to_be_bytes());
    secret[8..16].copy_from_slice(&(host as u64).to_be_bytes());
    secret[16..20].copy_from_slice(&nth.to_be_bytes());
    Keypair::ed25519_from_bytes(secret).expect("any 32 bytes are an Ed25519 secret")
}

/// The address of a host.
pub(crate) fn address_of(host: usize) -> Multiaddr {
    let [_, a, b, c] = (host as u32).to_be_bytes();
    Multiaddr::empty().with(Protocol::Ip4(Ipv4Addr::new(10, a, b, c))).with(Protocol::Tcp(PORT))
}

/// The host at an address, whether or not there is such a machine.
pub(crate) fn host_at(address: &Multiaddr) -> Option<usize> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => {
            let [_, a, b, c] = ip.octets();
            Some(u32::from_be_bytes([0, a, b, c]) as usize)
        }
        _ => None,
    }
}

/// A serving node with two models, about as large as a real one.
pub(crate) fn announcement(site: usize, host: usize, edition: u64) -> Announcement {
    let model = |id: String| ModelCard { id, context_length: 32_768, dtype: "bfloat16".into(), ..ModelCard::default() };
    let service = Service {
        name: "llm".into(),
        engine: "vllm".into(),
        engine_version: "0.19.1".into(),
        models: vec![model(format!("model-{}", host % 16)), model("shared".into())],
        features: vec!["continue_final_message".into()],
        loading: String::new(),
        ..Service::default()
    };
    let labels = [("site", format!("s{site}")), ("edition", edition.to_string())];
    Announcement {
        lifecycle: Lifecycle::Serving,
        services: vec![service],
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        ..Announcement::default()
    }
}
