//! What must hold in every mesh: at any moment, and after it has been left in peace.

use super::{host::Host, operation::Expected, world::World};
use libp2p_identity::PeerId;
use otela_proto::{
    lifecycle::Lifecycle,
    registry::{ACCUSERS_MAX, Belief, DEPARTED_MAX, GRAVES_MAX, OWNERS_MAX},
};
use std::collections::BTreeSet;

/// Fewest that agree on an eviction, in meshes that have so many.
pub(crate) const QUORUM: usize = 3;

/// Most that waits for one neighbour: messages of two kinds, and statements.
const OUTBOX_MAX: usize = 2 * 256 + 4_096;

/// Checks one expectation.
///
/// # Errors
/// What does not hold, and where.
pub(crate) fn expect(world: &World, expected: Expected) -> Result<(), String> {
    match expected {
        Expected::Equal => replicas_are_equal(world),
        Expected::AllAlive => all_are_alive(world),
        Expected::Unroutable(host) => is_unroutable(world, &world.hosts[host].peer),
        Expected::Gone(host) => is_gone(world, &world.hosts[host].peer),
    }
}

/// What holds at any moment, whatever happens.
///
/// # Errors
/// What does not hold, and where.
pub(crate) fn at_any_moment(world: &World) -> Result<(), String> {
    let now_lying = world.hosts.iter().filter(|host| host.is_liar).map(|host| host.peer);
    let liars: BTreeSet<_> = world.liars.iter().copied().chain(now_lying).collect();
    for host in world.running() {
        let registry = world.member(host.number).registry();
        if registry.len() > OWNERS_MAX + DEPARTED_MAX
            || registry.departed() > DEPARTED_MAX
            || registry.graves() > GRAVES_MAX
        {
            return Err(format!("host {}: {} entries, {} graves", host.number, registry.len(), registry.graves()));
        }
        for entry in registry.entries() {
            let owner = entry.owner();
            let said = world.spoken.get(&owner).is_none_or(|spoken| spoken.contains(&entry.id()));
            if !said && !liars.contains(&owner) {
                return Err(format!(
                    "host {} holds an entry of {} that its owner never made",
                    host.number,
                    name(world, &owner)
                ));
            }
        }
        if let Some((subject, many)) = registry.accused().find(|(_, accusations)| accusations.len() > ACCUSERS_MAX) {
            return Err(format!("host {} keeps {} accusations of {subject}", host.number, many.len()));
        }
    }
    let ends = world.links.values().flat_map(|link| &link.ends);
    if let Some(end) = ends.into_iter().find(|end| end.outbox.len() > OUTBOX_MAX) {
        return Err(format!("{} messages wait at host {}", end.outbox.len(), end.host));
    }
    Ok(())
}

/// What holds after every cut is healed, every process goes on, and there was time.
///
/// # Errors
/// What does not hold, and where.
pub(crate) fn in_peace(world: &World) -> Result<(), String> {
    at_any_moment(world)?;
    replicas_are_equal(world)?;
    all_are_alive(world)?;
    let present: BTreeSet<_> = world.running().map(|host| host.peer).collect();
    let Some(one) = world.running().next() else { return Ok(()) };
    let owners: Vec<PeerId> =
        world.member(one.number).registry().entries().map(otela_proto::entry::Entry::owner).collect();
    for owner in owners.iter().filter(|owner| !present.contains(owner)) {
        // Those who are gone can be voted out by those who are left, if they are enough.
        if present.len() >= QUORUM { is_gone(world, owner)? } else { is_unroutable(world, owner)? }
    }
    Ok(())
}

fn replicas_are_equal(world: &World) -> Result<(), String> {
    let mut running = world.running();
    let Some(first) = running.next() else { return Ok(()) };
    let root = world.member(first.number).registry().root();
    match running.find(|host| world.member(host.number).registry().root() != root) {
        Some(other) => Err(format!(
            "the replicas of hosts {} and {} differ{}",
            first.number,
            other.number,
            difference(world, first, other)
        )),
        None => Ok(()),
    }
}

/// Where two replicas differ, for people.
fn difference(world: &World, a: &Host, b: &Host) -> String {
    let [one, other] = [a, b].map(|host| world.member(host.number).registry());
    let owners: BTreeSet<_> = one.entries().chain(other.entries()).map(otela_proto::entry::Entry::owner).collect();
    let differ = |owner: &&PeerId| one.mark(owner) != other.mark(owner);
    let tell = |owner: &PeerId| {
        let of = |registry: &otela_proto::registry::Registry| {
            let rank = registry.rank(owner).map(|rank| (rank.epoch.0, rank.lifecycle.name(), rank.version));
            format!("{rank:?} with {} accusations", registry.accusations(owner).len())
        };
        format!("; of {}: {} and {}", name(world, owner), of(one), of(other))
    };
    owners.iter().filter(differ).take(4).map(tell).collect()
}

fn all_are_alive(world: &World) -> Result<(), String> {
    for host in world.running() {
        let member = world.member(host.number);
        for other in world.running().filter(|other| !host.is_liar && !other.is_liar) {
            let session = world.member(other.number).session();
            let Some(entry) = member.registry().get(&other.peer) else {
                return Err(format!("host {} does not know host {}", host.number, other.number));
            };
            if entry.session() != session {
                return Err(format!("host {} knows an old session of host {}", host.number, other.number));
            }
            let belief = member.belief(&other.peer);
            if other.number != host.number && belief != Belief::Alive {
                return Err(format!("host {} believes that host {} is {belief:?}", host.number, other.number));
            }
        }
    }
    Ok(())
}

fn is_unroutable(world: &World, peer: &PeerId) -> Result<(), String> {
    for host in world.running().filter(|host| host.peer != *peer) {
        let view = world.member(host.number).view(host.now(world.now), 1);
        if view.node(peer).is_some_and(otela_proto::registry::Node::is_routable) {
            return Err(format!("host {} would send requests to {}", host.number, name(world, peer)));
        }
    }
    Ok(())
}

fn is_gone(world: &World, peer: &PeerId) -> Result<(), String> {
    for host in world.running().filter(|host| host.peer != *peer) {
        let member = world.member(host.number);
        let has_left = member.registry().rank(peer).is_none_or(|rank| rank.lifecycle == Lifecycle::Left);
        let belief = member.belief(peer);
        if !has_left && !matches!(belief, Belief::Evicted(_)) {
            return Err(format!(
                "host {} believes that {}, which is gone, is {belief:?}",
                host.number,
                name(world, peer)
            ));
        }
    }
    Ok(())
}

/// A peer as people know it.
fn name(world: &World, peer: &PeerId) -> String {
    let host = world.hosts.iter().find(|host| host.peer == *peer);
    host.map_or_else(|| peer.to_string(), |host| format!("host {}", host.number))
}
