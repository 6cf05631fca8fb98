//! What membership costs: bytes in virtual time, memory and processor time on this machine.
//!
//! `cargo bench -p otela-proto --bench traffic -- [--quick] [--only PART] [--json] [--check]`. Bytes on the wire are
//! modelled (see `traffic.rs` of the simulation), payload is counted. Parts: idle, register, churn, memory, speed.

#[path = "../../simulation/report.rs"]
mod report;
#[path = "../../simulation/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod simulation;

mod machine;

use otela_proto::registry::{DEPARTED_MAX, GRAVES_MAX};
use report::{Options, Part, Row};
use simulation::{
    traffic::{KINDS, Traffic},
    world::World,
};
use std::{process::ExitCode, time::Duration};

/// Reach for an idle host, in bytes a second.
const IDLE_MAX: f64 = 700.0;
/// "Flat" means that 500 hosts cost each no more than this times what 50 do.
const FLAT_RATIO: f64 = 1.2;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1), 1) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("traffic: {problem}");
            return ExitCode::from(2);
        }
    };
    let parts: [Part; 5] = [
        ("idle", idle),
        ("register", register),
        ("churn", churn),
        ("memory", machine::memory),
        ("speed", machine::speed),
    ];
    let rows: Vec<_> =
        parts.iter().filter(|(name, _)| options.wants(name)).flat_map(|(_, measure)| measure(&options)).collect();
    report::finish(&rows, &options)
}

/// Bytes and frames that one host sends in a second, on the average.
struct Rate {
    payload: f64,
    wire: f64,
    kinds: String,
}

impl Rate {
    fn of(sum: &Traffic, hosts: usize, lasts: Duration) -> Self {
        let per = |count: u64| count as f64 / hosts as f64 / lasts.as_secs_f64();
        let kinds = KINDS.iter().zip(sum.bytes_of).filter(|(_, bytes)| *bytes > 0);
        let kinds = kinds.map(|(name, bytes)| format!("{name} {:.0}", per(bytes))).collect::<Vec<_>>().join(", ");
        Self { payload: per(sum.payload_bytes), wire: per(sum.wire_bytes), kinds }
    }
}

fn idle(options: &Options) -> Vec<Row> {
    let lasts = Duration::from_mins(if options.is_quick { 2 } else { 10 });
    let sizes: &[usize] = if options.is_quick { &[10, 50] } else { &[10, 50, 128, 500] };
    let mut rows = Vec::new();
    let mut wires = Vec::new();
    for hosts in sizes.iter().copied() {
        let mut world = World::formed(hosts, 1, 0.01);
        world.run_for(Duration::from_mins(2));
        world.take_traffic();
        let made = world.links_made;
        world.run_for(lasts);
        let made = world.links_made - made;
        let rate = Rate::of(&world.take_traffic_sum(), hosts, lasts);
        let links = world.hosts.iter().map(|host| host.links.len()).sum::<usize>() as f64 / hosts as f64;
        let how = format!("{} minutes; {links:.1} links each, {made} made meanwhile", lasts.as_secs() / 60);
        let what = |part: &str| format!("idle, {hosts} hosts: {part}");
        rows.push(Row::new(what("payload sent by each"), rate.payload, "B/s", format!("{how}; {}", rate.kinds)));
        rows.push(Row::new(what("on the wire"), rate.wire, "B/s", how).at_most(IDLE_MAX));
        wires.push((hosts, rate.wire));
    }
    let at = |hosts: usize| wires.iter().find(|(size, _)| *size == hosts).map(|(_, wire)| *wire);
    if let (Some(few), Some(many)) = (at(50), at(500)) {
        rows.push(Row::new("idle, on the wire, 500 hosts over 50", many / few, "", "flat").at_most(FLAT_RATIO));
    }
    rows
}

/// Ten hosts, each of which publishes anew every three seconds.
fn register(options: &Options) -> Vec<Row> {
    let (hosts, every) = (10, Duration::from_secs(3));
    let rounds = if options.is_quick { 20 } else { 200 };
    let mut world = World::formed(hosts, 1, 0.01);
    world.take_traffic();
    let began = world.now;
    for _ in 0..rounds {
        for host in 0..hosts {
            world.publish(host);
            world.run_for(every / hosts as u32);
        }
    }
    let rate = Rate::of(&world.take_traffic_sum(), hosts, world.now - began);
    let how = format!("each publishes every {} s, {rounds} times", every.as_secs());
    vec![
        Row::new(
            "10 hosts that register again: payload sent by each",
            rate.payload,
            "B/s",
            format!("{how}; {}", rate.kinds),
        ),
        Row::new("10 hosts that register again: on the wire", rate.wire, "B/s", how).at_most(8_000.0),
    ]
}

/// What one part of the churn has cost.
struct Stretch {
    cycle: usize,
    bytes: f64,
    frames: f64,
    resident: Option<f64>,
}

/// Peers that nobody has met join and leave. What is kept of them is bounded, so the first ones, many at a time, fill
/// it; from then on nothing may grow.
fn churn(options: &Options) -> Vec<Row> {
    let (hosts, cycles) = if options.is_quick { (20, 1_000) } else { (50, 20_000) };
    let mut world = World::formed(hosts, 1, 0.0);
    let full = DEPARTED_MAX + GRAVES_MAX + 1_000;
    for first in (0..full).step_by(100) {
        world.cycle(first..first + 100);
    }
    world.take_traffic();
    let mut stretches = Vec::new();
    let stretch = cycles / 10;
    for cycle in 1..=cycles {
        world.cycle(full + 100 + cycle..full + 101 + cycle);
        if cycle % stretch == 0 {
            let sum = world.take_traffic_sum();
            let per = |count: u64| count as f64 / stretch as f64 / hosts as f64;
            // What is remembered for the sake of the simulation is not part of a replica.
            world.verifier.forget();
            let resident = machine::resident_bytes().map(|bytes| bytes / hosts as f64);
            stretches.push(Stretch { cycle, bytes: per(sum.payload_bytes), frames: per(sum.frames), resident });
        }
    }
    let registry = world.member(0).registry();
    let held = format!("{} entries, {} graves at the end", registry.len(), registry.graves());
    let (early, last) = (&stretches[0], &stretches[stretches.len() - 1]);
    let between = format!("cycles {} to {} after the first {full}, {hosts} hosts; {held}", early.cycle, last.cycle);
    let cycles_between = (last.cycle - early.cycle) as f64;
    let slope = last.resident.zip(early.resident).map(|(last, early)| (last - early) / cycles_between);
    let how = format!("{hosts} hosts, {cycles} cycles; {:.1} frames by each for a cycle", last.frames);
    vec![
        Row::new("churn: memory of a replica, for each further cycle", slope, "B", between).at_most(20.0),
        Row::new("churn: payload sent by each host for a cycle, early", early.bytes, "B", &how),
        Row::new("churn: the same at the end", last.bytes, "B", &how),
        Row::new("churn: at the end over early", last.bytes / early.bytes, "", &how).at_most(1.1),
    ]
}
