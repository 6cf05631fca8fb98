//! One peer's membership in a mesh: its replica, its gossip, its failure detector and its own entry.
//!
//! The core of a peer, without I/O: [`Member::handle`] takes one input with the time, and appends what has to
//! happen to a list. Production and simulation run this very code.

mod io;

pub use io::{Input, NewSession, Output, Settings};

use crate::{
    clock::Now,
    id::{Epoch, Session},
    own::Own,
    registry::{Belief, Registry, View},
};
use libp2p_identity::{Keypair, PeerId};
use std::{collections::HashMap, time::Duration};

/// The core of one peer.
#[derive(Debug)]
pub struct Member {
    settings: Settings,
    own: Own,
    registry: Registry,
}

impl Member {
    /// A member with an empty replica. `highest_epoch` is the last one of this key that is known, if any.
    #[must_use]
    pub fn new(key: Keypair, settings: Settings, highest_epoch: Option<Epoch>, seed: u64, now: Now) -> Self {
        let _ = seed;
        let own = Own::new(
            key,
            settings.mesh.clone(),
            &settings.roles,
            settings.software.clone(),
            highest_epoch,
            now.wall_ms,
        );
        Self { settings, own, registry: Registry::default() }
    }

    /// Takes one input at `now` and appends what has to be done to `out`.
    pub fn handle(&mut self, _now: Now, _input: Input, _out: &mut Vec<Output>) {}

    /// The monotonic time at which [`Input::Tick`] is due.
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        Duration::MAX
    }

    /// The replica.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// This run of the peer.
    #[must_use]
    pub fn session(&self) -> Session {
        self.own.session()
    }

    /// What this peer believes of `peer`.
    #[must_use]
    pub fn belief(&self, _peer: &PeerId) -> Belief {
        Belief::Alive
    }

    /// A snapshot for readers.
    #[must_use]
    pub fn view(&self, now: Duration, generation: u64) -> View {
        View::build(&self.registry, &HashMap::new(), now, self.settings.retention, generation)
    }

    /// The peers to be connected to.
    pub fn wanted_links(&mut self) -> Vec<PeerId> {
        Vec::new()
    }
}
