//! Engines that hang, fail and are started again; what is written down of them; and operators.

use crate::support::{
    Mesh, Otela, ScriptedLog, eventually, finishes, get, in_halves, post, post_bytes, raw, read_until, try_post,
};
use futures::future::select_all;
use otela_testing::stays_pending;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};
use tokio::process::Command;

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "x", "max_tokens": 2})
}

/// A command of the same binary, to its end.
async fn otela(arguments: &[&str]) -> Output {
    let done = Command::new(OTELA).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
    finishes("the end of a command", done).await.unwrap()
}

async fn key(mesh: &Mesh, name: &str) -> (PathBuf, String) {
    let file = mesh.dir.path().join(name);
    let id = otela(&["key", file.to_str().unwrap()]).await.stdout;
    (file, String::from_utf8(id).unwrap().trim().to_owned())
}

/// The one post-mortem in a folder.
async fn post_mortem(folder: &Path) -> Value {
    eventually("a post-mortem", async || {
        let found = std::fs::read_dir(folder).ok()?.filter_map(|file| Some(file.ok()?.path()));
        let mut found: Vec<_> = found.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect();
        assert!(found.len() < 2, "{found:?}");
        serde_json::from_slice(&std::fs::read(found.pop()?).unwrap()).ok()
    })
    .await
}

async fn shown(mesh: &Mesh, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || mesh.listed().await.into_iter().find(|node| is(node))).await
}

#[tokio::test]
async fn p37_an_engine_that_hangs_is_out_of_rotation_until_it_makes_a_token() {
    let mut mesh = Mesh::ingress(&[]).await;
    // An engine that lives has four seconds to make the token that it is asked for.
    let log = mesh.scripted_with("m", &["--hung-after", "8s"], &[]).await;
    // A long answer that is not streamed is no fault: when the engine is asked it makes a token.
    let (http, slow) = (mesh.http, json!({"model": "m", "prompt": "x", "script": [["await", "done"], ["send", OK]]}));
    let patient = async { post(http, "/v1/completions", &slow).await };
    let watched = async {
        let asked = async || (mesh_metric(&mesh, "otela_agent_engine_asked_total").await >= 1.0).then_some(());
        eventually("it was asked, and is well", asked).await;
        assert_eq!(mesh.ready("m").await, 1);
        log.allow("done");
    };
    let (answer, ()) = tokio::join!(patient, watched);
    assert_eq!(answer.status, 200);
    // Now it answers nobody, and lists its models as ever.
    log.allow("hang");
    let hanging = async { try_post(http, "/v1/completions", &ask("m")).await };
    let found = async {
        let node = shown(&mesh, "it is out", |node| node["services"][0]["loading"] == "not answering").await;
        assert_eq!(node["lifecycle"], "serving", "it is not dead");
        std::fs::remove_file(mesh.dir.path().join("scripted-0.hang")).unwrap();
        mesh.serves("m", 1).await;
    };
    tokio::select! {
        _ = hanging => panic!("nobody answers it"),
        () = found => {}
    }
    assert_eq!(post(mesh.http, "/v1/completions", &ask("m")).await.status, 200);
}

/// An answer in one piece.
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// A metric of the first node: the sum over its labels.
async fn mesh_metric(mesh: &Mesh, name: &str) -> f64 {
    let text = get(mesh.nodes[0].observed().await, "/metrics").await;
    crate::support::sum_metric(std::str::from_utf8(&text.body).unwrap(), name)
}

#[tokio::test]
async fn p37_streams_that_begin_and_are_kept_alive_without_a_token_are_no_sign_of_life() {
    let mut mesh = Mesh::ingress(&[]).await;
    let log = mesh.scripted_with("m", &["--hung-after", "8s"], &[]).await;
    log.allow("hang");
    // The front end goes on: it begins a stream, and keeps it alive.
    let _stream = raw(mesh.http, &endless(": still here\n\n")).await;
    shown(&mesh, "it is out", |node| node["services"][0]["loading"] == "not answering").await;
    let node = mesh.nodes[0].observed().await;
    assert_eq!(get(node, "/ready").await.json()["reason"], "the engine: not answering");
    std::fs::remove_file(mesh.dir.path().join("scripted-0.hang")).unwrap();
    mesh.serves("m", 1).await;
    assert_eq!(get(node, "/ready").await.status, 200);
}

/// A request whose answer is a stream of this, again and again.
fn endless(event: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let events = [json!(["send", event]), json!(["sleep", 0.2])];
    let script: Vec<_> = [json!(["send", head])].into_iter().chain(events.into_iter().cycle().take(6_000)).collect();
    post_bytes("/v1/completions", &json!({"model": "m", "prompt": "x", "stream": true, "script": script}))
}

/// Three callers at once that wait longer than a node of `HALF_PATIENT` is patient, for nothing, and go.
async fn give_up(mesh: &Mesh, log: &ScriptedLog) {
    let body = post_bytes("/v1/completions", &json!({"model": "m", "prompt": "x", "script": [["gone"]]}));
    let before = log.events("request").len();
    let mut callers = [raw(mesh.http, &body).await, raw(mesh.http, &body).await, raw(mesh.http, &body).await];
    // From here on the engine has all three.
    log.nth("request", before + 3).await;
    let answers = callers.each_mut().map(|caller| Box::pin(read_until(caller, "HTTP")));
    stays_pending("no answer comes", Duration::from_millis(3_200), select_all(answers)).await;
}

/// A node that asks its engine after three seconds of silence.
const HALF_PATIENT: [&str; 2] = ["--hung-after", "6s"];

#[tokio::test]
async fn p37_an_engine_that_is_full_is_no_dead_one() {
    let mut mesh = Mesh::ingress(&[]).await;
    let log = mesh.scripted_with("m", &HALF_PATIENT, &[]).await;
    // It works for one request, and all others have to wait.
    let mut stream = raw(mesh.http, &endless("data: {\"choices\": []}\n\n")).await;
    read_until(&mut stream, "data: {").await;
    log.allow("hang");
    give_up(&mesh, &log).await;
    give_up(&mesh, &log).await;
    assert_eq!(mesh_metric(&mesh, "otela_agent_engine_hung_total").await, 0.0, "{}", mesh.nodes[0].output());
    assert_eq!(mesh.ready("m").await, 1);
}

#[tokio::test]
async fn p37_one_that_answers_its_node_and_no_caller_is_out_for_a_while() {
    let mut mesh = Mesh::ingress(&[]).await;
    let log = mesh.scripted_with("m", &HALF_PATIENT, &[]).await;
    give_up(&mesh, &log).await;
    shown(&mesh, "it is out", |node| node["services"][0]["loading"] == "not answering").await;
    mesh.serves("m", 1).await;
    assert_eq!(post(mesh.http, "/v1/completions", &ask("m")).await.status, 200);
}

#[tokio::test]
async fn an_engine_that_hangs_for_good_is_ended_and_its_story_told() {
    let mut mesh = Mesh::ingress(&[]).await;
    let sink = mesh.dir.path().join("sink");
    let flags = ["--hung-after", "400ms", "--stop-grace", "200ms", "--log-sink", sink.to_str().unwrap()];
    let log = mesh.scripted_with("m", &flags, &[]).await;
    log.allow("hang");
    let http = mesh.http;
    let hanging = async { try_post(http, "/v1/completions", &ask("m")).await };
    let (_, code) = tokio::join!(hanging, mesh.nodes[0].ends());
    assert_eq!(code, 70, "{}", mesh.nodes[0].output());
    let story = post_mortem(&sink).await;
    assert!(story["cause"].as_str().unwrap().contains("hangs"), "{story}");
    assert_eq!(story["engine"]["command"][0], "python3");
}

#[tokio::test]
async fn a_fatal_line_ends_an_engine_that_makes_no_token_and_no_other() {
    let mut mesh = Mesh::ingress(&[]).await;
    let sink = mesh.dir.path().join("sink");
    let flags = ["--log-sink", sink.to_str().unwrap(), "--label", "team=vision", "--stop-grace", "200ms"];
    let flags = [&flags[..], &["--fatal-within", "2s"]].concat();
    let log = mesh.scripted_with("m", &flags, &["--api-key", "hunter2"]).await;
    // On a machine where the node's own question takes longer than that, the tokens of a request show that it lives.
    let mut stream = raw(mesh.http, &endless("data: {\"choices\": [{\"text\": \"x\"}]}\n\n")).await;
    read_until(&mut stream, "data: {").await;
    let line = "RuntimeError: CUDA error: an illegal memory access was encountered";
    let says = json!({"model": "m", "prompt": "x", "script": [["say", line], ["send", OK]]});
    assert_eq!(post(mesh.http, "/v1/completions", &says).await.status, 200);
    let survived = async || (mesh_metric(&mesh, "otela_agent_engine_survived_total").await == 1.0).then_some(());
    eventually("it was asked, and has survived", survived).await;
    assert_eq!(mesh.ready("m").await, 1, "a client that gets an engine to print something does not end it");
    drop(stream);
    eventually("no request runs", async || (mesh_metric(&mesh, "otela_agent_in_flight").await == 0.0).then_some(()))
        .await;
    // Lines that come soon after may be of the same fault. Later ones are looked at again, and now it makes no token.
    log.allow("hang");
    let prints = async {
        loop {
            log.print(line);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let code = tokio::select! {
        code = mesh.nodes[0].ends() => code,
        () = prints => unreachable!("it prints for ever"),
    };
    assert_eq!(code, 70, "{}", mesh.nodes[0].output());
    let story = post_mortem(&sink).await;
    assert_eq!(story["cause"], format!("the engine printed: {line}"));
    assert!(story["last_lines"].as_array().unwrap().iter().any(|last| last == line), "{story}");
    assert_eq!(story["labels"]["team"], "vision");
    assert!(story["metrics"].as_str().unwrap().contains("otela_agent_requests_total"));
    assert!(!story.to_string().contains("hunter2"), "{story}");
}

#[tokio::test]
async fn what_an_engine_tells_of_its_load_is_in_the_nodes_metrics_and_its_post_mortem() {
    let mut mesh = Mesh::ingress(&[]).await;
    let sink = mesh.dir.path().join("sink");
    mesh.start(&["--log-sink", sink.to_str().unwrap()], "m", &["--itl", "20ms"]).await;
    let node = mesh.nodes[0].observed().await;
    eventually("the load is told", async || {
        let text = String::from_utf8(get(node, "/metrics").await.body.to_vec()).unwrap();
        let all = ["requests{state=\"running\"}", "requests{state=\"waiting\"}", "kv_cache_ratio"];
        all.iter().all(|name| text.contains(&format!("\notela_agent_engine_{name}"))).then_some(())
    })
    .await;
    let engine = engine_of(&mesh.nodes[0], 1).await;
    assert!(Command::new("kill").args(["-9", &engine]).status().await.unwrap().success());
    let story = post_mortem(&sink).await;
    assert!(story["engine_metrics"]["text"].as_str().unwrap().contains("vllm:num_requests_running"), "{story}");
    assert_eq!(mesh.nodes[0].ends().await, 128 + 9);
}

#[tokio::test]
async fn what_is_known_of_a_failure_can_be_kept_by_another_peer() {
    let kept = tempfile::tempdir().unwrap();
    let mut mesh = Mesh::ingress(&["--post-mortems", kept.path().to_str().unwrap()]).await;
    let keeper = mesh.bootstrap.rsplit('/').next().unwrap().to_owned();
    let sink = format!("peer:{keeper}");
    // What the provider's own pattern says is believed at once.
    let log = mesh.scripted_with("m", &["--log-sink", &sink, "--fatal", "^Xid [0-9]+$"], &[]).await;
    let says = json!({"model": "m", "prompt": "x", "script": [["say", "Xid 79"], ["send", OK]]});
    assert_eq!(post(mesh.http, "/v1/completions", &says).await.status, 200);
    assert_eq!(mesh.nodes[0].ends().await, 70, "{}", mesh.nodes[0].output());
    let story = post_mortem(kept.path()).await;
    assert_eq!(story["cause"], "the engine printed: Xid 79");
    drop(log);
}

#[tokio::test]
async fn an_engine_that_fails_is_started_again_under_a_new_session_and_at_last_no_more() {
    let mut mesh = Mesh::ingress(&[]).await;
    let runs = mesh.dir.path().join("runs");
    // Serves twice, and then no more.
    let script = format!(
        "echo run >> {0}; [ $(wc -l < {0}) -gt 2 ] && exit 7; exec \"$0\" engine m --port {{port}} --host 127.0.0.1",
        runs.display()
    );
    let flags = ["--restart", "on-failure", "--restarts-max", "2"];
    mesh.add(&flags, &["sh", "-c", &script, OTELA]);
    mesh.serves("m", 1).await;
    let before = shown(&mesh, "it serves", |_| true).await;
    let engine = engine_of(&mesh.nodes[0], 1).await;
    assert!(Command::new("kill").args(["-9", &engine]).status().await.unwrap().success());
    let after =
        shown(&mesh, "it serves again", |node| node["session"] != before["session"] && node["lifecycle"] == "serving")
            .await;
    mesh.serves("m", 1).await;
    assert_eq!(after["id"], before["id"]);
    assert_eq!(post(mesh.http, "/v1/completions", &ask("m")).await.status, 200);
    let engine = engine_of(&mesh.nodes[0], 2).await;
    assert!(Command::new("kill").args(["-9", &engine]).status().await.unwrap().success());
    assert_eq!(mesh.nodes[0].ends().await, 7, "the engine's own code");
    let said = mesh.nodes[0].output();
    assert!(said.contains("this node gives up") && said.contains("exit code 7"), "{said}");
}

/// The process id of the `nth` engine that a node has started.
async fn engine_of(node: &Otela, nth: usize) -> String {
    let line = node.writes("engine started pid=", nth).await;
    let (_, after) = line.split_once("pid=").unwrap();
    after.split_whitespace().next().unwrap().to_owned()
}

#[tokio::test]
async fn a_node_is_drained_by_its_operator_and_nobody_else() {
    let mut mesh = Mesh::ingress(&[]).await;
    let (operator, id) = key(&mesh, "operator").await;
    let (stranger, _) = key(&mesh, "stranger").await;
    let log = mesh.scripted_with("m", &["--operator", &id], &[]).await;
    let node = mesh.listed().await[0]["id"].as_str().unwrap().to_owned();
    let asked = async |command: &str, key: &Path, more: &[&str]| {
        let bootstrap = mesh.bootstrap.clone();
        let flags = ["--mesh", "test", "--bootstrap", &bootstrap, "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--key"];
        otela(&[&[command, &node], &flags[..], &[key.to_str().unwrap()], more].concat()).await
    };
    let refused = asked("drain", &stranger, &[]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--operator"), "{refused:?}");
    assert_eq!(asked("logs", &stranger, &[]).await.status.code(), Some(1));
    let logs = asked("logs", &operator, &["--lines", "5"]).await;
    assert!(logs.status.success() && !logs.stdout.is_empty(), "{logs:?}");
    // What runs comes to its end, and the command waits for that.
    let body = json!({"model": "m", "prompt": "x", "stream": true, "script": in_halves("drain")});
    let mut stream = raw(mesh.http, &post_bytes("/v1/completions", &body)).await;
    let first = read_until(&mut stream, "data: {").await;
    let drains = async {
        shown(&mesh, "it drains", |node| node["draining"] == true).await;
        log.allow("drain");
        read_until(&mut stream, "data: [DONE]").await
    };
    let (drained, whole) = tokio::join!(asked("drain", &operator, &["--timeout", "10h"]), drains);
    assert_eq!((first + &whole).matches("\"text\"").count(), 2);
    assert!(drained.status.success(), "{drained:?}");
    assert!(String::from_utf8_lossy(&drained.stdout).contains("1 requests run"), "{drained:?}");
    assert_eq!(mesh.nodes[0].ends().await, 0);
}

#[tokio::test]
async fn a_node_is_drained_on_its_own_machine() {
    let mut mesh = Mesh::ingress(&[]).await;
    let folder = mesh.dir.path().join("control");
    let control = folder.to_str().unwrap().to_owned();
    let none = otela(&["drain", "--local", "--control", &control]).await;
    assert_eq!(none.status.code(), Some(69), "{none:?}");
    for model in ["m", "n"] {
        mesh.start(&["--control", &control], model, &[]).await;
    }
    let several = otela(&["drain", "--local", "--control", &control]).await;
    assert_eq!(several.status.code(), Some(2), "{several:?}");
    let pid = mesh.nodes[0].child.id().unwrap().to_string();
    let drained = otela(&["drain", "--pid", &pid, "--control", &control, "--timeout", "10h"]).await;
    assert!(drained.status.success(), "{drained:?}");
    assert_eq!(mesh.nodes[0].ends().await, 0);
    let logs = otela(&["logs", "--local", "--control", &control]).await;
    assert!(logs.status.success() && !logs.stdout.is_empty(), "{logs:?}");
    eventually("the other one is left", async || (mesh.listed().await.len() == 1).then_some(())).await;
}

#[tokio::test]
async fn an_engine_that_somebody_else_runs_is_offered_while_it_serves() {
    let mut mesh = Mesh::ingress(&[]).await;
    let start = |port: &str| Otela::run(["engine", "m", "--port", port]);
    let mut engine = start("0");
    let at = engine.says("address=").await;
    let url = format!("http://{at}");
    let bootstrap = mesh.bootstrap.clone();
    mesh.nodes.push(Otela::run([
        "start",
        "--mesh",
        "test",
        "--bootstrap",
        &bootstrap,
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
        "--attach",
        &url,
        "--engine",
        "vllm",
    ]));
    mesh.serves("m", 1).await;
    assert_eq!(post(mesh.http, "/v1/completions", &ask("m")).await.status, 200);
    engine.signal("-KILL");
    engine.ends().await;
    mesh.serves("m", 0).await;
    let _again = start(at.rsplit(':').next().unwrap());
    mesh.serves("m", 1).await;
    let node = mesh.listed().await.into_iter().next().unwrap();
    assert_eq!(node["services"][0]["engine"], "vllm");
    mesh.nodes[0].signal("-TERM");
    assert_eq!(mesh.nodes[0].ends().await, 0);
}

#[tokio::test]
async fn p54_eight_nodes_that_start_at_once_with_one_command_line_all_serve() {
    let mut mesh = Mesh::ingress(&[]).await;
    for _ in 0..8 {
        mesh.add(&[], &[OTELA, "engine", "m"]);
    }
    mesh.serves("m", 8).await;
    for node in &mut mesh.nodes {
        node.signal("-TERM");
        assert_eq!(node.ends().await, 0);
    }
}
