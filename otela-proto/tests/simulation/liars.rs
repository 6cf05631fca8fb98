//! Peers that break the rules.

use crate::{
    refused, run,
    simulation::{
        forge::FORGERIES,
        operation::{Expected, Flood, Op},
        world::World,
    },
};
use otela_proto::registry::Belief;
use std::time::Duration;

#[test]
fn p28_what_its_owner_did_not_write_is_refused_and_counted() {
    let mut world = World::formed(8, 1, 0.0);
    world.lies(2);
    for kind in FORGERIES {
        let before = refused(&world, kind.reason());
        let neighbours = world.hosts[2].links.len() as u64;
        run(&mut world, &[Op::Forge { by: 2, of: 5, kind }, Op::Wait(1_000)]);
        assert_eq!(refused(&world, kind.reason()) - before, neighbours, "{kind:?} at each neighbour once");
        run(&mut world, &[Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    }
}

#[test]
fn p28_a_replay_revives_nothing() {
    let mut world = World::formed(8, 2, 0.0);
    let peer = world.hosts[5].peer;
    let old = world.member(2).registry().get(&peer).expect("known").clone();
    run(&mut world, &[Op::Write(5), Op::Wait(1_000), Op::Leave(5), Op::Wait(2_000), Op::Expect(Expected::Gone(5))]);
    for _ in 0..5 {
        world.broadcast(2, &[old.signed().to_vec()], &[]);
        run(&mut world, &[Op::Wait(5_000), Op::Expect(Expected::Gone(5)), Op::Expect(Expected::Equal)]);
    }
}

/// What a liar costs: the share of (host, healthy node) pairs in which the node may not be picked, over all moments.
fn disturbed(world: &mut World, liar: usize, lasts: Duration, mut lie: impl FnMut(&mut World)) -> f64 {
    let step = Duration::from_millis(100);
    let (mut pairs, mut lost) = (0_u64, 0_u64);
    for _ in 0..lasts.as_millis() / step.as_millis() {
        lie(world);
        world.run_for(step);
        for host in world.running().filter(|host| host.number != liar) {
            let member = world.member(host.number);
            for other in world.running().filter(|other| other.number != host.number && other.number != liar) {
                pairs += 1;
                lost += u64::from(member.belief(&other.peer) != Belief::Alive);
            }
        }
    }
    lost as f64 / pairs as f64
}

#[test]
fn one_liar_who_accuses_everybody_all_the_time_evicts_nobody_and_hardly_disturbs() {
    let mut world = World::formed(16, 3, 0.01);
    let mut moments = 0;
    let ratio = disturbed(&mut world, 2, Duration::from_mins(2), |world| {
        // Once a second, at everybody's newest publication.
        moments += 1;
        if moments % 10 == 1 {
            run(world, &[Op::Flood { by: 2, with: Flood::Accusations, count: 100 }]);
        }
    });
    let evicted = world.hosts.iter().map(|host| host.notes.new_sessions.len()).sum::<usize>();
    assert_eq!(evicted, 0);
    assert!(ratio < 0.01, "{:.2} % of healthy nodes are out at a moment", ratio * 100.0);
    run(&mut world, &[Op::Wait(30_000), Op::Expect(Expected::AllAlive)]);
}

#[test]
fn two_liars_cannot_evict() {
    let mut world = World::formed(16, 4, 0.0);
    for _ in 0..30 {
        run(&mut world, &[Op::Accuse { by: 2, of: 9 }, Op::Accuse { by: 3, of: 9 }, Op::Wait(1_000)]);
    }
    assert!(world.hosts[9].notes.new_sessions.is_empty());
    run(&mut world, &[Op::Wait(30_000), Op::Expect(Expected::AllAlive)]);
}

#[test]
fn three_who_agree_evict_and_the_evicted_comes_back_as_a_new_session() {
    let mut world = World::formed(16, 5, 0.0);
    let before = world.member(9).registry().rank(&world.hosts[9].peer);
    run(&mut world, &[Op::Accuse { by: 2, of: 9 }, Op::Accuse { by: 3, of: 9 }, Op::Accuse { by: 4, of: 9 }]);
    run(&mut world, &[Op::Wait(10_000), Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
    let after = world.member(9).registry().rank(&world.hosts[9].peer);
    assert!(after > before, "it has answered: {after:?}");
}

#[test]
fn floods_are_bounded_and_leave_the_mesh_as_it_was() {
    for with in [Flood::Forgeries, Flood::Accusations, Flood::Versions] {
        let mut world = World::formed(12, 6, 0.0);
        run(&mut world, &[Op::Flood { by: 2, with, count: 20_000 }, Op::Wait(20_000)]);
        run(&mut world, &[Op::Expect(Expected::AllAlive), Op::Expect(Expected::Equal)]);
        let spread = world.measure_spread(7, Duration::from_secs(2)).expect("a write still arrives");
        assert!(spread.all <= Duration::from_millis(500), "{with:?}: {spread:?}");
    }
}
