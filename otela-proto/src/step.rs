//! One step of a peer's core: what goes into it and what comes out.

use crate::{
    accusation::Accusation, admission::Rules, entry::Entry, id::MeshName, own::Announcement, payload::Role, wire::Say,
};
use libp2p_identity::PeerId;
use multiaddr::Multiaddr;
use std::time::Duration;

/// How a member behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The mesh.
    pub mesh: MeshName,
    /// What the peer does.
    pub roles: Vec<Role>,
    /// Whether the peer only looks: it says nothing of itself or others, and nobody is told that it exists.
    pub observes: bool,
    /// Version of the software, for show.
    pub software: String,
    /// Where the peer is: published as its label `site`. Without it others go by its addresses.
    pub site: Option<String>,
    /// The provider certificate that the peer shows at first, encoded; empty for none.
    pub certificate: Vec<u8>,
    /// From a suspicion to the vote for eviction, when accuser and subject are at one site.
    pub grace_near: Duration,
    /// The same across sites.
    pub grace_far: Duration,
    /// For how long departed nodes stay in the view.
    pub retention: Duration,
}

impl Settings {
    /// The usual behaviour in `mesh`.
    #[must_use]
    pub fn new(mesh: MeshName) -> Self {
        Self {
            mesh,
            roles: vec![Role::Node],
            observes: false,
            software: String::new(),
            site: None,
            certificate: Vec::new(),
            grace_near: Duration::from_secs(5),
            grace_far: Duration::from_secs(15),
            retention: Duration::from_hours(24),
        }
    }
}

/// Something that happened to this peer.
#[derive(Debug)]
pub enum Input {
    /// A link to a neighbour is up; `rtt` as far as it is known.
    LinkUp {
        /// The neighbour.
        peer: PeerId,
        /// Round trip time.
        rtt: Option<Duration>,
    },
    /// The link is gone.
    LinkDown(PeerId),
    /// The link, which went through a relay, is gone: the relay is the reason as often as the neighbour, who is asked
    /// after and stays in rotation meanwhile.
    RelayedLinkDown(PeerId),
    /// A dial reached nobody.
    Unreachable(PeerId),
    /// A request to this peer failed in a way that speaks against the peer.
    Failed(PeerId),
    /// This peer has answered a request.
    Served(PeerId),
    /// Bytes have come from these peers lately, on whatever stream: they live, and the way to them works.
    Traffic(Vec<PeerId>),
    /// A frame other than entries arrived.
    Say {
        /// From whom.
        from: PeerId,
        /// What it said.
        say: Say,
    },
    /// Verified entries and accusations arrived.
    Entries {
        /// From whom.
        from: PeerId,
        /// Entries, each checked by [`Entry::open`].
        entries: Vec<Entry>,
        /// Accusations, each checked by [`Accusation::open`].
        accusations: Vec<Accusation>,
    },
    /// Addresses at which this peer can be dialled from now on.
    Addresses(Vec<Multiaddr>),
    /// This peer shows this provider certificate from now on, encoded; an empty one is none. Refused like
    /// [`Input::Announce`].
    Certificate(Vec<u8>),
    /// Whom the mesh admits from now on, and the membership, encoded, by which it admits this peer; an empty one is none.
    /// What others say counts only as far as they are admitted.
    Admission(Box<Rules>, Vec<u8>),
    /// This peer says this of itself from now on. One that is too large is refused by [`Output::Refused`].
    Announce(Box<Announcement>),
    /// Begin another session of this peer, in which it says this of itself.
    BeginAgain(Box<Announcement>),
    /// This session ends.
    Leave,
    /// The time asked for by [`Member::wake_at`](crate::member::Member::wake_at) has come.
    Tick,
}

/// Something for a linked peer.
#[derive(Debug, Clone)]
pub enum Parcel {
    /// A message other than entries.
    Say(Say),
    /// An entry.
    Entry(Entry),
    /// An accusation.
    Accusation(Accusation),
}

/// Something to do.
#[derive(Debug, Clone)]
pub enum Output {
    /// Say this to a linked peer. All sends to one peer go through its [`Outbox`](crate::gossip::Outbox).
    Send {
        /// To whom.
        to: PeerId,
        /// What.
        parcel: Parcel,
    },
    /// Try to connect to this peer; [`Input::LinkUp`] or [`Input::Unreachable`] tells the end of it.
    Reach(PeerId),
    /// This connection is not needed: the peer was evicted, or there are too many.
    Close(PeerId),
    /// What readers see of this node has changed.
    Changed(PeerId),
    /// Something was refused, for this reason; a metric label.
    Refused {
        /// Who sent it; `None` when it was this peer's own.
        from: Option<PeerId>,
        /// Why.
        reason: &'static str,
    },
    /// The frame of this peer breaks the protocol; it was dropped.
    Malformed(PeerId),
    /// This peer begins a new session, for this reason.
    NewSession(NewSession),
    /// Another process uses this peer's key, and goes on: this one must stop.
    Twin,
}

/// Why a peer has begun a new session by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSession {
    /// A quorum had evicted the old one.
    Evicted,
    /// The mesh knew a later one of the same key.
    Overtaken,
}
