//! Real peers over TCP on the loopback: how fast one write is seen by all, and what an idle mesh sends.
//!
//! `cargo bench -p otela-node --bench loopback -- [--json] [--check] [--quick] [--peers N,N,…]`. All peers live in this
//! process, one of them a relay through which the others join. The program runs itself again in a network namespace of
//! its own where the system allows that, so that the kernel's counters of `lo` show this mesh and nothing else; where it
//! does not, the host's `lo` is read and the table says so. `--check` exits with 1 and names the rows that miss their
//! reach.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

mod mesh;
mod namespace;
mod report;

use mesh::Mesh;
use namespace::Place;
use report::Row;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// Reach of one write: seen by all peers within this.
const WRITE_SEEN_MS: f64 = 1_000.0;
/// Reach of an idle mesh, in bytes for each peer and second, at any size.
const IDLE_BYTES: f64 = 700.0;
/// The larger meshes may send this much more for each peer than the smallest one and still count as flat.
const FLAT_RATIO: f64 = 1.25;
/// Reach of the process that holds [`WRITE_PEERS`] idle peers, in percent of one core.
const IDLE_CPU: f64 = 3.0;
/// Peers of the measured write.
const WRITE_PEERS: usize = 128;

struct Plan {
    sizes: Vec<usize>,
    write_peers: usize,
    writes: usize,
    /// After all peers know each other: what start-up has stirred up comes to rest.
    settle: Duration,
    /// Some rounds of everything that happens now and then.
    watch: Duration,
}

impl Plan {
    fn of(arguments: &[String]) -> Self {
        let sizes = arguments.iter().skip_while(|argument| *argument != "--peers").nth(1);
        let sizes = sizes.map(|sizes| sizes.split(',').map(|size| size.parse().unwrap()).collect::<Vec<usize>>());
        if arguments.iter().any(|argument| argument == "--quick") {
            let sizes = sizes.unwrap_or_else(|| vec![10]);
            let write_peers = sizes.iter().copied().max().unwrap_or(10);
            let (settle, watch) = (Duration::from_secs(5), Duration::from_secs(10));
            return Self { sizes, write_peers, writes: 5, settle, watch };
        }
        let sizes = sizes.unwrap_or_else(|| vec![10, 50, 128, 500]);
        let (settle, watch) = (Duration::from_secs(40), Duration::from_secs(60));
        Self { sizes, write_peers: WRITE_PEERS, writes: 20, settle, watch }
    }
}

/// As `otela` itself: half of the processors, or as many as `--threads` says.
fn threads(arguments: &[String]) -> usize {
    let told = arguments.iter().skip_while(|argument| *argument != "--threads").nth(1);
    let usual = || std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).clamp(1, 8);
    told.map_or_else(usual, |told| told.parse().unwrap())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let place = match namespace::enter(&arguments) {
        namespace::Entered::Elsewhere(code) => return code,
        namespace::Entered::Here(place) => place,
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads(&arguments)).enable_all().build().unwrap();
    let rows = runtime.block_on(run(&Plan::of(&arguments), place));
    if has("--json") {
        let mut json = report::json(&rows);
        json["wire"] = place.name().into();
        println!("{json}");
    } else {
        println!("{}", report::table(&rows));
        println!("{}", place.note());
    }
    report::verdict(&rows, has("--check"))
}

async fn run(plan: &Plan, place: Place) -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(writes(plan).await);
    let mut smallest = None;
    for size in &plan.sizes {
        rows.extend(idle(*size, plan, place, &mut smallest).await);
    }
    rows
}

async fn writes(plan: &Plan) -> Vec<Row> {
    let what = format!("{} peers, one write", plan.write_peers);
    let began = Instant::now();
    let mesh = match Mesh::start(plan.write_peers).await {
        Ok(mesh) => mesh,
        Err(cause) => return vec![Row::unmeasured(&what, &cause)],
    };
    let mut rows =
        vec![Row::new(&format!("{} peers, all know all after", plan.write_peers), began.elapsed().as_secs_f64(), "s")];
    tokio::time::sleep(plan.settle).await;
    // Of each write, when each peer saw it; and when the last one did.
    let (mut each, mut last) = (Vec::new(), Vec::new());
    for n in 0..plan.writes {
        let Some(mut seen) = mesh.write(n).await else {
            rows.push(Row::unmeasured(&what, "a write was not seen by all within a minute"));
            mesh.stop().await;
            return rows;
        };
        seen.sort_unstable();
        last.extend(seen.last().copied());
        each.extend(seen);
    }
    mesh.stop().await;
    each.sort_unstable();
    last.sort_unstable();
    let samples = plan.writes;
    let row = |name: &str, took: Duration| {
        Row::new(&format!("{what}: {name}"), took.as_secs_f64() * 1e3, "ms").samples(samples)
    };
    rows.push(row("seen by half of them, p50", quantile(&each, 0.5)));
    rows.push(row("seen by 95 % of them, p95", quantile(&each, 0.95)));
    rows.push(row("seen by all, median write", quantile(&last, 0.5)));
    rows.push(row("seen by all, worst write", quantile(&last, 1.0)).reach(WRITE_SEEN_MS));
    rows
}

fn quantile(sorted: &[Duration], q: f64) -> Duration {
    let at = ((sorted.len() as f64 * q).ceil() as usize).clamp(1, sorted.len());
    sorted[at - 1]
}

/// `smallest` is the wire's rate of the first mesh measured, against which the others are flat or not.
async fn idle(size: usize, plan: &Plan, place: Place, smallest: &mut Option<f64>) -> Vec<Row> {
    let what = format!("{size} peers idle");
    let mesh = match Mesh::start(size).await {
        Ok(mesh) => mesh,
        Err(cause) => return vec![Row::unmeasured(&what, &cause)],
    };
    tokio::time::sleep(plan.settle).await;
    let (wire_before, gossip_before, began) = (namespace::sent(), mesh.gossip_sent(), Instant::now());
    let (views, opened, busy) = (mesh.views(), mesh.connections_opened(), processor_s());
    tokio::time::sleep(plan.watch).await;
    let took = began.elapsed().as_secs_f64();
    let (wire, gossip) = (namespace::sent(), mesh.gossip_sent());
    let per_peer = |before: f64, after: f64| (after - before) / took / size as f64;
    let wire_bytes = per_peer(wire_before.bytes, wire.bytes);
    // Whoever doubts that the mesh was idle sees it here.
    let changes = per_peer(views, mesh.views());
    let cpu = (processor_s() - busy) / took * 100.0;
    let (connections, opened) = (mesh.connections() as f64 / size as f64, per_peer(opened, mesh.connections_opened()));
    mesh.stop().await;
    let flat = *smallest.get_or_insert(wire_bytes) * FLAT_RATIO;
    let wire_row = Row::new(&format!("{what}: on the wire, all protocols"), wire_bytes, "B/s a peer");
    let row = |name: &str, value: f64, unit| Row::new(&format!("{what}: {name}"), value, unit);
    vec![
        row("gossip frames", per_peer(gossip_before, gossip), "B/s a peer").reach(IDLE_BYTES),
        if place == Place::Own { wire_row.reach(IDLE_BYTES.min(flat.max(1.0))) } else { wire_row },
        row("packets", per_peer(wire_before.packets, wire.packets), "/s a peer"),
        row("connections", connections, "a peer"),
        row("connections opened", opened * 60.0, "/min a peer"),
        row("changes of the view", changes, "/s a peer"),
        if size == WRITE_PEERS {
            row("processor time of all of them", cpu, "% of a core").reach(IDLE_CPU)
        } else {
            row("processor time of all of them", cpu, "% of a core")
        },
    ]
}

/// Seconds that this process has kept processors busy.
fn processor_s() -> f64 {
    let stat = procfs::process::Process::myself().and_then(|me| me.stat()).unwrap();
    (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
}
