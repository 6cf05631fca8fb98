//! Nodes in jobs of a real Slurm, by the scripts that users take.

use crate::{
    slurm::Slurm,
    support::{Mesh, eventually, post, post_bytes, raw, read_until, within},
};
use serde_json::json;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/slurm").join(name)
}

/// A mesh, and a Slurm whose jobs join it.
struct Cluster {
    mesh: Mesh,
    slurm: Slurm,
}

impl Cluster {
    async fn new() -> Self {
        Self { mesh: Mesh::ingress(&[]).await, slurm: Slurm::start().await }
    }

    /// Submits `worker.sbatch` with these options and a simulated engine; the job's id.
    async fn worker(&self, options: &[&str], engine: &[&str]) -> String {
        let environment = [
            ("OTELA", env!("CARGO_BIN_EXE_otela")),
            ("OTELA_PEER_BOOTSTRAP", self.mesh.bootstrap.as_str()),
            ("OTELA_PEER_MESH", "test"),
            ("OTELA_PEER_LISTEN", "/ip4/127.0.0.1/tcp/0"),
        ];
        let script = script("worker.sbatch");
        let command = [script.to_str().unwrap(), env!("CARGO_BIN_EXE_otela"), "engine"];
        self.slurm.submit("worker", &environment, &[options, &command, engine].concat()).await
    }

    async fn answers(&self, model: &str) {
        let body = json!({"model": model, "prompt": "x", "max_tokens": 2});
        let answer = post(self.mesh.http, "/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{model}: {:?}", answer.body);
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
async fn lab_slurm_a_notice_lets_requests_finish() {
    let cluster = Cluster::new().await;
    let engine = ["m", "--port", "0", "--itl", "50ms"];
    let job = cluster.worker(&["--gpus=a100:1", "--time=10"], &engine).await;
    cluster.mesh.serves("m", 1).await;
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 60, "ignore_eos": true, "stream": true});
    let mut stream = raw(cluster.mesh.http, &post_bytes("/v1/completions", &body)).await;
    let first = read_until(&mut stream, "data: {").await;
    cluster.slurm.says("scancel", &["--batch", "--signal=USR1", &job]).await;
    let draining = async || cluster.mesh.listed().await.iter().any(|node| node["draining"] == true).then_some(());
    eventually("others are told", draining).await;
    let whole = first + &read_until(&mut stream, "data: [DONE]").await;
    assert!(whole.matches("\"text\"").count() >= 60, "{whole}");
    assert_eq!(cluster.slurm.ended(&job).await, "COMPLETED", "{}", cluster.slurm.output("worker", &job));
}

#[tokio::test]
async fn lab_slurm_a_job_that_ends_has_said_so_and_stopped_before() {
    let cluster = Cluster::new().await;
    let job = cluster.worker(&["--gpus=a100:1", "--time=1"], &["m", "--port", "0"]).await;
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
    within(Duration::from_secs(90), "the node has left", async || cluster.mesh.listed().await.is_empty().then_some(()))
        .await;
    assert_eq!(cluster.slurm.ended(&job).await, "COMPLETED", "{}", cluster.slurm.output("worker", &job));
}
