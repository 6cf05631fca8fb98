//! The peers that we are linked to.

use crate::id::Place;
use libp2p_identity::PeerId;
use std::{collections::BTreeMap, time::Duration};

/// How much a new measurement moves the smoothed round trip time (RFC 6298: one eighth).
const SMOOTHING: u32 = 8;

/// One link.
#[derive(Debug, Clone, Default)]
pub struct Link {
    /// Smoothed round trip time, as far as it is known.
    pub rtt: Option<Duration>,
    /// Since when it is up, on our monotonic clock.
    pub since: Duration,
    /// How far the peer's wall clock is ahead of ours, in milliseconds.
    pub skew_ms: Option<i64>,
}

/// All links of a peer.
#[derive(Debug, Clone, Default)]
pub struct Links {
    of: BTreeMap<PeerId, Link>,
    ring: BTreeMap<Place, PeerId>,
}

impl Links {
    /// A link is up. Returns whether it is a new one.
    pub(crate) fn up(&mut self, peer: PeerId, rtt: Option<Duration>, now: Duration) -> bool {
        self.ring.insert(Place::of(&peer), peer);
        self.of.insert(peer, Link { rtt, since: now, skew_ms: None }).is_none()
    }

    /// A link is down. Returns whether there was one.
    pub(crate) fn down(&mut self, peer: &PeerId) -> bool {
        self.ring.remove(&Place::of(peer));
        self.of.remove(peer).is_some()
    }

    /// A probe of `peer` was answered after `rtt`, by a clock that read `wall_ms` when ours read `now_ms`.
    pub(crate) fn measured(&mut self, peer: &PeerId, rtt: Duration, wall_ms: u64, now_ms: u64) {
        let Some(link) = self.of.get_mut(peer) else { return };
        link.rtt = Some(link.rtt.map_or(rtt, |old| old - old / SMOOTHING + rtt / SMOOTHING));
        let then_ms = i128::from(now_ms) - i128::try_from(rtt.as_millis()).unwrap_or(0) / 2;
        link.skew_ms = i64::try_from(i128::from(wall_ms) - then_ms).ok();
    }

    /// The median of how far our neighbours' wall clocks are ahead of ours, in milliseconds.
    #[must_use]
    pub fn skew_ms(&self) -> Option<i64> {
        let mut skews: Vec<_> = self.of.values().filter_map(|link| link.skew_ms).collect();
        skews.sort_unstable();
        skews.get(skews.len() / 2).copied()
    }

    /// The link to `peer`.
    #[must_use]
    pub fn get(&self, peer: &PeerId) -> Option<&Link> {
        self.of.get(peer)
    }

    /// Whether there is a link to `peer`.
    #[must_use]
    pub fn contains(&self, peer: &PeerId) -> bool {
        self.of.contains_key(peer)
    }

    /// The linked peers, ordered by id.
    pub fn peers(&self) -> impl Iterator<Item = &PeerId> {
        self.of.keys()
    }

    /// All links.
    pub fn iter(&self) -> impl Iterator<Item = (&PeerId, &Link)> {
        self.of.iter()
    }

    /// Number of links.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// The linked peers by place.
    #[must_use]
    pub fn ring(&self) -> &BTreeMap<Place, PeerId> {
        &self.ring
    }
}

/// The first peer of `ring` after `place`, going round, for which `wanted` holds; `place` itself does not count.
pub(crate) fn successor(
    ring: &BTreeMap<Place, PeerId>,
    place: Place,
    wanted: impl Fn(&PeerId) -> bool,
) -> Option<PeerId> {
    let after = ring.range(Place(place.0.wrapping_add(1))..).chain(ring.range(..place));
    after.map(|(_, peer)| peer).find(|peer| wanted(peer)).copied()
}

/// As [`successor`], the other way round.
pub(crate) fn predecessor(
    ring: &BTreeMap<Place, PeerId>,
    place: Place,
    wanted: impl Fn(&PeerId) -> bool,
) -> Option<PeerId> {
    let before = ring.range(..place).rev().chain(ring.range(Place(place.0.wrapping_add(1))..).rev());
    before.map(|(_, peer)| peer).find(|peer| wanted(peer)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_round_both_ways() {
        let peers: Vec<_> = (0..3).map(|_| PeerId::random()).collect();
        let ring: BTreeMap<_, _> = [10, 20, 30].map(Place).into_iter().zip(peers.iter().copied()).collect();
        let all = |_: &PeerId| true;
        assert_eq!(successor(&ring, Place(10), all), Some(peers[1]));
        assert_eq!(successor(&ring, Place(30), all), Some(peers[0]));
        assert_eq!(successor(&ring, Place(u64::MAX), all), Some(peers[0]));
        assert_eq!(predecessor(&ring, Place(10), all), Some(peers[2]));
        assert_eq!(predecessor(&ring, Place(25), all), Some(peers[1]));
        assert_eq!(successor(&ring, Place(10), |peer| *peer == peers[0]), None, "not itself");
    }

    #[test]
    fn skew_is_the_median() {
        let mut links = Links::default();
        for ahead_ms in [0_u64, 3_600_000, 10] {
            let peer = PeerId::random();
            links.up(peer, None, Duration::ZERO);
            links.measured(&peer, Duration::from_millis(20), 1_000_000 - 10 + ahead_ms, 1_000_000);
        }
        assert_eq!(links.skew_ms(), Some(10));
    }
}
