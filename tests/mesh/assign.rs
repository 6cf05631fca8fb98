//! Idle nodes that are told what to serve.

use crate::support::{Mesh, Otela, eventually, post, post_bytes, raw, read_until};
use http::{Method, Request};
use http_body_util::BodyExt;
use otela_node::{
    peer::{Identity, Peer, PeerConfig, RequestBody},
    tasks::Tasks,
    telemetry::Metrics,
};
use otela_proto::{
    Keypair, PeerId,
    assignment::{DIRECTIVE_PATH, Directive, Ticket, Work},
    id::Session,
    payload::Role,
};
use prost::Message;
use serde_json::{Value, json};

/// A scheduler as simple as can be: it signs what it is told to.
struct Scheduler {
    peer: Peer,
    key: Keypair,
    _tasks: Tasks,
}

impl Scheduler {
    async fn new(bootstrap: &str) -> Self {
        let identity = Identity::ephemeral();
        let (key, tasks) = (identity.keypair().clone(), Tasks::new());
        let config = PeerConfig {
            listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
            bootstrap: vec![bootstrap.parse().unwrap()],
            ..PeerConfig::new("test".parse().unwrap(), identity, vec![Role::Scheduler])
        };
        let (peer, _) = Peer::start(config, &tasks, &Metrics::new()).await.unwrap();
        peer.joined().await;
        Self { peer, key, _tasks: tasks }
    }

    async fn session(&self, node: PeerId) -> Session {
        let find = || self.peer.view().node(&node).map(|node| node.entry.session());
        eventually("the node is known", async || find()).await
    }

    /// What the node answers.
    async fn tell(&self, to: Session, (generation, plan): (u64, u64), work: Option<Work>) -> (u16, Value) {
        let ticket = Ticket { generation, scheduler: self.peer.id(), plan };
        let signed = Directive { to, ticket, work }.sign(&self.key, self.peer.mesh()).unwrap();
        let head = Request::builder().method(Method::POST).uri(DIRECTIVE_PATH).body(()).unwrap().into_parts().0;
        let body = RequestBody::Whole(signed.encode_to_vec().into());
        let (answer, _) = self.peer.send(&to.peer, head, body).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

fn work(model: &str) -> Option<Work> {
    Some(Work { template: "sim".into(), model: model.into(), tensor_parallel: 1, data_parallel: 1 })
}

const TEMPLATES: &str = r#"
[sim]
command = ["@", "engine", "{model}", "--port", "{port}", "--itl", "20ms"]
models = ["m*", "bad"]

[none]
command = ["/no/such/program", "{model}"]
"#;

/// An idle node that follows `schedulers`, and its id.
async fn idle(mesh: &Mesh, schedulers: &[&Scheduler]) -> (Otela, PeerId) {
    let templates = mesh.dir.path().join("templates.toml");
    std::fs::write(&templates, TEMPLATES.replace('@', env!("CARGO_BIN_EXE_otela"))).unwrap();
    let keys: Vec<String> = schedulers.iter().map(|scheduler| scheduler.peer.id().to_string()).collect();
    let node = Otela::run([
        "start",
        "--mesh",
        "test",
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
        "--bootstrap",
        &mesh.bootstrap,
        "--scheduler",
        &keys.join(","),
        "--templates",
        templates.to_str().unwrap(),
    ]);
    let said = node.says("joining the mesh mesh=test peer=").await;
    let id = said.parse().unwrap();
    (node, id)
}

/// What the registry shows that the node was told.
async fn assigned(mesh: &Mesh, state: &str) -> Value {
    eventually(&format!("assigned and {state}"), async || {
        let node = mesh.listed().await.into_iter().next()?;
        (node["assigned"]["state"] == state).then(|| node["assigned"].clone())
    })
    .await
}

#[tokio::test]
async fn an_idle_node_serves_what_it_is_told_one_thing_after_another() {
    let mesh = Mesh::ingress(&[]).await;
    let scheduler = Scheduler::new(&mesh.bootstrap).await;
    let (_node, id) = idle(&mesh, &[&scheduler]).await;
    let session = scheduler.session(id).await;
    assert_eq!(scheduler.tell(session, (1, 1), work("m1")).await, (202, json!({"taken": true})));
    mesh.serves("m1", 1).await;
    let shown = assigned(&mesh, "serving").await;
    assert_eq!((&shown["model"], &shown["plan"]), (&json!("m1"), &json!(1)));
    // A stream that runs when the node is told otherwise still comes to its end.
    let body = json!({"model": "m1", "prompt": "x", "max_tokens": 50, "ignore_eos": true, "stream": true});
    let mut stream = raw(mesh.http, &post_bytes("/v1/completions", &body)).await;
    let first = read_until(&mut stream, "data: {").await;
    assert_eq!(scheduler.tell(session, (1, 2), work("m2")).await.0, 202);
    let whole = first + &read_until(&mut stream, "data: [DONE]").await;
    assert!(whole.matches("\"text\"").count() >= 50, "{whole}");
    mesh.serves("m2", 1).await;
    assert_eq!(mesh.ready("m1").await, 0);
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "m2", "prompt": "x", "max_tokens": 2})).await;
    assert_eq!(answer.status, 200);
    // A later plan that leaves it at that.
    assert_eq!(scheduler.tell(session, (2, 1), work("m2")).await.0, 202);
    eventually("the later plan", async || (assigned(&mesh, "serving").await["generation"] == 2).then_some(())).await;
    assert_eq!(mesh.ready("m2").await, 1);
    let (status, said) = scheduler.tell(session, (1, 9), work("m1")).await;
    assert_eq!((status, said["reason"].as_str()), (409, Some("stale_plan")), "{said}");
    assert_eq!(scheduler.tell(session, (2, 2), None).await.0, 202);
    eventually("idle again", async || {
        let node = mesh.listed().await.remove(0);
        (node["assigned"].is_null() && node["services"] == json!([])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_fails_is_told_with_its_reason_and_the_node_stays() {
    let mesh = Mesh::ingress(&[]).await;
    let scheduler = Scheduler::new(&mesh.bootstrap).await;
    let (node, id) = idle(&mesh, &[&scheduler]).await;
    let session = scheduler.session(id).await;
    let none = Work { template: "none".into(), model: "m".into(), tensor_parallel: 1, data_parallel: 1 };
    assert_eq!(scheduler.tell(session, (1, 1), Some(none)).await.0, 202);
    let failed = assigned(&mesh, "failed").await;
    assert!(failed["reason"].as_str().unwrap().contains("`/no/such/program` not found"), "{failed}");
    assert_eq!(scheduler.tell(session, (1, 2), work("m1")).await.0, 202);
    mesh.serves("m1", 1).await;
    // The engine dies: seen at once, and the node can be told again.
    let engine = node.says("engine started pid=").await;
    let pid: i32 = engine.split(' ').next().unwrap().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    let failed = assigned(&mesh, "failed").await;
    assert!(failed["reason"].as_str().unwrap().contains("signal 9 (SIGKILL)"), "{failed}");
    assert_eq!(mesh.ready("m1").await, 0);
    assert_eq!(scheduler.tell(session, (1, 3), work("m1")).await.0, 202);
    mesh.serves("m1", 1).await;
}

#[tokio::test]
async fn nobody_else_is_followed() {
    let mesh = Mesh::ingress(&[]).await;
    let (trusted, stranger) = (Scheduler::new(&mesh.bootstrap).await, Scheduler::new(&mesh.bootstrap).await);
    let (node, id) = idle(&mesh, &[&trusted]).await;
    let session = stranger.session(id).await;
    let (status, said) = stranger.tell(session, (9, 9), work("m1")).await;
    assert_eq!((status, said["reason"].as_str()), (403, Some("unknown_scheduler")), "{said}");
    trusted.session(id).await;
    let (status, said) = trusted.tell(session, (1, 1), work("other")).await;
    assert_eq!((status, said["reason"].as_str()), (422, Some("model_not_allowed")), "{said}");
    node.says("an order was refused: ").await;
    assert!(mesh.listed().await[0]["assigned"].is_null());
}
