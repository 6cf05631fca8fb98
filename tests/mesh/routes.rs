//! Routes beside the plain ones: services, nodes, groups, forms, pages of other origins, TLS.

use crate::support::{Answer, Mesh, Way, eventually, get, post, raw, read_to_end, send, try_get};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};

each_way![
    p02_preflights_need_nothing_and_errors_can_be_read_by_pages,
    p08_forms_are_routed_by_their_model_and_arrive_byte_for_byte,
];

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5})
}

/// A request with headers.
fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> http::Request<Full<Bytes>> {
    let mut request = http::Request::builder().method(method).uri(path).header("host", "test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).unwrap()
}

async fn ask(mesh: &Mesh, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    send(mesh.http, request(method, path, headers, body)).await.unwrap()
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn p08_forms_are_routed_by_their_model_and_arrive_byte_for_byte(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("whisper").await;
    // Like a boundary, and none: the dashes are missing.
    let mut file: Vec<u8> = (0..20_u32 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    file.extend_from_slice(b"\r\nsome-boundary\r\n-some-boundary--\r\n");
    let mut form =
        b"--some-boundary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n".to_vec();
    form.extend_from_slice(&file);
    form.extend_from_slice(b"\r\n--some-boundary\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n");
    form.extend_from_slice(
        b"--some-boundary\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--some-boundary--\r\n",
    );
    let kind = ("content-type", "multipart/form-data; boundary=some-boundary");
    let answer = ask(&mesh, "POST", "/v1/audio/transcriptions", &[kind], form.clone()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let seen = log.nth("request", 1).await;
    assert_eq!(seen["length"].as_u64().unwrap() as usize, form.len());
    let digest =
        |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    assert_eq!(seen["digest"].as_u64(), Some(digest(&form) & 0xffff_ffff), "byte for byte");
    assert!(seen["head"].as_str().unwrap().contains("boundary=some-boundary"));
    let unknown = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nnone\r\n--b--\r\n";
    let answer =
        ask(&mesh, "POST", "/v1/audio/transcriptions", &[("content-type", "multipart/form-data; boundary=b")], unknown)
            .await;
    assert_eq!(code(&answer), (404, "model_not_found".into()));
}

#[tokio::test]
async fn services_nodes_and_groups_are_reached_by_name() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.start(&["--label", "team=a"], "m", &[]).await;
    mesh.start(&["--label", "team=b", "--service", "custom", "--open-path", "/version,/metrics"], "n", &[]).await;
    let nodes = mesh.listed().await;
    let of = |model: &str| {
        let node = nodes.iter().find(|node| node["services"][0]["models"][0]["id"] == model).unwrap();
        node["id"].as_str().unwrap().to_owned()
    };
    let (a, b) = (of("m"), of("n"));
    let body = chat("m").to_string();
    for path in [
        "/v1/service/llm/v1/chat/completions".to_owned(),
        format!("/v1/p2p/{a}/v1/chat/completions"),
        format!("/v1/p2p/{a}/v1/_service/llm/v1/chat/completions"),
    ] {
        let answer = ask(&mesh, "POST", &path, &[JSON], body.clone()).await;
        assert_eq!((answer.status, answer.header("x-otela-node")), (200, a.as_str()), "{path}");
    }
    // By the name of the service alone: the path is one that its provider has opened.
    let answer = ask(&mesh, "GET", "/v1/service/custom/version", &[], "").await;
    assert_eq!((answer.status, answer.header("x-otela-node")), (200, b.as_str()));
    for (method, path) in [
        ("GET", "/v1/service/llm/version".to_owned()),
        ("GET", "/v1/service/custom/health".to_owned()),
        ("GET", format!("/v1/p2p/{a}/version")),
        ("POST", "/v1/service/custom/../sleep".to_owned()),
        ("GET", "/version".to_owned()),
    ] {
        assert_eq!(code(&ask(&mesh, method, &path, &[], "").await), (404, "unknown_url".into()), "{path}");
    }
    let nobody = ask(&mesh, "POST", "/v1/service/none/v1/chat/completions", &[JSON], body.clone()).await;
    assert_eq!(nobody.status, 404);
    let elsewhere = ask(&mesh, "POST", &format!("/v1/p2p/{b}/v1/chat/completions"), &[JSON], body).await;
    assert_eq!(code(&elsewhere), (503, "model_not_ready".into()), "that node does not serve it");
    // Bodies without a model.
    let plain = json!({"messages": [{"role": "user", "content": "x"}], "model": "m"}).to_string();
    let group = ("x-otela-identity-group", "model=m");
    assert_eq!(ask(&mesh, "POST", "/v1/chat/completions", &[JSON, group], plain).await.status, 200);
    let group = ("x-otela-identity-group", "team=a");
    let answer = ask(&mesh, "POST", "/v1/service/llm/v1/chat/completions", &[JSON, group], chat("m").to_string()).await;
    assert_eq!(answer.header("x-otela-node"), a);
    for (service, models) in [("llm", vec!["m"]), ("custom", vec!["n"]), ("nope", vec![])] {
        let list = get(mesh.http, &format!("/v1/service/{service}/v1/models")).await.json();
        let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
        assert_eq!(ids, models, "{service}");
    }
}

async fn p02_preflights_need_nothing_and_errors_can_be_read_by_pages(way: Way) {
    let mut mesh = Mesh::by(way, &["--cors", "https://chat.example.org"]).await;
    mesh.simulated("m", &[]).await;
    let asked = [
        ("origin", "https://chat.example.org"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-lang"),
    ];
    let answer = ask(&mesh, "OPTIONS", "/v1/chat/completions", &asked, "").await;
    assert!((200..300).contains(&answer.status), "{answer:?}");
    assert_eq!(answer.header("access-control-allow-origin"), "https://chat.example.org");
    assert!(answer.header("access-control-allow-methods").contains("POST"));
    assert!(answer.header("access-control-allow-headers").contains("x-stainless-lang"));
    let wrong = ask(&mesh, "POST", "/v1/chat/completions", &[JSON, asked[0]], chat("none").to_string()).await;
    assert_eq!((wrong.status, wrong.header("access-control-allow-origin")), (404, "https://chat.example.org"));
    assert!(wrong.header("access-control-expose-headers").contains("x-request-id"));
    let other = [("origin", "https://evil.example"), asked[1]];
    let answer = ask(&mesh, "OPTIONS", "/v1/chat/completions", &other, "").await;
    assert_eq!(answer.header("access-control-allow-origin"), "");
    let plain = post(mesh.http, "/v1/chat/completions", &chat("m")).await;
    assert!(!plain.headers.contains_key("access-control-expose-headers"), "nobody else pays for it");
}

#[tokio::test]
async fn names_of_requests_and_times_of_stages_are_told() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &["--ttft", "3s"]).await;
    let headers = [JSON, ("x-request-id", "mine-1"), ("x-otela-timing", "1")];
    let answer = ask(&mesh, "POST", "/v1/chat/completions", &headers, chat("m").to_string()).await;
    assert_eq!((answer.header("x-client-request-id"), answer.header("x-request-id").len()), ("mine-1", 32));
    assert!(answer.header("x-otela-session").parse::<u64>().is_ok());
    let stages: Vec<(&str, f64)> = answer
        .header("server-timing")
        .split(", ")
        .map(|stage| stage.split_once(";dur=").map(|(name, ms)| (name, ms.parse().unwrap())).unwrap())
        .collect();
    let names: Vec<_> = stages.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["ingress", "lookup", "queue", "forward", "engine", "return", "others"]);
    let engine = stages[4].1;
    assert!(engine >= 3_000.0 && engine < stages.iter().map(|(_, ms)| ms).sum::<f64>(), "{stages:?}");
    assert!(!answer.headers.contains_key("x-otela-node-timing") && !answer.headers.contains_key("x-otela-load"));
    // A stream whose head comes at once: the wait for its first token is the engine's as well.
    let mut streamed = chat("m");
    streamed["stream"] = true.into();
    let answer = ask(&mesh, "POST", "/v1/chat/completions", &headers, streamed.to_string()).await;
    let timing = answer.header("server-timing").to_owned();
    let of = |stage: &str| -> f64 {
        let part = timing.split(", ").find_map(|part| part.strip_prefix(&format!("{stage};dur=")));
        part.unwrap().parse().unwrap()
    };
    assert!(of("engine") >= 3_000.0 && of("ingress") < of("engine"), "{timing}");
    let plain = post(mesh.http, "/v1/chat/completions", &chat("m")).await;
    assert!(!plain.headers.contains_key("server-timing") && !plain.headers.contains_key("x-client-request-id"));
    eventually("one line for each request", async || {
        let output = mesh.ingress.output();
        let line = output.lines().find(|line| line.contains("mine-1"))?;
        let has = |what: &str| line.contains(what);
        (has("model=\"m\"") && has("status=200") && has("end=\"complete\"") && has(":ok:")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requirements_choose_among_replicas_and_say_what_is_missing() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.start(&["--label", "region=ch"], "m", &["--max-model-len", "4096"]).await;
    mesh.start(&["--label", "region=de"], "m", &["--max-model-len", "32768"]).await;
    let asked = async |require: &str| {
        let headers = [JSON, ("x-otela-require", require)];
        ask(&mesh, "POST", "/v1/chat/completions", &headers, chat("m").to_string()).await
    };
    let nodes = mesh.listed().await;
    let of =
        |region: &str| nodes.iter().find(|node| node["labels"]["region"] == region).unwrap()["id"].as_str().unwrap();
    for _ in 0..5 {
        assert_eq!(asked("region=ch").await.header("x-otela-node"), of("ch"));
        assert_eq!(asked("context>=32768, engine=otela").await.header("x-otela-node"), of("de"));
    }
    let unmet = asked("region=ch, context>=32768").await;
    assert_eq!(code(&unmet), (422, "requirements_not_met".into()));
    let message = unmet.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("2 replicas") && message.contains("`region=ch` fails for 1"), "{message}");
    assert!(message.contains("`context>=32768` fails for 1"), "{message}");
    let untold = asked("gpu=H100").await.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(untold.contains("fails for 2"), "{untold}");
    assert_eq!(code(&asked("colour=red").await), (400, "invalid_requirement".into()));
    let mut body = chat("m");
    body["metadata"] = json!({"otela_require": "region=fr"});
    assert_eq!(code(&post(mesh.http, "/v1/chat/completions", &body).await), (422, "requirements_not_met".into()));
}

#[tokio::test]
async fn policies_are_chosen_by_name_and_by_request_where_that_is_allowed() {
    let mut mesh = Mesh::ingress(&["--policy", "round-robin", "--policy-by-request"]).await;
    for _ in 0..3 {
        mesh.simulated("m", &[]).await;
    }
    let node = async |headers: &[(&str, &str)]| {
        let headers = [&[JSON], headers].concat();
        ask(&mesh, "POST", "/v1/chat/completions", &headers, chat("m").to_string())
            .await
            .header("x-otela-node")
            .to_owned()
    };
    let turns = [node(&[]).await, node(&[]).await, node(&[]).await, node(&[]).await];
    assert!(turns[0] != turns[1] && turns[1] != turns[2] && turns[0] != turns[2] && turns[0] == turns[3], "{turns:?}");
    let same = [("x-otela-policy", "affinity"), ("x-otela-conversation", "c-1")];
    let home = node(&same).await;
    for _ in 0..5 {
        assert_eq!(node(&same).await, home);
    }
    // Another ingress makes the same choice without having talked to the first.
    let other = Mesh::ingress(&["--bootstrap", &mesh.bootstrap, "--policy", "affinity"]).await;
    other.serves("m", 3).await;
    let headers = [JSON, ("x-otela-conversation", "c-1")];
    let answer = ask(&other, "POST", "/v1/chat/completions", &headers, chat("m").to_string()).await;
    assert_eq!(answer.header("x-otela-node"), home);
    let wrong = ask(&mesh, "POST", "/v1/chat/completions", &[JSON, ("x-otela-policy", "best")], chat("m").to_string());
    assert_eq!(code(&wrong.await), (400, "unknown_policy".into()));
    let not_allowed =
        ask(&other, "POST", "/v1/chat/completions", &[JSON, ("x-otela-policy", "p2c")], chat("m").to_string());
    assert_eq!(code(&not_allowed.await), (400, "policy_not_allowed".into()));
}

#[tokio::test]
async fn another_ingress_takes_over_without_a_client_noticing() {
    let dir = tempfile::tempdir().unwrap();
    let handover = dir.path().join("handover");
    let flags = ["--handover", handover.to_str().unwrap()];
    let mut mesh = Mesh::ingress(&flags).await;
    mesh.simulated("m", &["--itl", "20ms"]).await;
    let mut body = chat("m");
    (body["stream"], body["max_tokens"]) = (true.into(), 100.into());
    let mut running = raw(mesh.http, &crate::support::post_bytes("/v1/chat/completions", &body)).await;
    crate::support::read_until(&mut running, "data:").await;
    let arguments = [
        &["ingress", "--listen", "127.0.0.1:0", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--mesh", "test"][..],
        &["--bootstrap", &mesh.bootstrap],
        &flags,
    ]
    .concat();
    // Clients come all the time.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (http, failures) = (mesh.http, std::sync::Mutex::new(Vec::new()));
    let clients = async {
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            match try_get(http, "/v1/models").await {
                Ok(answer) if answer.status == 200 => {}
                other => failures.lock().unwrap().push(format!("{other:?}")),
            }
        }
    };
    let takes_over = async {
        let new = crate::support::Otela::run(arguments);
        new.says("took over").await;
        let old = mesh.ingress.ends().await;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        (new, old)
    };
    let ((_new, old), ()) = tokio::join!(takes_over, clients);
    assert_eq!(old, 0, "it ends by itself");
    assert_eq!(*failures.lock().unwrap(), [] as [String; 0]);
    let (text, clean) = read_to_end(&mut running).await;
    assert!(clean && text.contains("[DONE]"), "what ran was finished: {text}");
    assert_eq!(post(http, "/v1/chat/completions", &chat("m")).await.status, 200);
}

#[tokio::test]
async fn paths_say_which_methods_they_have_whatever_else_is_wrong() {
    let mesh = Mesh::ingress(&[]).await;
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("GET", "/v1/rerank", "POST"),
        ("PUT", "/v1/service/llm/v1/rerank", "POST"),
        ("TRACE", "/v1/service/llm/custom", "GET,HEAD,POST,PUT,PATCH,DELETE"),
        ("DELETE", "/v1/models", "GET,HEAD"),
        ("DELETE", "/v1/registry/nodes", "GET,HEAD"),
    ] {
        let answer = ask(&mesh, method, path, &[("x-otela-identity-group", "neither")], "").await;
        assert_eq!(code(&answer), (405, "method_not_allowed".into()), "{method} {path}");
        assert_eq!(answer.header("allow"), allow, "{method} {path}");
    }
    assert_eq!(ask(&mesh, "HEAD", "/v1/service/llm/v1/models", &[], "").await.status, 200);
}

#[tokio::test]
async fn whatever_is_refused_on_a_route_of_inference_has_a_name_and_a_line() {
    let mesh = Mesh::ingress(&["--policy-by-request"]).await;
    let twice = |name: &'static str, values: [&'static str; 2]| values.map(|value| (name, value));
    for (method, path, headers, status) in [
        ("GET", "/v1/chat/completions", vec![], 405),
        ("POST", "/v1/chat/completions", twice("x-otela-identity-group", ["model=a", "team=b"]).to_vec(), 400),
        ("POST", "/v1/chat/completions", twice("x-otela-policy", ["p2c", "random"]).to_vec(), 400),
        ("GET", "/v1/service/llm/health", vec![], 404),
    ] {
        let answer = ask(&mesh, method, path, &headers, chat("m").to_string()).await;
        let id = answer.header("x-request-id").to_owned();
        assert_eq!((answer.status, id.len()), (status, 32), "{method} {path}");
        assert_eq!(answer.json()["error"]["request_id"], id);
        if status == 404 {
            let said = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert_eq!(said, "Unknown request URL: GET /v1/service/llm/health.");
        }
        eventually("a line", async || mesh.ingress.output().contains(&id).then_some(())).await;
    }
}

#[tokio::test]
async fn what_nobody_has_is_not_waited_for() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    for (path, headers, says) in [
        ("/v1/service/none/v1/chat/completions", &[JSON][..], "The model `m` of the service `none` does not exist."),
        (
            "/v1/chat/completions",
            &[JSON, ("x-otela-identity-group", "team=a")],
            "The model `m` on nodes with team=a does not exist.",
        ),
    ] {
        let answer = ask(&mesh, "POST", path, headers, chat("m").to_string()).await;
        assert_eq!((answer.status, answer.json()["error"]["message"].clone()), (404, json!(says)));
    }
}
