//! Against the real things: the official clients of OpenAI and Anthropic and what is built on them, schemathesis, a real vLLM and its load
//! generator, promtool. Prepared by `make lab`; the Makefile leaves these out, loudly, where a part of the lab is missing.

use crate::support::{Mesh, Otela, eventually, finishes, get, post, post_bytes, raw, read_until, sum_metric};
use futures::future::join_all;
use otela_testing::{ReservedPort, repetitions};
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::Stdio,
};
use tokio::{io::AsyncWriteExt, process::Command};

#[expect(clippy::disallowed_methods, reason = "where the lab is, is told by the Makefile")]
fn lab(part: &str) -> PathBuf {
    let lab = std::env::var("OTELA_LAB").expect("OTELA_LAB names the lab's folder: run these through the Makefile");
    PathBuf::from(lab).join(part)
}

/// A file or folder below `tests/clients`.
fn clients(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a client to its end; what it wrote.
async fn run(client: &mut Command) -> String {
    // No proxy of the environment applies: the service is on this machine.
    let client = client.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").kill_on_drop(true);
    let output = finishes("the end of a client", client.output()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}: {err}\n{out}", client.as_std());
    out.into_owned()
}

/// Runs scenarios of the official client; what it saw in the last one.
async fn openai(mesh: &Mesh, model: &str, scenarios: &[&str]) -> Value {
    let mut client = Command::new(lab("clients/bin/python"));
    client.arg(clients("openai_client.py")).arg(base_url(mesh)).args(scenarios).args(["--model", model]);
    let said = run(&mut client).await;
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

fn base_url(mesh: &Mesh) -> String {
    format!("http://{}/v1", mesh.http)
}

/// A model for clients of which each asks for everything and leaves one long stream early.
async fn model_of_clients() -> Mesh {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("org/m:tag", &["--ttft", "5ms", "--itl", "5ms"]).await;
    mesh
}

/// Of all requests, `left` were left by their clients, `unknown` were for a model that nobody has, and all others are well.
async fn ended(mesh: &Mesh, left: f64, unknown: f64) {
    let end = async |end| mesh.metric(&format!("otela_ingress_requests_total{{end=\"{end}\"}}")).await;
    eventually("the long stream is cancelled", async || (end("client_gone").await == left).then_some(())).await;
    assert_eq!(end("rejected").await, unknown);
    assert_eq!(mesh.metric("otela_ingress_requests_total").await, end("complete").await + left + unknown);
}

#[tokio::test]
async fn lab_openai_the_official_client_works_unmodified() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("org/m:tag", &["--ttft", "5ms", "--itl", "1ms"]).await;
    let all =
        ["chat", "stream", "completions", "completions-stream", "embeddings", "models", "retrieve", "stream-close"];
    // With retries off, so that nothing that failed is hidden.
    openai(&mesh, "org/m:tag", &[&all[..], &["--retries", "0"]].concat()).await;
    // Not found is final for the client; not ready is asked for again as often as it was told to.
    let tried = openai(&mesh, "no/such", &["not-found"]).await["attempts"].clone();
    assert_eq!(openai(&mesh, "no/such", &["not-found", "--retries", "0"]).await["attempts"], tried);
    mesh.nodes[0].signal("-TERM");
    mesh.serves("org/m:tag", 0).await;
    assert_eq!(openai(&mesh, "org/m:tag", &["unavailable", "--retries", "0"]).await["attempts"], 1);
    assert_eq!(openai(&mesh, "org/m:tag", &["unavailable"]).await["attempts"], 3);
}

#[tokio::test]
async fn lab_openai_langchain_litellm_and_the_calls_of_open_webui_work() {
    for (script, unknown) in [("langchain_client.py", 2.0), ("litellm_client.py", 2.0), ("open_webui_calls.py", 1.0)] {
        let mesh = model_of_clients().await;
        let mut client = Command::new(lab("clients/bin/python"));
        run(client.arg(clients(script)).arg(base_url(&mesh)).args(["--model", "org/m:tag"])).await;
        ended(&mesh, 1.0, unknown).await;
    }
}

#[tokio::test]
async fn lab_openai_the_official_client_of_anthropic_works_unmodified() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.scripted("org/m:tag").await;
    let mut client = Command::new(lab("clients/bin/python"));
    let base = format!("http://{}", mesh.http);
    run(client.arg(clients("anthropic_client.py")).arg(base).args(["--model", "org/m:tag"])).await;
}

#[tokio::test]
async fn lab_javascript_the_official_client_for_node_works_unmodified() {
    let mesh = model_of_clients().await;
    // Node looks for packages beside the script.
    let script = mesh.dir.path().join("openai_client.mjs");
    std::fs::copy(clients("javascript/openai_client.mjs"), &script).unwrap();
    let modules = mesh.dir.path().join("node_modules");
    std::os::unix::fs::symlink(lab("javascript/node_modules"), modules).unwrap();
    run(Command::new("node").arg(script).args([&base_url(&mesh), "org/m:tag"])).await;
    ended(&mesh, 1.0, 3.0).await;
}

/// Schemathesis makes up thousands of requests from the description, right and wrong ones, and compares each answer with
/// it. The same ones each time: its configuration says so.
#[tokio::test]
async fn lab_openapi_the_ingress_answers_as_it_is_described() {
    let mut mesh = Mesh::ingress(&["--policy-by-request"]).await;
    let key = mesh.dir.path().join("provider.key");
    let provider = run(Command::new(env!("CARGO_BIN_EXE_otela")).arg("key").arg(&key)).await.trim().to_owned();
    let flags = ["--provider-key", key.to_str().unwrap(), "--label", "team=a"];
    mesh.start(&flags, "Qwen/Qwen3-8B", &["--ttft", "1ms", "--itl", "1ms"]).await;
    eventually("the provider is proven", async || {
        let proven = get(mesh.http, &format!("/v1/registry/nodes?provider={provider}")).await.json();
        (proven["total"] == 1).then_some(())
    })
    .await;
    let document = get(mesh.http, "/openapi.json").await;
    let operations = crate::openapi::count(&document.json());
    // From a file: it would pass over the route that it was given the description by.
    std::fs::write(mesh.dir.path().join("openapi.json"), &document.body).unwrap();
    let mut schemathesis = Command::new(lab("openapi/bin/schemathesis"));
    schemathesis
        .arg("--config-file")
        .arg(clients("openapi/schemathesis.toml"))
        .args(["run", "openapi.json", "--url", &format!("http://{}", mesh.http)])
        .args(["--max-examples", repetitions("3", "20")])
        .env("TRUSTED_PROVIDER", provider)
        .env("PYTHONPATH", clients("openapi"))
        .current_dir(mesh.dir.path());
    let report = run(&mut schemathesis).await;
    assert!(report.contains(&format!("Tested: {operations}\n")), "all {operations} operations were tried: {report}");
    let complete = mesh.metric("otela_ingress_requests_total{end=\"complete\"}").await;
    assert!(complete > f64::from(repetitions(30, 200)), "{complete} requests have reached the engine: {report}");
}

#[tokio::test]
async fn lab_promtool_every_metrics_page_is_in_order() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    let relay = Otela::run(["relay", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0"]);
    assert_eq!(post(mesh.http, "/v1/completions", &json!({"model": "m", "prompt": "x"})).await.status, 200);
    assert_eq!(post(mesh.http, "/v1/completions", &json!({"model": "nope", "prompt": "x"})).await.status, 404);
    let mut pages = vec![mesh.http];
    for process in [&mesh.nodes[0], &relay] {
        pages.push(process.observed().await);
    }
    for page in pages {
        let metrics = get(page, "/metrics").await;
        assert!(metrics.header("content-type").starts_with("text/plain; version=0.0.4"));
        let mut promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool.stdin.take().unwrap().write_all(&metrics.body).await.unwrap();
        let output = promtool.wait_with_output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// One start of a real vLLM serves all of this: it takes a minute.
#[tokio::test]
async fn lab_vllm_a_real_engine_is_wrapped_served_cancelled_and_drained() {
    let mut mesh = Mesh::ingress(&[]).await;
    let vllm = lab("vllm/bin/vllm");
    // A name of its own, by which its processes are found.
    let tiny = mesh.dir.path().join("tiny");
    std::os::unix::fs::symlink(lab("tiny"), &tiny).unwrap();
    let reserved = ReservedPort::new();
    let port = reserved.address().port().to_string();
    // As a user would, but for the variables that the CPU build wants, and on one core, since others are tested too.
    let engine = [
        "env",
        "OMP_NUM_THREADS=1",
        "VLLM_CPU_KVCACHE_SPACE=1",
        "HF_HUB_OFFLINE=1",
        "VLLM_NO_USAGE_STATS=1",
        "DO_NOT_TRACK=1",
        vllm.to_str().unwrap(),
        "serve",
        tiny.to_str().unwrap(),
        "--served-model-name",
        "tiny",
        "--host",
        "127.0.0.1",
        "--port",
        &port,
        "--max-model-len",
        "1024",
        "--enforce-eager",
        // The kernels for bfloat16 want instructions that not every virtual machine has.
        "--dtype",
        "float32",
    ];
    let control = mesh.dir.path().join("control");
    let control = control.to_str().unwrap();
    mesh.add(&["--ready-within", "10h", "--restart", "on-failure", "--drain", "10h", "--control", control], &engine);
    eventually("it serves", async || (mesh.ready("tiny").await == 1).then_some(())).await;
    let node = &mesh.listed().await[0];
    assert_eq!((&node["services"][0]["engine"], &node["lifecycle"]), (&json!("vllm"), &json!("serving")));
    assert_eq!(node["services"][0]["models"][0]["context_length"], 1024);
    let all = ["chat", "stream", "completions", "completions-stream", "models", "retrieve", "stream-close"];
    openai(&mesh, "tiny", &all).await;
    openai(&mesh, "none", &["not-found"]).await;
    load(&mesh).await;
    cancelled_in_time(&mesh, reserved.address()).await;
    let at = mesh.nodes[0].observed().await;
    let told = String::from_utf8(get(at, "/metrics").await.body.to_vec()).unwrap();
    for name in ["requests{state=\"running\"}", "requests{state=\"waiting\"}", "kv_cache_ratio"] {
        assert!(told.contains(&format!("\notela_agent_engine_{name}")), "{told}");
    }
    // Its load generator takes half as long as its start, and a second start as long as the first.
    if repetitions(false, true) {
        bench(&mesh).await;
        lost_and_restarted(&mesh, &tiny).await;
    }
    drained(&mut mesh, control).await;
    assert_eq!(roots_of(&tiny), [""; 0], "left behind");
}

/// The engine's own process is killed: Down, nothing of it is left, and another one is started.
async fn lost_and_restarted(mesh: &Mesh, tiny: &std::path::Path) {
    let (before, pid) = (mesh.listed().await.remove(0), mesh.nodes[0].says("engine started pid=").await);
    assert!(std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    eventually("Down is seen", async || (mesh.listed().await.first()?["lifecycle"] == "down").then_some(())).await;
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "tiny", "prompt": "x"})).await;
    assert_eq!(answer.status, 503);
    eventually("it serves again", async || (mesh.ready("tiny").await == 1).then_some(())).await;
    let after = mesh.listed().await.remove(0);
    assert!(after["id"] == before["id"] && after["session"] != before["session"], "{after}");
    assert_eq!(roots_of(tiny).len(), 1, "the first one is gone");
    load(mesh).await;
}

/// The processes with this in their command line whose parents have it not: one for each engine.
fn roots_of(name: &std::path::Path) -> Vec<String> {
    let found = std::process::Command::new("pgrep").args(["-f", name.to_str().unwrap()]).output().unwrap();
    let found: Vec<_> = String::from_utf8(found.stdout).unwrap().split_whitespace().map(str::to_owned).collect();
    let parent = |pid: &str| {
        let output = std::process::Command::new("ps").args(["-o", "ppid=", "-p", pid]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    // The agent and its guard have it as well.
    let is_otela =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("otela"));
    let engines: Vec<_> = found.into_iter().filter(|pid| !is_otela(pid)).collect();
    engines.iter().filter(|pid| !engines.contains(&parent(pid))).cloned().collect()
}

/// The node is drained while it answers: the answer is whole, and the node ends in good order.
async fn drained(mesh: &mut Mesh, control: &str) {
    let body = json!({"model": "tiny", "prompt": "x", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let mut stream = raw(mesh.http, &post_bytes("/v1/completions", &body)).await;
    let first = read_until(&mut stream, "data: {").await;
    let mut drain = Command::new(env!("CARGO_BIN_EXE_otela"));
    drain.args(["drain", "--local", "--control", control]);
    let (said, rest) = tokio::join!(run(&mut drain), read_until(&mut stream, "data: [DONE]"));
    assert!(said.contains("the node has left"), "{said}");
    assert!((first + &rest).matches("\"text\"").count() > 100, "{rest}");
    assert_eq!(mesh.nodes[0].ends().await, 0, "{}", mesh.nodes[0].output());
}

/// Forty requests of eight clients: none fails. A node that gets no processor for a moment may be out of rotation for another,
/// and the official clients come again when they are told to.
async fn load(mesh: &Mesh) {
    let body = json!({"model": "tiny", "prompt": "x ".repeat(64), "max_tokens": 16, "ignore_eos": true});
    let client = async || {
        for _ in 0..5 {
            let answer = eventually("an answer", async || {
                let answer = post(mesh.http, "/v1/completions", &body).await;
                let comes_again = answer.status == 503 && !answer.header("retry-after").is_empty();
                (!comes_again).then_some(answer)
            })
            .await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            assert_eq!(answer.json()["usage"]["completion_tokens"], 16);
        }
    };
    join_all((0..8).map(|_| client())).await;
}

/// vLLM's own load generator, through the ingress: no request fails.
async fn bench(mesh: &Mesh) {
    let (url, folder) = (format!("http://{}", mesh.http), mesh.dir.path());
    let mut bench = Command::new(lab("vllm/bin/vllm"));
    bench
        .args(["bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"])
        .args(["--base-url", &url, "--model", "tiny", "--tokenizer"])
        .arg(lab("tiny"))
        .args(["--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "16", "--seed", "1"])
        .args(["--num-prompts", "40", "--max-concurrency", "8", "--ignore-eos", "--disable-tqdm"])
        .args(["--save-result", "--result-filename", "bench.json", "--result-dir"])
        .arg(folder)
        .envs([("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")]);
    run(&mut bench).await;
    let result: Value = serde_json::from_slice(&std::fs::read(folder.join("bench.json")).unwrap()).unwrap();
    assert_eq!((&result["completed"], &result["failed"]), (&json!(40), &json!(0)), "{result}");
}

/// vLLM itself says when it has stopped working on a request whose client has gone.
async fn cancelled_in_time(mesh: &Mesh, engine: std::net::SocketAddr) {
    let running = async || {
        let text = get(engine, "/metrics").await;
        sum_metric(std::str::from_utf8(&text.body).unwrap(), "vllm:num_requests_running")
    };
    for stream in [true, false] {
        let body = json!({"model": "tiny", "prompt": "x", "max_tokens": 1000, "ignore_eos": true, "stream": stream});
        let client = loop {
            let mut client = raw(mesh.http, &post_bytes("/v1/completions", &body)).await;
            if stream {
                read_until(&mut client, "data: ").await;
            }
            // On a machine with too much to do vLLM may be through with it before its metrics have told, and the node
            // may be out of rotation for a moment: then the answer is here, and it is asked again.
            let works = eventually("vLLM works on it", async || (running().await == 1.0).then_some(()));
            let through = async {
                if stream {
                    read_until(&mut client, "[DONE]").await;
                } else {
                    let _ = client.peek(&mut [0; 1]).await;
                }
            };
            tokio::select! {
                () = works => break client,
                () = through => {}
            }
        };
        drop(client);
        eventually("vLLM has stopped", async || (running().await == 0.0).then_some(())).await;
    }
}
