//! How soon peers agree, in virtual time: on a write, on a death, after a partition, with a joiner.
//!
//! `cargo bench -p otela-proto --bench convergence -- [--seeds N] [--quick] [--only PART] [--json] [--check]`. The core
//! is the one that runs in production; hosts are at four sites, 0.15 to 0.6 ms apart inside and 5 to 20 ms across, and
//! 1 % of messages lose a segment that TCP repeats after 200 to 400 ms. Parts: write, death, mistakes, partition,
//! joiner. `--check` exits with 1 and names the rows that miss their reach.

#[path = "../../simulation/report.rs"]
mod report;
#[path = "../../simulation/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod simulation;

use otela_proto::{lifecycle::Lifecycle, member::Input, wire::Entries};
use report::{Options, Part, Row};
use simulation::{
    measure::{Death, Spread},
    operation::Op,
    world::World,
};
use std::{process::ExitCode, time::Duration};

/// Worlds for each distribution, unless the command line says otherwise.
const SEEDS: u64 = 200;
const LOSS: f64 = 0.01;
/// Longer than anything that is waited for may take.
const PATIENCE: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1), SEEDS) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("convergence: {problem}");
            return ExitCode::from(2);
        }
    };
    let parts: [Part; 5] =
        [("write", writes), ("death", deaths), ("mistakes", mistakes), ("partition", partition), ("joiner", joiner)];
    let rows: Vec<_> =
        parts.iter().filter(|(name, _)| options.wants(name)).flat_map(|(_, measure)| measure(&options)).collect();
    report::finish(&rows, &options)
}

fn writes(options: &Options) -> Vec<Row> {
    let mut rows = write(128, options.seeds, Some(100.0), 250.0);
    let large = if options.is_quick { 1 } else { options.seeds.div_ceil(10) };
    rows.extend(write(1_000, large, None, 300.0));
    rows
}

/// One write in each of so many worlds.
fn write(hosts: usize, seeds: u64, most_ms: Option<f64>, all_ms: f64) -> Vec<Row> {
    let spreads: Vec<Option<Spread>> = (0..seeds)
        .map(|seed| World::formed(hosts, seed, LOSS).measure_spread(seed as usize % hosts, PATIENCE))
        .collect();
    let of = |part: fn(&Spread) -> Duration| -> Option<Vec<f64>> {
        let mut ms =
            spreads.iter().map(|s| Some(part(s.as_ref()?).as_secs_f64() * 1_000.0)).collect::<Option<Vec<_>>>()?;
        ms.sort_by(f64::total_cmp);
        Some(ms)
    };
    let (most, all) = (of(|spread| spread.most), of(|spread| spread.all));
    let at = |ms: &Option<Vec<f64>>, ratio: f64| ms.as_ref().map(|ms| ms[((ms.len() - 1) as f64 * ratio) as usize]);
    let name = |who: &str, which: &str| format!("one write seen by {who} of {hosts} hosts, {which} seed");
    let how = format!("{seeds} seeds, {} % loss", LOSS * 100.0);
    let worst_most = Row::new(name("95 %", "worst"), at(&most, 1.0), "ms", &how);
    vec![
        Row::new(name("95 %", "median"), at(&most, 0.5), "ms", &how),
        most_ms.map_or_else(|| worst_most.clone(), |reach| worst_most.clone().at_most(reach)),
        Row::new(name("all", "median"), at(&all, 0.5), "ms", &how),
        Row::new(name("all", "worst"), at(&all, 1.0), "ms", &how).at_most(all_ms),
    ]
}

/// Hosts that crash: half of them silently, as with their power.
fn deaths(options: &Options) -> Vec<Row> {
    let hosts = 128;
    let seeds = options.seeds.div_ceil(4);
    let mut grace = Duration::ZERO;
    let deaths: Vec<Option<Death>> = (0..seeds)
        .map(|seed| {
            let mut world = World::formed(hosts, seed, LOSS);
            grace = world.settings.grace_far;
            world.measure_death((seed as usize * 7 + 3) % hosts, seed % 2 == 0, PATIENCE)
        })
        .collect();
    let worst = |part: fn(&Death) -> Duration| -> Option<f64> {
        let all = deaths.iter().map(|death| Some(part(death.as_ref()?).as_secs_f64())).collect::<Option<Vec<_>>>()?;
        all.into_iter().max_by(f64::total_cmp)
    };
    let evicted_s = (grace + Duration::from_secs(2)).as_secs_f64();
    let how = format!("{hosts} hosts, {seeds} seeds, worst; half of the crashes are silent");
    let graced = format!("{how}; the grace across sites is {} s", grace.as_secs());
    vec![
        Row::new("crash to suspected everywhere", worst(|death| death.suspected), "s", &how).at_most(3.0),
        Row::new("crash to evicted everywhere", worst(|death| death.evicted), "s", &graced).at_most(evicted_s),
        Row::new("first suspicion to evicted everywhere", worst(|death| death.evicted_after_suspicion), "s", &graced)
            .at_most(evicted_s),
    ]
}

fn mistakes(options: &Options) -> Vec<Row> {
    let (hosts, lasts) = (128, if options.is_quick { Duration::from_mins(3) } else { Duration::from_hours(1) });
    let seen = World::formed(hosts, 1, 0.1).measure_mistakes(lasts);
    let how = format!("{hosts} hosts, {} minutes, 10 % loss", lasts.as_secs() / 60);
    vec![
        Row::new("false evictions", seen.evictions as f64, "", &how).at_most(0.0),
        Row::new("beliefs that a living peer is suspect", seen.suspicions as f64, "", &how),
    ]
}

/// Half against half for an hour, with writes on both sides.
fn partition(options: &Options) -> Vec<Row> {
    let hosts = if options.is_quick { 24 } else { 128 };
    let minutes = if options.is_quick { 5 } else { 60 };
    let mut world = World::formed(hosts, 1, LOSS);
    world.network.cut(&(0..hosts / 2).collect::<Vec<_>>(), &(hosts / 2..hosts).collect::<Vec<_>>());
    world.network.cut(&(hosts / 2..hosts).collect::<Vec<_>>(), &(0..hosts / 2).collect::<Vec<_>>());
    for minute in 0..minutes {
        for writer in [minute % (hosts / 2), hosts / 2 + minute % (hosts / 2)] {
            world.publish(writer);
        }
        world.run_for(Duration::from_mins(1));
    }
    world.network.heal();
    let step = Duration::from_millis(50);
    let equal = world.run_while_not(PATIENCE, step, World::is_equal);
    let knows_all = |world: &World| {
        let present = world.running().count();
        world.running().all(|host| {
            let view = world.member(host.number).view(host.now(world.now), 1);
            view.nodes().filter(|(_, node)| node.is_listed()).count() == present
        })
    };
    let listed = world.run_while_not(PATIENCE, step, knows_all).map(|more| more + equal.unwrap_or_default());
    let whole = world.run_while_not(PATIENCE, step, World::is_whole).map(|more| more + listed.unwrap_or_default());
    let how = format!("{hosts} hosts, cut in halves for {minutes} minutes, two writes a minute");
    let seconds = |took: Option<Duration>| took.map(|took| took.as_secs_f64());
    vec![
        Row::new("healed to identical replicas", seconds(equal), "s", &how).at_most(5.0),
        Row::new("healed to everybody listed everywhere", seconds(listed), "s", &how).at_most(5.0),
        Row::new("healed to everybody believed alive everywhere", seconds(whole), "s", &how),
    ]
}

/// A fresh peer joins a mesh of 2,000 entries through one bootstrap.
fn joiner(_: &Options) -> Vec<Row> {
    let (hosts, entries) = (4, 2_000);
    let mut world = World::formed(hosts, 1, LOSS);
    let signed = world.ghosts(0, entries - hosts, Lifecycle::Serving, Duration::ZERO);
    let page = Entries { signed: signed.into_iter().map(Into::into).collect(), accusations: Vec::new() };
    for host in 0..hosts {
        let opened = world.verifier.open(&page, world.hosts[host].wall_ms(world.now));
        let from = world.hosts[(host + 1) % hosts].peer;
        world.input(host, Input::Entries { from, entries: opened.entries, accusations: Vec::new() });
    }
    world.run_for(Duration::from_millis(900));
    let joiner = world.add_host();
    world.bootstraps = vec![0];
    world.take_traffic();
    let done = world.apply(&Op::Join(joiner));
    debug_assert!(done.is_ok(), "nothing was expected");
    let took = world
        .run_while_not(PATIENCE, Duration::from_millis(1), |world| world.member(joiner).registry().len() > entries);
    let links = world.hosts[joiner].links.len();
    let traffic = world.take_traffic();
    let how = format!("{entries} entries, one bootstrap; {links} links by then");
    let received: u64 = (0..hosts).map(|host| traffic[host].frames_of[0]).sum();
    vec![
        Row::new("a joiner knows everybody", took.map(|took| took.as_secs_f64()), "s", &how).at_most(2.0),
        Row::new("frames that the joiner sent meanwhile", traffic[joiner].frames as f64, "", &how).at_most(100.0),
        Row::new("frames of entries that the others sent meanwhile", received as f64, "", &how).at_most(200.0),
    ]
}
