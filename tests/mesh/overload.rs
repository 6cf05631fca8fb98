//! More than the engines take, engines that hang, and engines that are slow: queues, ejection, hedging.

use crate::support::{Mesh, Way, eventually, post, post_bytes, raw, send, stream_of};
use bytes::Bytes;
use futures::future::join_all;
use http_body_util::Full;
use otela_testing::Stopwatch;
use serde_json::{Value, json};
use std::time::Duration;

each_way![
    p15_an_engine_that_does_not_know_our_wish_is_asked_without_it,
    p17_a_failure_in_the_first_event_is_had_again_elsewhere,
    p18_the_busy_are_waited_for_and_the_queue_is_bounded,
    p18_whoever_waits_for_too_long_is_told_when_to_come_again_and_whoever_leaves_is_forgotten,
    p37_an_engine_that_hangs_is_taken_out_and_comes_back_by_a_trial,
    p37_headers_and_then_nothing_is_a_failure_too,
];

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5})
}

fn scripted(steps: impl Into<Value>) -> Value {
    json!({"model": "m", "messages": [], "script": steps.into()})
}

fn code(answer: &crate::support::Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

async fn p18_the_busy_are_waited_for_and_the_queue_is_bounded(way: Way) {
    let flags = ["--in-flight-max", "2", "--queue-max", "3", "--queue-within", "20s"];
    let mut mesh = Mesh::by(way, &flags).await;
    let log = mesh.scripted("m").await;
    // Two fill the engine, three wait, and one is too many.
    let slow = scripted(json!([["await", "room"], ["send", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]]));
    let mut clients: Vec<_> = (0..5).map(|_| Box::pin(post(mesh.http, "/v1/chat/completions", &slow))).collect();
    let waiting = join_all(clients.iter_mut());
    let refused = async {
        eventually("three wait", async || (mesh.metric("otela_ingress_waiting").await == 3.0).then_some(())).await;
        let refused = post(mesh.http, "/v1/chat/completions", &slow).await;
        log.allow("room");
        refused
    };
    let (answers, refused) = tokio::join!(waiting, refused);
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(code(&refused), (503, "queue_full".into()));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(log.events("request").len(), 5);
    assert_eq!(mesh.metric("otela_ingress_queue_seconds_count").await, 3.0);
    assert_eq!(mesh.metric("otela_ingress_refused_total{reason=\"queue_full\"}").await, 1.0);
}

async fn p18_whoever_waits_for_too_long_is_told_when_to_come_again_and_whoever_leaves_is_forgotten(way: Way) {
    let mut mesh = Mesh::by(way, &["--in-flight-max", "1", "--queue-within", "500ms"]).await;
    let log = mesh.scripted("m").await;
    let hold = raw(mesh.http, &post_bytes("/v1/chat/completions", &scripted(json!([["gone"]])))).await;
    log.nth("request", 1).await;
    let waited = Stopwatch::start();
    let answer = post(mesh.http, "/v1/chat/completions", &chat("m")).await;
    assert_eq!(code(&answer), (503, "queue_timeout".into()));
    waited.assert_at_least(Duration::from_millis(500), "it has waited for its turn");
    assert!(!answer.header("retry-after").is_empty());
    // A client that leaves while it waits is gone within a second, and the engine never hears of it.
    let leaver = raw(mesh.http, &post_bytes("/v1/chat/completions", &chat("m"))).await;
    eventually("it waits", async || (mesh.metric("otela_ingress_waiting").await == 1.0).then_some(())).await;
    drop(leaver);
    eventually("it is forgotten", async || (mesh.metric("otela_ingress_waiting").await == 0.0).then_some(())).await;
    drop(hold);
    log.nth("gone", 1).await;
    assert_eq!(log.events("request").len(), 1);
    assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("m")).await.status, 200);
}

#[tokio::test]
async fn a_node_that_is_full_for_all_ingresses_is_waited_for() {
    let mut mesh = Mesh::ingress(&[]).await;
    let other = Mesh::ingress(&["--bootstrap", &mesh.bootstrap]).await;
    mesh.start(&["--in-flight-max", "1"], "m", &["--ttft", "700ms"]).await;
    other.serves("m", 1).await;
    let began = Stopwatch::start();
    let body = chat("m");
    let both =
        join_all([post(mesh.http, "/v1/chat/completions", &body), post(other.http, "/v1/chat/completions", &body)]);
    assert!(both.await.iter().all(|answer| answer.status == 200));
    began.assert_at_least(Duration::from_millis(1_400), "one after the other");
}

#[tokio::test]
async fn callers_share_a_queue_fairly() {
    let mut mesh = Mesh::ingress(&["--in-flight-max", "1"]).await;
    let log = mesh.scripted("m").await;
    let ask = async |key: &'static str| {
        let body = json!({"model": "m", "key": key, "script": [["await", "room"], ["send", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]]});
        let request = http::Request::post("/v1/chat/completions").header("host", "t").header("authorization", key);
        let request = request.header("content-type", "application/json");
        send(mesh.http, request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await.unwrap()
    };
    let many = async {
        let greedy = join_all((0..12).map(|_| ask("greedy")));
        let modest = async {
            eventually("the queue is long", async || {
                (mesh.metric("otela_ingress_waiting").await >= 11.0).then_some(())
            })
            .await;
            let waits = async {
                eventually("the modest one waits too", async || {
                    (mesh.metric("otela_ingress_waiting").await >= 12.0).then_some(())
                })
                .await;
                log.allow("room");
            };
            tokio::join!(ask("modest"), waits).0
        };
        tokio::join!(greedy, modest)
    };
    let (greedy, modest) = many.await;
    assert!(greedy.iter().chain([&modest]).all(|answer| answer.status == 200));
    let order: Vec<_> = log.events("request").iter().map(|e| e["body"].as_str().unwrap().contains("modest")).collect();
    let place = order.iter().position(|modest| *modest).unwrap();
    assert!(place <= 4, "the modest one was number {place} of 13");
}

async fn p37_an_engine_that_hangs_is_taken_out_and_comes_back_by_a_trial(way: Way) {
    let flags = ["--answer-within", "8s", "--policy", "round-robin", "--retries-max", "0"];
    let mut mesh = Mesh::by(way, &flags).await;
    let hanging = mesh.scripted("m").await;
    mesh.scripted("m").await;
    // The script is for both, but only the first hangs: its file says so.
    let switch = mesh.dir.path().join("scripted-0.hang");
    std::fs::write(&switch, "").unwrap();
    let mut timeouts = 0;
    for _ in 0..8 {
        timeouts += usize::from(post(mesh.http, "/v1/chat/completions", &chat("m")).await.status == 504);
    }
    assert_eq!(timeouts, 3, "after three in a row it is asked no more");
    assert_eq!(mesh.metric("otela_ingress_ejected").await, 1.0);
    let asked = hanging.events("request").len();
    for _ in 0..6 {
        assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("m")).await.status, 200);
    }
    assert_eq!(hanging.events("request").len(), asked, "no client is its trial");
    std::fs::remove_file(&switch).unwrap();
    // A trial that began while it still hung has to end first.
    eventually("it is back", async || (mesh.metric("otela_ingress_ejected").await == 0.0).then_some(())).await;
    for _ in 0..4 {
        assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("m")).await.status, 200);
    }
    assert_eq!(hanging.events("request").len(), asked + 2, "it has its share again");
}

async fn p37_headers_and_then_nothing_is_a_failure_too(way: Way) {
    let mut mesh = Mesh::by(way, &["--stall-within", "400ms"]).await;
    mesh.scripted("m").await;
    let steps = [stream_of(&[]), vec![json!(["gone"])]].concat();
    let mut body = scripted(steps);
    body["stream"] = true.into();
    let answer = post(mesh.http, "/v1/chat/completions", &body).await;
    assert_eq!(code(&answer), (504, "upstream_timeout".into()));
    assert!(mesh.metric("otela_ingress_attempts_failed_total{reason=\"stalled\"}").await >= 1.0);
}

#[tokio::test]
async fn a_request_that_waits_for_its_first_byte_is_hedged() {
    let mut mesh = Mesh::ingress(&["--hedge-after", "200ms", "--policy", "round-robin"]).await;
    let slow = mesh.scripted("m").await;
    mesh.scripted("m").await;
    let switch = mesh.dir.path().join("scripted-0.hang");
    std::fs::write(&switch, "").unwrap();
    for _ in 0..4 {
        // The one that hangs does so for good: only the other can have answered.
        let answer = post(mesh.http, "/v1/chat/completions", &chat("m")).await;
        assert_eq!(answer.status, 200);
    }
    assert!(mesh.metric("otela_ingress_hedges_total").await >= 2.0);
    eventually("nothing is left", async || (mesh.metric("otela_ingress_in_flight").await == 0.0).then_some(())).await;
    let cancelled = async || (slow.events("gone").len() == slow.events("request").len()).then_some(());
    eventually("the losers were cancelled", cancelled).await;
}

async fn p17_a_failure_in_the_first_event_is_had_again_elsewhere(way: Way) {
    let mut mesh = Mesh::by(way, &["--policy", "round-robin"]).await;
    let failing = mesh.scripted("m").await;
    mesh.scripted("m").await;
    let created = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";
    let failed = "event: error\ndata: {\"type\":\"error\",\"code\":\"boom\"}\n\n";
    for (route, events) in [
        ("/v1/chat/completions", "data: {\"error\":{\"code\":500}}\n\n".to_owned()),
        ("/v1/responses", format!("{created}{failed}")),
    ] {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        std::fs::write(mesh.dir.path().join("scripted-0.answer"), format!("{head}{events}")).unwrap();
        let asked = failing.events("request").len();
        for _ in 0..2 {
            let mut body = chat("m");
            (body["stream"], body["input"]) = (true.into(), "hello".into());
            let answer = post(mesh.http, route, &body).await;
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            assert!(answer.status == 200 && !text.contains("error") && !text.contains("created"), "{route}: {text}");
        }
        assert!(failing.events("request").len() > asked, "{route}: it had its turn");
    }
    let failed = failing.events("request").len() as f64;
    assert_eq!(mesh.metric("otela_ingress_attempts_failed_total{reason=\"error_event\"}").await, failed);
    assert_eq!(mesh.metric("otela_ingress_error_events_total").await, failed);
}

async fn p15_an_engine_that_does_not_know_our_wish_is_asked_without_it(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    std::fs::write(mesh.dir.path().join("scripted-0.refuse"), "stream_options").unwrap();
    let mut body = chat("m");
    body["stream"] = true.into();
    let (sent, answer) = (body.to_string(), post(mesh.http, "/v1/chat/completions", &body).await);
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let seen: Vec<_> = log.events("request").iter().map(|e| e["body"].as_str().unwrap().to_owned()).collect();
    assert_eq!(seen.len(), 2);
    assert!(seen[0].contains("include_usage") && seen[1] == sent, "{seen:?}");
}
