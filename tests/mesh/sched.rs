//! The scheduler of a mesh, with idle nodes that have all kinds of accelerators, as far as their `nvidia-smi` tells.

use crate::support::{Mesh, Otela, eventually, get, post};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::process::Command;

const QWEN: &str = "Qwen/Qwen2.5-7B-Instruct";
const LLAMA: &str = "meta-llama/Llama-3.3-70B-Instruct";
const SMALL: &str = "small";
const POLICY: &str = r#"
[[models]]
model = "Qwen/Qwen2.5-7B-Instruct"
rate = 2.0

[[models]]
model = "meta-llama/Llama-3.3-70B-Instruct"
rate = 0.5

[[models]]
model = "small"
like = "Qwen2.5-1.5B"
rate = 1.0
"#;

/// What `nvidia-smi` says on a machine with so many cards of this name.
pub(crate) fn nvidia_smi(dir: &Path, count: usize, name: &str, mib: u32) -> PathBuf {
    let bin = dir.join(format!("bin-{count}-{}", name.replace(' ', "-")));
    std::fs::create_dir_all(&bin).unwrap();
    let list = (0..count).map(|n| format!("echo 'GPU {n}: {name} (UUID: GPU-{n})'; ")).collect::<String>();
    let rows = (0..count).map(|n| format!("echo '{n}, GPU-{n}, {mib}, 550.54, {name}'; ")).collect::<String>();
    let tool = bin.join("nvidia-smi");
    std::fs::write(&tool, format!("#!/bin/sh\ncase \"$1\" in -L) {list};; *) {rows};; esac\n").replace("; ;;", ";;"))
        .unwrap();
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).unwrap();
    bin
}

/// What a command prints.
pub(crate) async fn prints(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_otela")).args(arguments).stdin(Stdio::null()).output().await.unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{arguments:?}: {said}");
    String::from_utf8(done.stdout).unwrap()
}

/// Six idle nodes of a mesh, and the schedulers that they follow.
struct Idle {
    mesh: Mesh,
    keys: Vec<(PathBuf, String)>,
    policy: PathBuf,
    nodes: BTreeMap<String, Otela>,
}

impl Idle {
    async fn new(schedulers: usize) -> Self {
        let mesh = Mesh::ingress(&[]).await;
        let dir = mesh.dir.path().to_owned();
        let mut keys = Vec::new();
        // One more, whom no node follows.
        for n in 0..=schedulers {
            let file = dir.join(format!("scheduler-{n}"));
            let id = prints(&["key", file.to_str().unwrap()]).await.trim().to_owned();
            keys.push((file, id));
        }
        let policy = dir.join("policy.toml");
        std::fs::write(&policy, POLICY).unwrap();
        let templates = dir.join("templates.toml");
        let otela = env!("CARGO_BIN_EXE_otela");
        std::fs::write(
            &templates,
            format!("[sim]\ncommand = ['{otela}', 'engine', '{{model}}', '--port', '{{port}}']\n"),
        )
        .unwrap();
        let mut idle = Self { mesh, keys, policy, nodes: BTreeMap::new() };
        let ids: Vec<&str> = idle.keys[..schedulers].iter().map(|(_, id)| id.as_str()).collect();
        let ids = ids.join(",");
        let machines = [
            (1, "NVIDIA GeForce RTX 4090", 24_564),
            (1, "NVIDIA GeForce RTX 4090", 24_564),
            (1, "NVIDIA A100-SXM4-80GB", 81_920),
            (4, "NVIDIA A100-SXM4-80GB", 81_920),
            (4, "NVIDIA A100-SXM4-80GB", 81_920),
            (8, "NVIDIA H100 80GB HBM3", 81_559),
        ];
        // All of them before anybody runs one: a file that is open for writing cannot be run.
        for bin in machines.map(|(count, name, mib)| nvidia_smi(&dir, count, name, mib)) {
            let shell = ["-c", "PATH=\"$0:$PATH\" exec \"$@\"", bin.to_str().unwrap(), otela];
            let arguments = ["start", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap"];
            let more = [&idle.mesh.bootstrap, "--scheduler", &ids, "--templates", templates.to_str().unwrap()];
            let node = Otela::run_program("sh", shell.into_iter().chain(arguments).chain(more));
            let id = node.says("joining the mesh mesh=test peer=").await;
            idle.nodes.insert(id, node);
        }
        eventually("six nodes with their cards", async || {
            let nodes = idle.mesh.listed().await;
            let known = nodes.iter().filter(|node| node["hardware"]["accelerators"][0]["count"].is_number());
            (known.count() == 6).then_some(())
        })
        .await;
        idle
    }

    fn scheduler(&self, nth: usize) -> Otela {
        let (key, _) = &self.keys[nth];
        let plans = self.plans(nth);
        Otela::run([
            "sched",
            "run",
            self.policy.to_str().unwrap(),
            "--mesh",
            "test",
            "--peer-listen",
            "/ip4/127.0.0.1/tcp/0",
            "--bootstrap",
            &self.mesh.bootstrap,
            "--key",
            key.to_str().unwrap(),
            "--plans",
            plans.to_str().unwrap(),
            "--ingress",
            &self.mesh.http.to_string(),
        ])
    }

    fn plans(&self, nth: usize) -> PathBuf {
        self.mesh.dir.path().join(format!("plans-{nth}"))
    }

    /// Waits until all models are served, and says by which node each.
    async fn served(&self) -> BTreeMap<String, Value> {
        for model in [QWEN, LLAMA, SMALL] {
            self.mesh.serves(model, 1).await;
        }
        let nodes = self.mesh.listed().await.into_iter();
        let told = nodes.filter(|node| node["belief"]["state"] == "alive" && node["assigned"]["state"] == "serving");
        told.map(|node| (node["assigned"]["model"].as_str().unwrap().to_owned(), node)).collect()
    }

    async fn answers(&self, model: &str) {
        let answer =
            post(self.mesh.http, "/v1/completions", &json!({"model": model, "prompt": "x", "max_tokens": 2})).await;
        assert_eq!(answer.status, 200, "{model}: {:?}", answer.body);
    }

    async fn kill(&mut self, node: &Value) {
        let mut gone = self.nodes.remove(node["id"].as_str().unwrap()).unwrap();
        gone.signal("-KILL");
        gone.ends().await;
    }
}

#[tokio::test]
async fn idle_nodes_get_models_and_what_a_lost_node_served_goes_to_a_spare() {
    let mut idle = Idle::new(1).await;
    let stranger = idle.scheduler(1);
    stranger.says("no node takes orders of this scheduler: it is named with --scheduler ").await;
    let scheduler = idle.scheduler(0);
    let before = idle.served().await;
    for model in [QWEN, LLAMA, SMALL] {
        idle.answers(model).await;
    }
    let card = |node: &Value| node["hardware"]["accelerators"][0].clone();
    assert!(card(&before[LLAMA])["count"].as_u64().unwrap() >= 4, "it does not fit on less: {before:?}");
    assert_eq!(card(&before[SMALL])["count"], 1, "no more than it needs");
    let free = idle.mesh.listed().await.into_iter().filter(|node| node["assigned"].is_null()).count();
    assert_eq!(free, 3);

    let lost = before[LLAMA].clone();
    idle.kill(&lost).await;
    let after = eventually("it is served again", async || {
        for model in [QWEN, SMALL] {
            idle.answers(model).await;
        }
        let after = idle.served().await;
        after.get(LLAMA).is_some_and(|node| node["id"] != lost["id"]).then_some(after)
    })
    .await;
    idle.answers(LLAMA).await;
    for model in [QWEN, SMALL] {
        assert_eq!(after[model]["id"], before[model]["id"]);
        assert_eq!(after[model]["assigned"], before[model]["assigned"], "nobody has touched it");
    }
    let plans = std::fs::read_dir(idle.plans(0))
        .unwrap()
        .filter(|file| file.as_ref().is_ok_and(|file| file.file_name() != "lock"));
    assert_eq!(plans.count(), 2, "{}", scheduler.output());
    let second = idle.plans(0).join("plan-00000002.json");
    let told = prints(&["sched", "explain", second.to_str().unwrap()]).await;
    assert!(told.contains("plan 2 of mesh test") && told.contains(LLAMA) && told.contains("a spare"), "{told}");
}

#[tokio::test]
async fn a_second_scheduler_takes_over_and_moves_nothing() {
    let mut idle = Idle::new(2).await;
    let mut first = idle.scheduler(0);
    let before = idle.served().await;
    let second = idle.scheduler(1);
    second.says("another scheduler acts: this one takes over when that is gone scheduler=").await;
    first.signal("-KILL");
    first.ends().await;
    second.says("it is this scheduler's turn generation=").await;
    let lost = before[SMALL].clone();
    idle.kill(&lost).await;
    let after = eventually("the second has placed it again", async || {
        let after = idle.served().await;
        after.get(SMALL).is_some_and(|node| node["id"] != lost["id"]).then_some(after)
    })
    .await;
    assert!(after[SMALL]["assigned"]["generation"].as_u64() > before[SMALL]["assigned"]["generation"].as_u64());
    for model in [QWEN, LLAMA] {
        assert_eq!(after[model]["assigned"], before[model]["assigned"], "{}", second.output());
    }
    // The first comes back, and stays behind.
    let again = idle.scheduler(0);
    again.says("another scheduler acts: this one takes over when that is gone scheduler=").await;
}

#[tokio::test]
async fn a_plan_can_be_looked_at_before_anybody_is_told() {
    let idle = Idle::new(1).await;
    let policy = idle.policy.to_str().unwrap();
    let command = ["sched", "plan", policy, "--mesh", "test", "--bootstrap", &idle.mesh.bootstrap];
    let told = prints(&command).await;
    assert!(told.contains("a spare: all have enough") && told.contains("gets 0.500 requests a second"), "{told}");
    let as_json = prints(&[&command[..], &["--json", "--as", &idle.keys[0].1]].concat()).await;
    let answer: Value = serde_json::from_str(&as_json).unwrap();
    assert_eq!((answer["steps"].as_array().unwrap().len(), answer["idle"].as_array().unwrap().len()), (3, 3));
    let stranger = prints(&[&command[..], &["--as", idle.nodes.keys().next().unwrap()]].concat()).await;
    assert!(stranger.contains("it takes no orders of this scheduler"), "{stranger}");
    assert!(stranger.contains("nothing is to be changed") && stranger.contains("lacks:"), "{stranger}");
    let nodes = get(idle.mesh.http, "/v1/registry/nodes").await.json();
    assert!(nodes["nodes"].as_array().unwrap().iter().all(|node| node["assigned"].is_null()));
}
