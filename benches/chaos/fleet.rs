//! The mesh under attack, and the engine beside it that says what is right.

use crate::support::{Mesh, Otela, eventually};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{net::SocketAddr, time::Duration};

/// Nodes that there are for the most part.
const NODES: usize = 6;
/// Fewer are never left: somebody has to take over.
const NODES_MIN: usize = 3;
pub(crate) const MODEL: &str = "m";
const ENGINE: [&str; 6] = ["--ttft", "40ms", "--itl", "8ms", "--port", "0"];

/// An ingress, its nodes, and an engine outside of the mesh.
pub(crate) struct Fleet {
    mesh: Mesh,
    _engine: Otela,
    reference: SocketAddr,
    rng: StdRng,
    kills: u32,
    starts: u32,
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        let mut mesh = Mesh::ingress(&["--policy", "p2c"]).await;
        for _ in 0..NODES {
            mesh.simulated(MODEL, &ENGINE[..4]).await;
        }
        let engine = Otela::run(["engine", MODEL].iter().chain(&["--ttft", "1ms", "--itl", "0ms", "--port", "0"]));
        let reference = engine.says(" address=").await.parse().unwrap();
        Self { mesh, _engine: engine, reference, rng: StdRng::seed_from_u64(5), kills: 0, starts: 0 }
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.mesh.http
    }

    pub(crate) fn reference(&self) -> SocketAddr {
        self.reference
    }

    /// Nodes killed and started so far.
    pub(crate) fn strikes(&self) -> (u32, u32) {
        (self.kills, self.starts)
    }

    /// After a moment a node is killed, stopped in good order, or started.
    pub(crate) async fn strike(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(500..2_500))).await;
        let serving = self.mesh.ready(MODEL).await;
        let lives = self.mesh.nodes.len();
        if serving > NODES_MIN && (lives >= NODES || self.rng.random_range(0..2) == 0) {
            let mut victim = self.mesh.nodes.remove(self.rng.random_range(0..lives));
            let signal = if self.rng.random_range(0..4) == 0 { "-TERM" } else { "-KILL" };
            victim.signal(signal);
            // Dropped, it would be killed before it could leave in good order.
            victim.ends().await;
            self.kills += 1;
        } else {
            let command = [&[env!("CARGO_BIN_EXE_otela"), "engine", MODEL], &ENGINE[..]].concat();
            self.mesh.add(&[], &command);
            self.starts += 1;
        }
    }

    /// Requests that are still in flight when nothing is left to do: none, unless a count has leaked.
    pub(crate) async fn settled(&self) -> f64 {
        eventually("the last requests end", async || {
            (self.metric("otela_ingress_in_flight").await + self.metric("otela_ingress_waiting").await <= 0.0)
                .then_some(())
        })
        .await;
        self.metric("otela_ingress_in_flight").await + self.metric("otela_ingress_waiting").await
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        self.mesh.metric(name).await
    }

    /// Resident memory of the ingress.
    pub(crate) fn memory_mib(&self) -> f64 {
        let pid = self.mesh.ingress.child.id().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
    }
}
