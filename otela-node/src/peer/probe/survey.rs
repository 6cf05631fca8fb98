//! Every way that leads to a peer: its own addresses, its relays, and a direct one that has to be found.

use super::{Measured, ProbeError, Unreached, Wanted};
use crate::peer::{
    Connection, Path, Peer,
    swarm::{is_relayed, relay_of},
};
use futures::future::join_all;
use libp2p::{Multiaddr, PeerId};
use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// Relays of a peer that are tried.
const RELAYS_MAX: usize = 3;
/// How long others may take to tell this peer how it looks from outside.
const OBSERVED_WITHIN: Duration = Duration::from_secs(2);

/// What became of one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// The address.
    pub address: Multiaddr,
    /// After what time.
    pub after: Duration,
    /// Why nobody was reached, if so.
    pub failed: Option<Unreached>,
}

/// What became of the search for a direct way beside a relayed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolePunch {
    /// An address of the peer's own leads there.
    NotNeeded,
    /// Only a relay can arrange it, and none leads there.
    NoRelay,
    /// A direct way was found after this time.
    Found(Duration),
    /// None was found within this time.
    NotFound(Duration),
}

/// One connection and what was measured on it.
#[derive(Debug)]
pub struct Way {
    /// The connection.
    pub connection: Arc<Connection>,
    /// What was measured.
    pub measured: Result<Measured, ProbeError>,
}

/// All that was tried and measured.
#[derive(Debug)]
pub struct Survey {
    /// The addresses.
    pub tried: Vec<Tried>,
    /// A direct way beside a relayed one.
    pub hole_punch: HolePunch,
    /// The connections.
    pub ways: Vec<Way>,
}

impl Peer {
    /// Dials `to` at all of its `addresses`, and measures over one connection of each transport and relay. If none is
    /// direct, waits `punch_within` for one to be found.
    pub async fn survey(
        &self,
        to: &PeerId,
        addresses: Vec<Multiaddr>,
        wanted: &Wanted,
        punch_within: Duration,
    ) -> Survey {
        let (relayed, own): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_relayed);
        let mut survey = Survey { tried: Vec::new(), hole_punch: HolePunch::NotNeeded, ways: Vec::new() };
        let mut carriers = HashSet::new();
        let dials = join_all(own.into_iter().map(|address| self.try_address(to, address))).await;
        for (tried, connection) in dials {
            survey.tried.push(tried);
            let Some(connection) = connection else { continue };
            if carriers.insert(connection.carrier()) {
                let measured = self.measure(&connection, wanted).await;
                survey.ways.push(Way { connection, measured });
            } else {
                self.close(&connection).await;
            }
        }
        let is_direct = !survey.ways.is_empty();
        let mut punching = None;
        for address in one_at_each(relayed) {
            if !is_direct {
                self.meet_relay(&address).await;
            }
            let (tried, connection) = self.try_address(to, address).await;
            survey.tried.push(tried);
            let Some(connection) = connection else { continue };
            punching.get_or_insert_with(Instant::now);
            let measured = self.measure(&connection, wanted).await;
            survey.ways.push(Way { connection, measured });
        }
        if !is_direct {
            survey.hole_punch = HolePunch::NoRelay;
        }
        if let Some(since) = punching.filter(|_| !is_direct) {
            let found =
                timeout(punch_within.saturating_sub(since.elapsed()), self.inner.streams.until_direct(to)).await;
            survey.hole_punch = found.as_ref().map_or(HolePunch::NotFound(punch_within), |connection| {
                HolePunch::Found(connection.since().saturating_duration_since(since))
            });
            if let Ok(connection) = found {
                let measured = self.measure(&connection, wanted).await;
                survey.ways.push(Way { connection, measured });
            }
        }
        survey
    }

    async fn try_address(&self, to: &PeerId, address: Multiaddr) -> (Tried, Option<Arc<Connection>>) {
        let began = Instant::now();
        let dialled = self.dial_at(Some(*to), &address).await;
        let (connection, failed) = match dialled {
            Ok(connection) => (Some(connection), None),
            Err(error) => (None, Some(error)),
        };
        (Tried { address, after: began.elapsed(), failed }, connection)
    }

    /// Lets the relay of an address tell us how we look from outside: a search for a direct way that begins before that
    /// is known ends in nothing.
    async fn meet_relay(&self, address: &Multiaddr) {
        let Some(relay) = relay_of(address) else { return };
        if self.connection(&relay).is_none_or(|connection| connection.path() == Path::Relayed) {
            let is_circuit =
                |part: &libp2p::multiaddr::Protocol<'_>| matches!(part, libp2p::multiaddr::Protocol::P2pCircuit);
            let of_relay: Multiaddr = address.iter().take_while(|part| !is_circuit(part)).collect();
            // Whether it can be reached, the dial through it will tell.
            let _ = self.dial_at(Some(relay), &of_relay).await;
        }
        let mut reach = self.inner.reach.clone();
        // Nobody may have an opinion; then the way stays relayed.
        let _ = timeout(OBSERVED_WITHIN, reach.wait_for(|reach| !reach.observed.is_empty())).await;
    }
}

/// One address at each relay.
fn one_at_each(relayed: Vec<Multiaddr>) -> Vec<Multiaddr> {
    let mut relays = HashSet::new();
    relayed.into_iter().filter(|address| relays.insert(relay_of(address))).take(RELAYS_MAX).collect()
}
