//! Ready means that the engine itself serves.

use crate::{
    agent::{report_in, reported, started},
    scene::{printed, script, signal, spawn},
};
use otela_node::{
    engine::{Kind, NotReady, Process, Progress, Ready, ReadyOptions, Stage, Task, wait_ready},
    tasks::Tasks,
};
use rustix::process::Signal;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    process::Command,
    time::Duration,
};
use tokio::sync::watch;

fn options() -> ReadyOptions {
    ReadyOptions { poll_max: Duration::from_millis(100), ..ReadyOptions::default() }
}

/// Long enough for several looks at an engine that already runs.
fn impatient() -> ReadyOptions {
    ReadyOptions { limit: Duration::from_secs(3), ..options() }
}

fn on_port(port: u16) -> Kind {
    Kind { port: Some(port), ..Kind::recognise(&[], None) }
}

fn anywhere() -> Kind {
    Kind { port: None, ..on_port(0) }
}

async fn wait(process: &Process, kind: &Kind, options: &ReadyOptions) -> Result<Ready, NotReady> {
    wait_ready(process, kind, options, &watch::channel(Progress::default()).0).await
}

/// A server that is not ours, with a model that nobody asked for.
fn stranger(listener: TcpListener) -> u16 {
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let _head = stream.read(&mut [0; 4096]);
            let body = r#"{"object":"list","data":[{"id":"stranger"}],"choices":[{"index":0}]}"#;
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let _gone = stream.write_all(answer.as_bytes());
        }
    });
    port
}

pub(crate) async fn p36_ready_only_after_a_generated_token() {
    let tasks = Tasks::new();
    let process = spawn(script("server.py", &["--step", "0"]), &tasks).await;
    let port: u16 = printed(&process, "bound").await.parse().expect("a port");
    let (sender, mut progress) = watch::channel(Progress::default());
    let (kind, options) = (on_port(port), options());
    let ready = wait_ready(&process, &kind, &options, &sender);
    let story = async {
        for (stage, problem) in [
            (Stage::Starting, format!("port {port} is not open yet")),
            (Stage::PortOpen, "lists no model yet".to_owned()),
            (Stage::ModelsListed, "HTTP 503 Service Unavailable: still warming up".to_owned()),
        ] {
            let now = |p: &Progress| p.problem.as_ref().is_some_and(|text| text.contains(&problem));
            let progress = progress.wait_for(now).await.expect("still waiting").clone();
            assert!(progress.stage == stage || progress.stage == Stage::Generating, "{progress:?}");
            assert!(progress.last_line.is_some(), "{progress:?}");
            signal(process.pid(), Signal::USR1);
        }
    };
    let (ready, ()) = tokio::join!(ready, story);
    let ready = ready.expect("serves");
    assert_eq!(ready.endpoint, SocketAddr::from(([127, 0, 0, 1], port)));
    let model = &ready.models[0];
    assert_eq!((model.id.as_str(), model.max_model_len), ("org/model", Some(4096)));
    assert_eq!((ready.version.as_deref(), ready.task, ready.expected_port), (Some("0.9.test"), Task::Completion, None));
    assert_eq!(sender.borrow().stage, Stage::Generating);
    process.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p36_never_ready_says_how_far_it_came() {
    let tasks = Tasks::new();
    let process = spawn(script("server.py", &["--step", "1"]), &tasks).await;
    printed(&process, "bound").await;
    let error = wait(&process, &anywhere(), &impatient()).await.expect_err("never serves");
    let text = error.to_string();
    assert!(text.contains("did not serve within 3s (stage: port open; /v1/models at 127.0.0.1:"), "{text}");
    assert!(text.contains("lists no model yet); its last line: bound"), "{text}");
    assert_eq!(process.exit(), None, "stopping is the caller's");
    process.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p36_an_engine_that_ends_says_how() {
    let tasks = Tasks::new();
    let command = ["sh", "-c", "echo loading; echo 'CUDA out of memory' >&2; exit 7"].map(Into::into).to_vec();
    let process = spawn(command, &tasks).await;
    let error = wait(&process, &anywhere(), &options()).await.expect_err("ended");
    let text = error.to_string();
    assert!(text.starts_with("the engine ended with exit code 7 before it served; its last line: "), "{text}");
    let NotReady::Exited { mut last_lines, .. } = error else { panic!("{error:?}") };
    last_lines.sort();
    assert_eq!(last_lines, ["CUDA out of memory", "loading"]);
}

pub(crate) async fn p36_models_that_do_not_complete_text() {
    for (name, task) in [("chat", Task::Chat), ("embedding", Task::Embedding), ("other", Task::Other)] {
        let tasks = Tasks::new();
        let process = spawn(script("server.py", &["--task", name]), &tasks).await;
        let ready = wait(&process, &anywhere(), &options()).await.expect("serves");
        assert_eq!(ready.task, task);
        process.stop(Duration::from_secs(5)).await;
    }
}

pub(crate) async fn p36_refusals_without_a_reason_are_not_believed() {
    let tasks = Tasks::new();
    let process = spawn(script("server.py", &["--task", "none"]), &tasks).await;
    printed(&process, "bound").await;
    let text = wait(&process, &anywhere(), &impatient()).await.expect_err("never serves").to_string();
    assert!(text.contains("HTTP 404 Not Found: Not Found"), "{text}");
    process.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p36_a_key_in_the_arguments_is_used() {
    let tasks = Tasks::new();
    let argv = script("server.py", &["--api-key", "hunter2"]);
    let kind = Kind::recognise(&argv, None);
    let process = spawn(argv, &tasks).await;
    wait(&process, &kind, &options()).await.expect("serves");
    let keyless = Kind { api_key: None, ..kind };
    let text = wait(&process, &keyless, &impatient()).await.expect_err("refused").to_string();
    assert!(text.contains("HTTP 401 Unauthorized: Unauthorized (it wants a key"), "{text}");
    process.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p50_the_port_of_another_server_is_never_ready() {
    let port = stranger(TcpListener::bind("127.0.0.1:0").expect("a port"));
    let tasks = Tasks::new();
    let argv = script("server.py", &["--port", &port.to_string()]);
    let kind = Kind::recognise(&argv, None);
    assert_eq!(kind.expected_port(), Some(port));
    let process = spawn(argv, &tasks).await;
    let error = wait(&process, &kind, &options()).await.expect_err("the port is taken");
    let NotReady::AddressInUse { holder, .. } = &error else { panic!("{error:?}") };
    let (pid, _) = holder.as_ref().and_then(|holder| holder.process.clone()).expect("it is us");
    assert_eq!(pid.unsigned_abs(), std::process::id());
    let text = error.to_string();
    assert!(text.contains(&format!("port {port} is in use by process {pid} (")), "{text}");
    // One that stays, waiting for the port to become free, is no better.
    let process = spawn(vec!["sleep".into(), "1000".into()], &tasks).await;
    let text = wait(&process, &kind, &impatient()).await.expect_err("never serves").to_string();
    assert!(text.contains(&format!("port {port} is not open yet")), "{text}");
    process.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p50_a_shared_port_is_never_ready() {
    let tasks = Tasks::new();
    let first = spawn(script("server.py", &["--reuse-port"]), &tasks).await;
    let port = printed(&first, "bound").await;
    let second = spawn(script("server.py", &["--reuse-port", "--port", &port]), &tasks).await;
    printed(&second, "bound").await;
    let kind = on_port(port.parse().expect("a port"));
    let text = wait(&second, &kind, &impatient()).await.expect_err("shared").to_string();
    assert!(text.contains(&format!("another process listens on 127.0.0.1:{port} as well")), "{text}");
    first.stop(Duration::from_secs(5)).await;
    wait(&second, &kind, &options()).await.expect("alone, it serves");
    second.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p50_another_port_than_expected_is_used_and_told() {
    let tasks = Tasks::new();
    let process = spawn(script("server.py", &["--strange-port"]), &tasks).await;
    let port: u16 = printed(&process, "bound").await.parse().expect("a port");
    // Nobody can listen on it while we hold it.
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let expected = held.local_addr().expect("bound").port();
    let text = wait(&process, &on_port(expected), &impatient()).await.expect_err("not yet").to_string();
    assert!(text.contains(&format!("port {expected} is not open yet")), "{text}");
    let options = ReadyOptions { other_port_patience: Duration::from_millis(200), ..options() };
    let ready = wait(&process, &on_port(expected), &options).await.expect("serves elsewhere");
    assert_eq!((ready.endpoint.port(), ready.expected_port), (port, Some(expected)));
    process.stop(Duration::from_secs(5)).await;
}

pub(crate) async fn p52_the_literal_address_is_found() {
    for host in ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::"] {
        if host.contains(':') && TcpListener::bind("[::1]:0").is_err() {
            eprintln!("this machine has no IPv6: {host} not tried");
            continue;
        }
        let tasks = Tasks::new();
        let process = spawn(script("server.py", &["--host", host]), &tasks).await;
        let port: u16 = printed(&process, "bound").await.parse().expect("a port");
        let ready = wait(&process, &on_port(port), &options()).await.expect(host);
        assert!(ready.endpoint.ip().is_loopback(), "{host}: {}", ready.endpoint);
        if !matches!(host, "0.0.0.0" | "::") {
            assert_eq!(ready.endpoint.ip().to_string(), host);
        }
        process.stop(Duration::from_secs(5)).await;
    }
}

pub(crate) async fn p52_no_proxy_applies() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = report_in(&folder);
    let mut agent = Command::new("/proc/self/exe");
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"] {
        agent.env(name, "http://127.0.0.1:9");
    }
    agent.env_remove("no_proxy").env_remove("NO_PROXY");
    let mut agent = started(&mut agent, "ready", &report, &script("server.py", &[]));
    assert_eq!(reported(&report, 1).await, ["org/model"]);
    agent.wait().expect("ours");
}
