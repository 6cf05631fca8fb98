//! Dials that are due: names are resolved, and the swarm is told.

use super::{
    addresses::{has_name, resolve_all},
    dialer::Target,
    driver::Driver,
};
use crate::tasks::Tasks;
use libp2p::{
    Multiaddr, PeerId,
    swarm::dial_opts::{DialOpts, PeerCondition},
};
use std::io;
use tokio::time::Instant;

impl Driver {
    /// Begins what is due.
    pub(super) fn dial_due(&mut self, tasks: &Tasks) {
        for due in self.dialer.take_due(Instant::now()) {
            if !due.addresses.iter().any(has_name) {
                self.dial(due.target, dial_opts(due.peer, due.addresses));
                continue;
            }
            // A resolver may take its time; the swarm cannot wait for it.
            let resolved = self.resolved.0.clone();
            tasks.spawn(async move {
                let addresses = resolve_all(due.addresses).await;
                let _ = resolved.send((due.target, addresses.map(|found| dial_opts(due.peer, found)))).await;
            });
        }
    }

    /// The names of a dial are resolved, or cannot be.
    pub(super) fn on_resolved(&mut self, target: Target, opts: io::Result<Option<DialOpts>>) {
        match opts {
            Ok(opts) => self.dial(target, opts),
            Err(error) => {
                let all = self.dialer.refused(target, Instant::now());
                let error = format!("cannot resolve its name: {error}");
                match target {
                    Target::Bootstrap(_) => self.complain(target, error, all),
                    Target::Peer(peer) if all => tracing::warn!(%peer, error, "cannot dial a peer, will try again"),
                    Target::Peer(_) | Target::Listed(_) | Target::Remembered(_) | Target::Found(_) => {}
                }
            }
        }
    }

    fn dial(&mut self, target: Target, opts: Option<DialOpts>) {
        let Some(opts) = opts else {
            self.dialer.refused(target, Instant::now());
            return;
        };
        let id = opts.connection_id();
        self.dialer.started(target, id);
        if let Target::Bootstrap(_) | Target::Listed(_) = target {
            self.bootstrap_dials.insert(id, target);
        }
        if let Err(error) = self.swarm.dial(opts) {
            tracing::debug!(%error, ?target, "dial refused");
            self.dialer.failed(id, Instant::now());
        }
    }
}

/// `None` if there is nothing to dial.
fn dial_opts(peer: Option<PeerId>, addresses: Vec<Multiaddr>) -> Option<DialOpts> {
    let first = addresses.first()?.clone();
    Some(match peer {
        Some(peer) => DialOpts::peer_id(peer).condition(PeerCondition::Disconnected).addresses(addresses).build(),
        None => DialOpts::unknown_peer_id().address(first).build(),
    })
}
