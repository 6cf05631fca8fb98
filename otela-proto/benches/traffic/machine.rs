//! What is measured on the machine at hand: memory and processor time.

use crate::{
    report::{Options, Row},
    simulation::{
        host::{WALL_START_MS, announcement, key},
        network::SITES,
        world::mesh,
    },
};
use otela_proto::{
    clock::Now,
    entry::{Draft, Entry, Rank},
    id::Epoch,
    lifecycle::Lifecycle,
    member::{Input, Member, Settings},
    payload::{Payload, Role},
    provider::ProviderRules,
    registry::{Registry, View},
};
use std::{
    collections::HashMap,
    hint::black_box,
    time::{Duration, Instant},
};

/// Peers of the meshes here.
const PEERS: usize = 1_000;
/// Owners of the registry whose memory is measured; many, so that pages do not matter.
const OWNERS: usize = 10_000;
const KIB: f64 = 1_024.0;

/// The signed bytes of `count` peers' entries.
fn signed(count: usize, version: u64) -> Vec<Vec<u8>> {
    let one = |number: usize| {
        let said = announcement(number % SITES, number, version);
        let payload = Payload {
            addresses: vec![crate::simulation::host::address_of(number).to_vec()],
            roles: vec![Role::Node as i32],
            services: said.services,
            labels: said.labels,
            software: "0.1.0".into(),
            ..Payload::default()
        };
        let rank = Rank { epoch: Epoch(WALL_START_MS), lifecycle: Lifecycle::Serving, version };
        let draft = Draft { rank, issued_at_ms: WALL_START_MS, payload };
        Entry::sign(&key(9, number, 0), &mesh(), draft).expect("small enough").signed().to_vec()
    };
    (0..count).map(one).collect()
}

fn open(bytes: &[u8]) -> Entry {
    Entry::open(bytes, &mesh(), WALL_START_MS).expect("good by construction")
}

/// Memory that this process holds, where the operating system tells.
pub(crate) fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()? * KIB)
}

/// A registry of many owners: with what gossip and readers need.
pub(crate) fn memory(_: &Options) -> Vec<Row> {
    let bytes = signed(OWNERS, 1);
    let size = bytes.iter().map(Vec::len).sum::<usize>() as f64 / OWNERS as f64;
    let before = resident_bytes();
    let mut registry = Registry::default();
    for bytes in &bytes {
        registry.learn(open(bytes), Duration::ZERO);
    }
    let after = resident_bytes();
    let (rules, now) = (ProviderRules::new(mesh()), Now { mono: Duration::ZERO, wall_ms: WALL_START_MS });
    let view = View::build(&registry, &HashMap::new(), &rules, now, Duration::from_hours(24), 1);
    let with_view = resident_bytes();
    let each = |more: Option<f64>, less: Option<f64>| Some((more? - less?) / OWNERS as f64 / KIB);
    let how = format!("{OWNERS} owners, signed entries of {size:.0} bytes on the average, resident memory");
    black_box(view);
    vec![
        Row::new("memory of a node in the registry", each(after, before), "KiB", &how).at_most(8.0),
        Row::new("the same with a view", each(with_view, before), "KiB", how).at_most(8.0),
    ]
}

/// Merging and looking up.
pub(crate) fn speed(options: &Options) -> Vec<Row> {
    let rounds = if options.is_quick { 1 } else { 5 };
    let settings = Settings::new(mesh());
    let now = Now { mono: Duration::from_secs(1), wall_ms: WALL_START_MS };
    let mut member = Member::new(key(8, 0, 0), settings, None, 1, Now { mono: Duration::ZERO, ..now });
    let from = key(8, 1, 0).public().to_peer_id();
    let mut out = Vec::new();
    let mut merge = |bytes: &[u8]| {
        let input = Input::Entries { from, entries: vec![open(bytes)], accusations: Vec::new() };
        member.handle(now, input, &mut out);
        out.clear();
    };
    signed(PEERS, 1).iter().for_each(|bytes| merge(bytes));
    let mut merged = Vec::new();
    for round in 0..rounds {
        for bytes in signed(PEERS, 2 + round) {
            merged.push(timed(|| merge(&bytes)));
        }
    }
    merged.sort_by(f64::total_cmp);
    let view = member.view(now, 1);
    let names: Vec<String> = (0..16).map(|number| format!("model-{number}")).collect();
    let lookups = 200_000;
    let took = timed(|| {
        for n in 0..lookups {
            black_box(view.model(black_box(&names[n % names.len()])));
        }
    });
    let how = format!("{PEERS} peers, {} merges on one processor", merged.len());
    let at = |ratio: f64| merged[((merged.len() - 1) as f64 * ratio) as usize] * 1e6;
    vec![
        Row::new("merge of one entry with its verification, median", at(0.5), "us", &how).at_most(100.0),
        Row::new("merge of one entry with its verification, 99 %", at(0.99), "us", how),
        Row::new("view: look-up by model", took / lookups as f64 * 1e6, "us", format!("{PEERS} peers, 17 models"))
            .at_most(5.0),
    ]
}

/// How many seconds it takes.
#[expect(clippy::disallowed_methods, reason = "processor time is what is measured")]
fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}
