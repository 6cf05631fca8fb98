//! Nodes in jobs of a real Slurm, by the scripts that users take.

use crate::{
    slurm::Slurm,
    support::{Mesh, eventually, post},
};
use serde_json::json;
use std::path::{Path, PathBuf};

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
