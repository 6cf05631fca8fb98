//! What a node costs its machine, and how soon it does what it must: an engine's end told, an agent's death cleaned up, a stop
//! carried out.
//!
//! `cargo bench --bench agent -- [--json] [--check]`. `--check` exits with 1 and names the rows that miss their reach.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made ends the program")]

#[path = "../../tests/mesh/process.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod process;
#[path = "../../otela-node/benches/loopback/report.rs"]
#[allow(dead_code, reason = "others measure more")]
mod report;
#[path = "../../tests/mesh/support.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod support;

use process::Otela;
use report::Row;
use std::{
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};
use support::Mesh;

const OTELA: &str = env!("CARGO_BIN_EXE_otela");
const ENDS: usize = 20;
const STOPS: usize = 10;
const KILLS: usize = 3;
/// How long an idle node, and one whose engine prints, are looked at.
const WATCHED: Duration = Duration::from_secs(20);
const MEGABYTES_PER_S: f64 = 10.0;
const TICKS_PER_S: f64 = 100.0;

/// Waits until `look` finds something, and looks often: what is measured here is a matter of milliseconds.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looks = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    otela_testing::finishes(what, looks).await
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let rows = runtime.block_on(run());
    if has("--json") {
        println!("{}", report::json(&rows));
    } else {
        println!("{}", report::table(&rows));
    }
    report::verdict(&rows, has("--check"))
}

async fn run() -> Vec<Row> {
    let mut rows = ends().await;
    rows.extend(kills().await);
    rows.extend(stops().await);
    rows.extend(idle().await);
    rows.extend(noise().await);
    rows
}

/// The middle and the largest.
fn spread(what: &str, mut all: Vec<f64>, unit: &'static str, reach: f64) -> Vec<Row> {
    all.sort_by(f64::total_cmp);
    let middle = Row::new(&format!("{what}, p50"), all[all.len() / 2], unit).samples(all.len());
    vec![middle, Row::new(&format!("{what}, most"), all[all.len() - 1], unit).samples(all.len()).reach(reach)]
}

/// From an engine's end to the ingress that shows it.
async fn ends() -> Vec<Row> {
    let mut all = Vec::new();
    for _ in 0..ENDS {
        let mut mesh = Mesh::ingress(&[]).await;
        mesh.simulated("m", &[]).await;
        let engine = engine_of(&mesh.nodes[0]);
        let begun = Instant::now();
        kill("-KILL", &engine);
        let is_down = async || mesh.listed().await.iter().all(|node| node["lifecycle"] != "serving").then_some(());
        eventually("it is down", is_down).await;
        all.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    spread("an engine's end, until the ingress shows it", all, "ms", 250.0)
}

/// From an agent's SIGKILL to the end of the last process of an engine that ignores SIGTERM.
async fn kills() -> Vec<Row> {
    let mut all = Vec::new();
    for nth in 0..KILLS {
        let mut mesh = Mesh::ingress(&[]).await;
        let mark = format!("stubborn-{}-{nth}", std::process::id());
        let script = format!(
            "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' {mark} &); while :; do sleep 1; done"
        );
        mesh.add(&[], &["sh", "-c", &script, &mark]);
        eventually("both run", async || (found(&mark) >= 2).then_some(())).await;
        let begun = Instant::now();
        mesh.nodes[0].signal("-KILL");
        eventually("the tree is gone", async || (found(&mark) == 0).then_some(())).await;
        all.push(begun.elapsed().as_secs_f64());
    }
    spread("an agent killed, until its stubborn engine is gone", all, "s", 5.0)
}

/// From a stop to the end of an idle node.
async fn stops() -> Vec<Row> {
    let mut all = Vec::new();
    for _ in 0..STOPS {
        let mut mesh = Mesh::ingress(&[]).await;
        mesh.simulated("m", &[]).await;
        let begun = Instant::now();
        mesh.nodes[0].signal("-TERM");
        mesh.nodes[0].ends().await;
        all.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    spread("an idle node, from its stop to its end", all, "ms", 1_000.0)
}

/// What a node takes that serves nobody.
async fn idle() -> Vec<Row> {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    let pid = mesh.nodes[0].child.id().unwrap();
    let percent = cpu_percent(pid, WATCHED).await;
    vec![
        Row::new("memory of an idle node", memory_mb(pid), "MB").reach(40.0),
        Row::new("an idle node, of one core", percent, "%").reach(0.5),
    ]
}

/// What it takes to read an engine that prints much.
async fn noise() -> Vec<Row> {
    let mesh = Mesh::ingress(&[]).await;
    let file = mesh.dir.path().join("noise");
    let (seconds, rate) = ((WATCHED.as_secs() + 5).to_string(), MEGABYTES_PER_S.to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/agent/noise.py");
    let start = ["start", "--mesh", "test", "--bootstrap", &mesh.bootstrap, "--peer-listen", "/ip4/127.0.0.1/tcp/0"];
    let engine = ["--process", "python3", script, file.to_str().unwrap(), &rate, &seconds];
    // Whoever reads all of it here would cost more than the node.
    let quiet = ["-c", "exec \"$0\" \"$@\" >/dev/null 2>&1", OTELA];
    let node = Otela::run_program("sh", quiet.iter().chain(&start).chain(&engine));
    eventually("it prints", async || (found(script) >= 1).then_some(())).await;
    let percent = cpu_percent(node.child.id().unwrap(), WATCHED).await;
    let written = eventually("it has printed all", async || {
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(&file).ok()?).ok()
    })
    .await;
    drop(node);
    let control = cats(script).await;
    vec![
        Row::new("an engine that prints on both pipes, of each", written["rate"].as_f64().unwrap(), "MB/s")
            .at_least(9.5),
        Row::new("its longest write", written["longest_s"].as_f64().unwrap() * 1e3, "ms"),
        Row::new("its node, of one core", percent, "%").reach(5.0),
        Row::new("two `cat` that pass on as much and keep nothing, of one core", control, "%"),
    ]
}

/// The control: what reading and writing as much costs on this machine, whoever does it.
async fn cats(script: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("noise");
    let (seconds, rate) = ((WATCHED.as_secs() + 5).to_string(), MEGABYTES_PER_S.to_string());
    let cat = || {
        let mut cat = std::process::Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut cats = [cat(), cat()];
    let [out, err] = cats.each_mut().map(|cat| Stdio::from(cat.stdin.take().unwrap()));
    let mut engine = std::process::Command::new("python3");
    let mut engine = engine.arg(script).arg(&file).args([rate, seconds]).stdout(out).stderr(err).spawn().unwrap();
    let [first, second] = cats.each_ref().map(|cat| cpu_percent(cat.id(), WATCHED));
    let (first, second) = tokio::join!(first, second);
    engine.kill().unwrap();
    engine.wait().unwrap();
    cats.iter_mut().for_each(|cat| {
        cat.wait().unwrap();
    });
    first + second
}

fn engine_of(node: &Otela) -> String {
    let output = node.output();
    let started = output.lines().rev().find_map(|line| line.split_once("engine started pid="));
    started.unwrap().1.split_whitespace().next().unwrap().to_owned()
}

fn kill(signal: &str, pid: &str) {
    assert!(std::process::Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// Processes with `mark` in their command line, besides this one's nodes and guards.
fn found(mark: &str) -> usize {
    let all = std::process::Command::new("pgrep").args(["-af", mark]).output().unwrap();
    String::from_utf8_lossy(&all.stdout)
        .lines()
        .filter(|line| !line.contains("otela") && !line.contains("pgrep"))
        .count()
}

/// Seconds of processor time that a process has taken.
fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<f64> = after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse().unwrap()).collect();
    fields.iter().sum::<f64>() / TICKS_PER_S
}

async fn cpu_percent(pid: u32, lasts: Duration) -> f64 {
    // What comes at the start is not what is asked for.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (begun, before) = (Instant::now(), cpu_s(pid));
    tokio::time::sleep(lasts).await;
    100.0 * (cpu_s(pid) - before) / begun.elapsed().as_secs_f64()
}

fn memory_mb(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() * 1024.0 / 1e6
}
