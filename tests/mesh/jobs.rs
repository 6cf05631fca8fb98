//! Nodes in jobs of a real Slurm, by the scripts that users take.

use crate::{
    slurm::Slurm,
    support::{Mesh, eventually, post, post_bytes, raw, read_until},
};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::TcpStream;

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/slurm").join(name)
}

/// A mesh, and a Slurm whose jobs join it.
struct Cluster {
    mesh: Mesh,
    // Dropped last: the others are in its network.
    slurm: Slurm,
}

impl Cluster {
    async fn new() -> Self {
        let slurm = Slurm::start().await;
        Self { mesh: Mesh::ingress(&[]).await, slurm }
    }

    /// What jobs need to know.
    fn environment(&self) -> [(&str, &str); 4] {
        [
            ("OTELA", OTELA),
            ("OTELA_PEER_BOOTSTRAP", &self.mesh.bootstrap),
            ("OTELA_PEER_MESH", "test"),
            ("OTELA_PEER_LISTEN", "/ip4/127.0.0.1/tcp/0"),
        ]
    }

    /// Submits `worker.sbatch` with these options and a simulated engine; the job's id.
    async fn worker(&self, options: &[&str], engine: &[&str]) -> String {
        let script = script("worker.sbatch");
        let command = ["--mem=1000", script.to_str().unwrap(), OTELA, "engine"];
        self.slurm.submit("worker", &self.environment(), &[options, &command, engine].concat()).await
    }

    /// Waits until no node is listed.
    async fn left(&self) {
        eventually("all have left", async || self.mesh.listed().await.is_empty().then_some(())).await;
    }

    /// Waits until no process of this machine has `words` in its command line.
    async fn gone(&self, words: &str) {
        eventually("nothing is left", async || {
            let found = self.slurm.run("pgrep", &["-f", words]).await;
            found.stdout.is_empty().then_some(())
        })
        .await;
    }

    /// A few streams of so many tokens each, which have begun.
    async fn streams(&self, model: &str, tokens: usize) -> Vec<(String, TcpStream)> {
        let body = json!({"model": model, "prompt": "x", "max_tokens": tokens, "ignore_eos": true, "stream": true});
        let mut streams = Vec::new();
        for _ in 0..3 {
            let mut stream = raw(self.mesh.http, &post_bytes("/v1/completions", &body)).await;
            streams.push((read_until(&mut stream, "data: {").await, stream));
        }
        streams
    }

    async fn answers(&self, model: &str) {
        let body = json!({"model": model, "prompt": "x", "max_tokens": 2});
        let answer = post(self.mesh.http, "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{model}: {:?}", answer.body);
    }
}

/// Streams come to their ends, and nothing of them is missing.
async fn whole(streams: Vec<(String, TcpStream)>, tokens: usize) {
    for (first, mut stream) in streams {
        let all = first + &read_until(&mut stream, "data: [DONE]").await;
        assert!(all.matches("\"text\"").count() >= tokens, "{all}");
    }
}

#[tokio::test]
async fn lab_slurm_a_job_serves_and_leaves_nothing_when_it_is_cancelled() {
    let cluster = Cluster::new().await;
    let job = cluster.worker(&["--gpus=a100:1", "--time=10"], &["m", "--port", "0"]).await;
    cluster.mesh.serves("m", 1).await;
    cluster.answers("m").await;
    let node = cluster.mesh.listed().await.into_iter().next().unwrap();
    assert_eq!((&node["labels"]["slurm_job_id"], &node["labels"]["slurm_partition"]), (&json!(job), &json!("normal")));
    cluster.slurm.says("scancel", &[&job]).await;
    eventually("the node has left", async || cluster.mesh.listed().await.is_empty().then_some(())).await;
    assert_eq!(cluster.slurm.ended(&job).await, "CANCELLED", "{}", cluster.slurm.output("worker", &job));
}

#[tokio::test]
async fn lab_slurm_a_notice_or_a_signal_lets_requests_finish() {
    let cluster = Cluster::new().await;
    // To the batch step, to every step of the job, and the signal that a cancelled job gets first.
    for (nth, signal) in [
        &["--batch", "--signal=USR1"][..],
        &["--batch", "--signal=USR2"],
        &["--full", "--signal=TERM"],
        &["--batch", "--signal=INT"],
    ]
    .into_iter()
    .enumerate()
    {
        let model = format!("m{nth}");
        let engine = [&model, "--port", "0", "--itl", "50ms"];
        let job = cluster.worker(&["--gpus=a100:1", "--time=10"], &engine).await;
        cluster.mesh.serves(&model, 1).await;
        let streams = cluster.streams(&model, 60).await;
        cluster.slurm.says("scancel", &[signal, &[&job]].concat()).await;
        // On a busy machine it may be through with that before anybody looks.
        let draining = async || {
            let listed = cluster.mesh.listed().await;
            (listed.is_empty() || listed.iter().any(|node| node["draining"] == true)).then_some(())
        };
        eventually("others are told", draining).await;
        whole(streams, 60).await;
        assert_eq!(
            cluster.slurm.ended(&job).await,
            "COMPLETED",
            "{signal:?}: {}",
            cluster.slurm.output("worker", &job)
        );
        cluster.left().await;
    }
}

#[tokio::test]
async fn lab_slurm_where_the_limit_of_a_job_hits_streams_have_the_time_that_slurm_gives() {
    let cluster = Cluster::new().await;
    // It is told of another end, as where Slurm cannot be asked, and is hit by its own. Here Slurm kills after five seconds.
    let mut environment = cluster.environment().to_vec();
    environment.extend([("OTELA_START_ENDS_IN", "1h"), ("OTELA_START_DRAIN", "3s"), ("OTELA_START_STOP_GRACE", "1s")]);
    let worker = script("worker.sbatch");
    let options = ["--gpus=a100:1", "--time=1", "--mem=1000", worker.to_str().unwrap()];
    let engine = [OTELA, "engine", "hit-by-its-limit", "--itl", "50ms"];
    let job = cluster.slurm.submit("worker", &environment, &[&options[..], &engine].concat()).await;
    cluster.mesh.serves("hit-by-its-limit", 1).await;
    let body =
        json!({"model": "hit-by-its-limit", "prompt": "x", "max_tokens": 20, "ignore_eos": true, "stream": true});
    let mut answered = 0;
    // One after another, so that the limit hits one of them.
    loop {
        let mut stream = raw(cluster.mesh.http, &post_bytes("/v1/completions", &body)).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        if !head.contains(" 200 OK") {
            break;
        }
        whole(vec![(head, stream)], 20).await;
        answered += 1;
    }
    assert!(answered > 0, "{answered}");
    assert_eq!(cluster.slurm.ended(&job).await, "TIMEOUT", "{}", cluster.slurm.output("worker", &job));
    cluster.left().await;
    cluster.gone("engine hit-by-its-limit").await;
}

#[tokio::test]
async fn lab_slurm_a_job_that_ends_has_said_so_and_stopped_before() {
    let cluster = Cluster::new().await;
    let job = cluster.worker(&["--gpus=a100:1", "--time=2"], &["m", "--port", "0"]).await;
    cluster.mesh.serves("m", 1).await;
    let node = eventually("when it ends", async || {
        let node = cluster.mesh.listed().await.into_iter().next()?;
        node["ends_at_ms"].is_number().then_some(node)
    })
    .await;
    let shown = cluster.slurm.says("scontrol", &["show", "job", "-o", &job]).await;
    let end = shown.split_whitespace().find_map(|word| word.strip_prefix("EndTime=")).unwrap();
    assert_eq!(
        node["labels"]["expires_at"].as_str().unwrap().trim_end_matches('Z'),
        end,
        "this machine's clock is UTC"
    );
    // The node stops by itself: Slurm had to end nothing.
    cluster.left().await;
    assert_eq!(cluster.slurm.ended(&job).await, "COMPLETED", "{}", cluster.slurm.output("worker", &job));
}

#[tokio::test]
async fn lab_slurm_two_jobs_on_one_host_serve_beside_each_other() {
    let cluster = Cluster::new().await;
    // One command line, and no port in it.
    for _ in 0..2 {
        cluster.worker(&["--gpus=a100:1", "--time=10", "--nodelist=gpu0"], &["m"]).await;
    }
    cluster.mesh.serves("m", 2).await;
    cluster.answers("m").await;
    let nodes = cluster.mesh.listed().await;
    let jobs: std::collections::BTreeSet<_> =
        nodes.iter().map(|node| node["labels"]["slurm_job_id"].to_string()).collect();
    assert_eq!(jobs.len(), 2, "{nodes:?}");
}

#[tokio::test]
async fn lab_slurm_p49_an_agent_that_is_killed_leaves_its_accelerators_free() {
    let cluster = Cluster::new().await;
    let job = cluster.worker(&["--gpus=a100:2", "--time=10", "--nodelist=gpu0"], &["killed-in-a-job"]).await;
    cluster.mesh.serves("killed-in-a-job", 1).await;
    cluster.slurm.says("scancel", &["--batch", "--signal=KILL", &job]).await;
    cluster.gone("engine killed-in-a-job").await;
    cluster.slurm.ended(&job).await;
    let free = async || {
        let node = cluster.slurm.says("scontrol", &["show", "node", "-o", "gpu0"]).await;
        (!node.contains("AllocTRES=cpu") && !node.contains("gres/gpu=")).then_some(())
    };
    eventually("they are free", free).await;
    cluster.left().await;
}

#[tokio::test]
async fn lab_slurm_a_job_that_is_requeued_serves_again() {
    let cluster = Cluster::new().await;
    let job = cluster.worker(&["--gpus=a100:1", "--time=10", "--requeue"], &["m"]).await;
    cluster.mesh.serves("m", 1).await;
    let before = cluster.mesh.listed().await[0]["id"].clone();
    cluster.slurm.says("scontrol", &["requeue", &job]).await;
    eventually("another run serves", async || {
        let nodes = cluster.mesh.listed().await;
        (cluster.mesh.ready("m").await == 1 && nodes.iter().all(|node| node["id"] != before)).then_some(())
    })
    .await;
    assert_eq!(cluster.mesh.listed().await[0]["labels"]["slurm_job_id"], job);
    cluster.answers("m").await;
}

#[tokio::test]
async fn lab_slurm_an_engine_over_two_nodes_is_one_node_of_the_mesh_and_ends_as_one() {
    let cluster = Cluster::new().await;
    let script = script("worker-multinode.sbatch");
    // The second machine's part is a process that waits.
    let engine = "[ {rank} = 0 ] && exec \"$0\" engine two-{nodes} --port {port} --host 127.0.0.1; exec sleep 987";
    let arguments =
        ["--gpus-per-node=a100:1", "--mem=1000", "--time=10", script.to_str().unwrap(), "sh", "-c", engine, OTELA];
    let job = cluster.slurm.submit("multi", &cluster.environment(), &arguments).await;
    cluster.mesh.serves("two-2", 1).await;
    cluster.answers("two-2").await;
    assert_eq!(cluster.mesh.listed().await.len(), 1);
    assert!(!cluster.slurm.run("pgrep", &["-f", "sleep 987"]).await.stdout.is_empty(), "the other machine works too");
    cluster.slurm.says("scancel", &["--batch", "--signal=USR1", &job]).await;
    cluster.left().await;
    cluster.gone("sleep 987").await;
    cluster.slurm.ended(&job).await;
}

#[tokio::test]
async fn lab_slurm_p57_a_chain_of_jobs_serves_without_a_gap() {
    let cluster = Cluster::new().await;
    let (chain, worker) = (script("chain.sh"), script("worker.sbatch"));
    let options = ["--jobs", "3", "--overlap", "75s", "week", "--gpus=a100:1", "--mem=1000", "--time=2"];
    let mut command = tokio::process::Command::new(&chain);
    command.args(options).arg(&worker).args([OTELA, "engine", "m", "--itl", "20ms"]);
    command.envs(cluster.environment()).env("SLURM_CONF", cluster.slurm.conf()).current_dir(cluster.mesh.dir.path());
    let started = command.output().await.unwrap();
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    let twice = command.output().await.unwrap();
    assert_eq!(twice.status.code(), Some(2), "one chain of a name: {}", String::from_utf8_lossy(&twice.stderr));
    cluster.mesh.serves("m", 1).await;
    let (mut asked, mut jobs, mut at_once) = (0, std::collections::BTreeSet::new(), 0);
    let mut due = tokio::time::interval(Duration::from_millis(200));
    // Until the third one serves alone.
    while jobs.len() < 3 || cluster.mesh.listed().await.len() > 1 {
        due.tick().await;
        cluster.answers("m").await;
        asked += 1;
        let nodes = cluster.mesh.listed().await;
        at_once = nodes.len().max(at_once);
        jobs.extend(nodes.iter().map(|node| node["labels"]["slurm_job_id"].to_string()));
        assert!(asked < 2_000, "it goes on: {jobs:?}");
    }
    assert_eq!((jobs.len(), at_once), (3, 2), "of {asked} requests none has failed");
    cluster.slurm.says("scancel", &["--name=otela-chain-week"]).await;
    cluster.left().await;
}

#[tokio::test]
async fn a_relay_on_a_login_node_is_started_once_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let relay = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(script("relay.sh"));
        command.args(arguments).env("OTELA", OTELA).env("OTELA_RELAY_HOME", &home);
        let done = command.output().await.unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    assert_eq!(relay(&["status"]).await.0, Some(2));
    let flags = ["--peer-listen", "/ip4/127.0.0.1/tcp/0", "--mesh", "test"];
    let (code, address) = relay(&[&["start"], &flags[..]].concat()).await;
    assert_eq!(code, Some(0));
    assert!(address.starts_with("/ip4/127.0.0.1/tcp/"), "{address}");
    assert_eq!(relay(&["start"]).await, (Some(0), address.clone()), "it runs already");
    assert!(relay(&["status"]).await.1.contains(&address));
    assert_eq!(relay(&["stop"]).await.0, Some(0));
    assert_eq!(relay(&["status"]).await.0, Some(2));
}
