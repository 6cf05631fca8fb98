//! Nodes that come, serve and go; the registry as observers see it; the demo.

use crate::support::{Mesh, Otela, Way, eventually, get, in_halves, post, post_bytes, raw, read_until};
use otela_testing::{ReservedPort, Stopwatch};
use serde_json::json;
use std::time::Duration;

each_way![p36_a_node_that_loads_is_shown_but_not_used];

#[tokio::test]
async fn a_relay_brings_strangers_together() {
    let relay = Otela::run(["relay", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0"]);
    let bootstrap = relay.says("others join with --bootstrap ").await;
    let ingress = Otela::run([
        "ingress",
        "--mesh",
        "test",
        "--listen",
        "127.0.0.1:0",
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
        "--bootstrap",
        &bootstrap,
    ]);
    let engine = env!("CARGO_BIN_EXE_otela");
    let _node = Otela::run([
        "start",
        "--mesh",
        "test",
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
        "--bootstrap",
        &bootstrap,
        "--label",
        "team=vision",
        "--process",
        engine,
        "engine",
        "org/m",
        "--port",
        "0",
    ]);
    let http = ingress.says("OpenAI base URL: http://").await.trim_end_matches("/v1").parse().unwrap();
    eventually("the model is served", async || (get(http, "/v1/models/org/m").await.status == 200).then_some(())).await;
    let chat = json!({"model": "org/m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3});
    assert_eq!(post(http, "/v1/chat/completions", &chat).await.status, 200);
    let registry = relay.says("registry: http://").await;
    let registry = registry.split('/').next().unwrap().parse().unwrap();
    let nodes = get(registry, "/v1/registry/nodes").await.json();
    let node = nodes["nodes"].as_array().unwrap().iter().find(|n| n["roles"][0] == "node").unwrap();
    assert_eq!((&node["lifecycle"], &node["labels"]["team"]), (&json!("serving"), &json!("vision")));
    assert_eq!(node["belief"]["state"], "alive");
    assert!(node["hardware"]["cpus"].as_u64().unwrap() > 0);
    let id = node["id"].as_str().unwrap();
    assert_eq!(get(registry, &format!("/v1/registry/nodes/{id}")).await.json()["id"], id);
    let model = get(registry, "/v1/registry/models/org/m").await.json();
    assert_eq!((&model["ready"], &model["replicas"][0]["node"]), (&json!(1), &json!(id)));
    assert_eq!(get(registry, "/v1/registry/models/nope").await.status, 404);
    assert_eq!(get(registry, "/v1/registry/nodes/nope").await.status, 404);
    let table = get(registry, "/v1/dnt/table").await.json();
    let row = &table[format!("/{id}")];
    assert_eq!((&row["service"][0]["identity_group"], &row["role"]), (&json!(["model=org/m"]), &json!(["worker"])));
    assert_eq!(
        (&row["service"][0]["name"], &row["status"], &row["connected"]),
        (&json!("llm"), &json!("ready"), &json!(true))
    );
}

#[tokio::test]
async fn the_watch_tells_everything_once_and_then_each_change() {
    let mut mesh = Mesh::ingress(&[]).await;
    let mut watch = raw(mesh.http, b"GET /v1/registry/watch HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let snapshot = read_until(&mut watch, "\n\n").await;
    assert!(snapshot.contains("event: snapshot"), "{snapshot}");
    mesh.simulated("m", &[]).await;
    let change = read_until(&mut watch, "\"lifecycle\":\"serving\"").await;
    assert!(change.contains("event: node") && change.contains("id: "), "{change}");
    mesh.nodes[0].signal("-TERM");
    read_until(&mut watch, "\"lifecycle\":\"left\"").await;
}

#[tokio::test]
async fn an_idle_node_shows_its_hardware() {
    let mesh = Mesh::ingress(&[]).await;
    let _idle = Otela::run([
        "start",
        "--mesh",
        "test",
        "--bootstrap",
        &mesh.bootstrap,
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
    ]);
    let node = eventually("the node and its hardware", async || {
        mesh.listed().await.into_iter().find(|node| node["hardware"]["cpus"].as_u64().is_some())
    })
    .await;
    assert_eq!((&node["lifecycle"], &node["services"]), (&json!("join"), &json!([])));
}

async fn p36_a_node_that_loads_is_shown_but_not_used(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let engine = env!("CARGO_BIN_EXE_otela");
    mesh.add(&[], &[engine, "engine", "m", "--port", "0", "--startup", "10s"]);
    eventually("it is shown as loading", async || {
        mesh.listed().await.into_iter().find(|node| node["services"][0]["loading"].is_string())
    })
    .await;
    assert_eq!(mesh.ready("m").await, 0);
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "m", "prompt": "x"})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (503, json!("model_not_ready")));
    let node = mesh.nodes[0].observed().await;
    let unready = get(node, "/ready").await;
    assert_eq!(unready.status, 503);
    assert!(unready.json()["reason"].as_str().unwrap().starts_with("the engine: "), "{:?}", unready.body);
    mesh.serves("m", 1).await;
    assert_eq!(get(node, "/ready").await.status, 200);
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 1})).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_clean_stop_finishes_what_runs_and_leaves_nothing() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &["--ttft", "5s", "--itl", "1ms"]).await;
    let engine = mesh.nodes[0].says("pid=").await;
    let (http, body) = (mesh.http, json!({"model": "m", "prompt": "x", "max_tokens": 3}));
    let running = post(http, "/v1/completions", &body);
    let stop = async {
        eventually("it runs", async || (mesh.metric("otela_ingress_in_flight").await == 1.0).then_some(())).await;
        mesh.nodes[0].signal("-TERM");
    };
    let (answer, ()) = tokio::join!(running, stop);
    assert_eq!(answer.status, 200);
    assert_eq!(mesh.nodes[0].ends().await, 0);
    assert!(!std::path::Path::new(&format!("/proc/{engine}")).exists(), "the engine is gone");
    eventually("it has left", async || mesh.listed().await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn p55_a_stop_lets_answers_finish_holds_on_to_nothing_else_and_a_second_signal_shortens_it() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.start(&["--drain", "10h", "--stop-grace", "1s"], "m", &["--itl", "20ms"]).await;
    let engine = mesh.nodes[0].says("pid=").await;
    let node = mesh.nodes[0].observed().await;
    let mut watchers = Vec::new();
    for _ in 0..2 {
        let mut watcher = raw(node, b"GET /v1/registry/watch HTTP/1.1\r\nhost: x\r\n\r\n").await;
        read_until(&mut watcher, "event: ").await;
        watchers.push(watcher);
    }
    let (mut short, mut long) = (stream(&mesh, "m", 200).await, stream(&mesh, "m", 30_000).await);
    let begun = read_until(&mut short, "data: {").await;
    read_until(&mut long, "data: {").await;
    mesh.nodes[0].signal("-TERM");
    // None of this waits for the end of the grace: the mesh is told, no request is let in, and watchers are sent home.
    mesh.serves("m", 0).await;
    let refused = post(mesh.http, "/v1/completions", &json!({"model": "m", "prompt": "x"})).await;
    assert_eq!(refused.status, 503);
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(get(node, "/ready").await.status, 503);
    for mut watcher in watchers {
        read_until(&mut watcher, "0\r\n\r\n").await;
    }
    let whole = begun + &read_until(&mut short, "data: [DONE]").await;
    assert_eq!(whole.matches("\"text\"").count(), 200, "{whole}");
    // Signals that come together are one.
    eventually("a second one is heard", async || {
        mesh.nodes[0].signal("-TERM");
        mesh.nodes[0].output().contains("stopping at once").then_some(())
    })
    .await;
    let (rest, _) = crate::support::read_to_end(&mut long).await;
    assert!(rest.contains("stream_broken"), "{rest}");
    assert_eq!(mesh.nodes[0].ends().await, 0);
    assert!(!std::path::Path::new(&format!("/proc/{engine}")).exists(), "the engine is gone");
}

/// A stream of so many tokens.
async fn stream(mesh: &Mesh, model: &str, tokens: usize) -> tokio::net::TcpStream {
    let body = json!({"model": model, "prompt": "x", "max_tokens": tokens, "ignore_eos": true, "stream": true});
    raw(mesh.http, &post_bytes("/v1/completions", &body)).await
}

#[tokio::test]
async fn p55_answers_have_as_long_as_the_grace_lasts_and_an_idle_node_has_none() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.start(&["--drain", "2s"], "busy", &["--itl", "20ms"]).await;
    mesh.start(&["--drain", "10h"], "idle", &[]).await;
    let mut long = stream(&mesh, "busy", 30_000).await;
    read_until(&mut long, "data: {").await;
    mesh.nodes[1].signal("-TERM");
    assert_eq!(mesh.nodes[1].ends().await, 0);
    let stopped = Stopwatch::start();
    mesh.nodes[0].signal("-TERM");
    let (rest, _) = crate::support::read_to_end(&mut long).await;
    assert!(rest.contains("stream_broken"), "{rest}");
    stopped.assert_at_least(Duration::from_secs(2), "the stream had its time");
    assert_eq!(mesh.nodes[0].ends().await, 0);
}

#[tokio::test]
async fn p49_killing_the_agent_takes_the_engine_with_it() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    let engine = mesh.nodes[0].says("pid=").await;
    mesh.nodes[0].signal("-KILL");
    eventually("the engine is gone", async || {
        (!std::path::Path::new(&format!("/proc/{engine}")).exists()).then_some(())
    })
    .await;
    mesh.serves("m", 0).await;
}

#[tokio::test]
async fn the_ingress_stops_in_good_order() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &["--ttft", "5s"]).await;
    assert_eq!(get(mesh.http, "/ready").await.status, 200);
    assert_eq!(get(mesh.http, "/health").await.status, 200);
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 3});
    let stop = async {
        eventually("it runs", async || (mesh.metric("otela_ingress_in_flight").await == 1.0).then_some(())).await;
        mesh.ingress.signal("-TERM");
    };
    let (answer, ()) = tokio::join!(post(mesh.http, "/v1/completions", &body), stop);
    assert_eq!(answer.status, 200);
    assert_eq!(mesh.ingress.ends().await, 0);
}

#[tokio::test]
async fn the_demo_serves_what_it_prints_and_leaves_nothing() {
    let mut demo = Otela::run(["demo", "--listen", "127.0.0.1:0"]);
    let http = demo.says("OpenAI base URL   http://").await;
    let http: std::net::SocketAddr = http.trim_end_matches("/v1").parse().unwrap();
    let line = demo.writes("curl http", 1).await;
    assert!(line.contains("chat"), "{line}");
    let line = &line[line.find("curl").unwrap()..];
    let answer = std::process::Command::new("sh").args(["-c", &format!("{line} -sS")]).output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(answer["object"], "chat.completion");
    let streaming = line.replace("\"messages\"", "\"stream\":true,\"messages\"");
    let streamed = std::process::Command::new("sh").args(["-c", &format!("{streaming} -sSN")]).output().unwrap();
    assert!(streamed.stdout.ends_with(b"data: [DONE]\n\n"));
    let models = get(http, "/v1/registry/models").await.json();
    assert_eq!(models["models"][0]["ready"], 2);
    let engines = children_of(demo.child.id().unwrap());
    assert!(engines.len() >= 2, "{engines:?}");
    demo.signal("-INT");
    assert_eq!(demo.ends().await, 0);
    for engine in engines {
        assert!(!std::path::Path::new(&format!("/proc/{engine}")).exists(), "{engine} is gone");
    }
}

fn children_of(pid: u32) -> Vec<String> {
    let output = std::process::Command::new("ps").args(["-o", "pid=", "--ppid", &pid.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[tokio::test]
async fn p39_a_node_that_restarts_with_its_key_is_one_node() {
    let mesh = Mesh::ingress(&[]).await;
    let key = mesh.dir.path().join("key");
    let engine = env!("CARGO_BIN_EXE_otela");
    let start = || {
        Otela::run([
            "start",
            "--mesh",
            "test",
            "--bootstrap",
            &mesh.bootstrap,
            "--peer-listen",
            "/ip4/127.0.0.1/tcp/0",
            "--key",
            key.to_str().unwrap(),
            "--process",
            engine,
            "engine",
            "m",
            "--port",
            "0",
        ])
    };
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let mut node = start();
        let listed = eventually("the new session serves, alone", async || {
            let listed = mesh.listed().await;
            let serving = |n: &serde_json::Value| n["lifecycle"] == "serving" && !sessions.contains(&n["session"]);
            (listed.len() == 1 && listed.iter().all(serving) && mesh.ready("m").await == 1).then_some(listed)
        })
        .await;
        sessions.push(listed[0]["session"].clone());
        let body = json!({"model": "m", "prompt": "x", "max_tokens": 1});
        assert_eq!(post(mesh.http, "/v1/completions", &body).await.status, 200);
        node.signal("-KILL");
        node.ends().await;
    }
}

#[tokio::test]
async fn a_mesh_outlives_its_relay_and_joins_it_again() {
    let port = ReservedPort::new();
    let listen = format!("/ip4/127.0.0.1/tcp/{}", port.address().port());
    let relay = || Otela::run(["relay", "--mesh", "test", "--peer-listen", &listen]);
    let mut first = relay();
    first.says("others join").await;
    let mut mesh = Mesh::ingress(&["--bootstrap", &port.address().to_string()]).await;
    mesh.simulated("m", &[]).await;
    first.signal("-KILL");
    first.ends().await;
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 1});
    assert_eq!(post(mesh.http, "/v1/completions", &body).await.status, 200, "nothing needs the relay");
    // With another key: only its address was configured.
    let second = relay();
    let registry = second.observed().await;
    eventually("the relay knows the model again", async || {
        (get(registry, "/v1/registry/models/m").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_ingresses_see_and_serve_the_same() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    let other = Mesh::ingress(&["--bootstrap", &mesh.bootstrap]).await;
    other.serves("m", 1).await;
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 4, "seed": 1});
    let answer = async |at| post(at, "/v1/completions", &body).await.json()["choices"].clone();
    assert_eq!(answer(mesh.http).await, answer(other.http).await);
    // A node that stood still is taken back once it answers again.
    mesh.nodes[0].signal("-STOP");
    mesh.nodes[0].signal("-CONT");
    assert_eq!(post(other.http, "/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn clients_are_told_when_the_time_to_finish_is_over() {
    let mut mesh = Mesh::ingress(&["--drain", "300ms"]).await;
    mesh.simulated("m", &["--ttft", "10ms", "--itl", "20ms"]).await;
    mesh.scripted("slow").await;
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 5000, "ignore_eos": true, "stream": true});
    let mut stream = raw(mesh.http, &crate::support::post_bytes("/v1/completions", &body)).await;
    read_until(&mut stream, "data: ").await;
    let plain = json!({"model": "slow", "script": [["gone"]]});
    let stop = async {
        eventually("both run", async || (mesh.metric("otela_ingress_in_flight").await == 2.0).then_some(())).await;
        mesh.ingress.signal("-TERM");
    };
    let (answer, ()) = tokio::join!(post(mesh.http, "/v1/completions", &plain), stop);
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (503, json!("stopping")));
    let (rest, _) = crate::support::read_to_end(&mut stream).await;
    assert!(rest.contains("stream_broken") && !rest.ends_with("0\r\n\r\n"), "{rest}");
    assert_eq!(mesh.ingress.ends().await, 0);
}

#[tokio::test]
async fn a_node_stops_before_its_machine_is_taken_away() {
    let mut mesh = Mesh::ingress(&[]).await;
    // For the last quarter of its time it takes no new requests.
    let flags = ["--ends-in", "2m", "--stop-grace", "1s", "--label", "team=vision"];
    let log = mesh.scripted_with("ends", &flags, &[]).await;
    let node = mesh.listed().await.into_iter().next().unwrap();
    assert!(node["ends_at_ms"].is_number(), "{node}");
    assert_eq!(node["labels"]["team"], "vision");
    // A stream that runs when the node begins to drain still comes to its end.
    let body = json!({"model": "ends", "prompt": "x", "stream": true, "script": in_halves("drain")});
    let mut stream = raw(mesh.http, &post_bytes("/v1/completions", &body)).await;
    let first = read_until(&mut stream, "data: {").await;
    eventually("it drains", async || mesh.listed().await.iter().any(|node| node["draining"] == true).then_some(()))
        .await;
    log.allow("drain");
    let whole = first + &read_until(&mut stream, "data: [DONE]").await;
    assert_eq!(whole.matches("\"text\"").count(), 2, "{whole}");
    assert_eq!(mesh.nodes[0].ends().await, 0);
    assert!(mesh.nodes[0].output().contains("takes no new requests"), "{}", mesh.nodes[0].output());
}
