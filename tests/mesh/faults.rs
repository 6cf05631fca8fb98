//! Nodes and engines that fail, and requests that must not.

use crate::support::{Mesh, Way, eventually, post, try_post};
use otela_testing::repetitions;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

each_way![
    p40_killing_an_engine_and_then_a_node_costs_no_request,
    p20_a_request_that_breaks_engines_is_given_to_two_at_the_most,
    p20_a_late_answer_is_asked_for_once_more_and_only_when_the_first_engine_has_let_go,
    truncated_and_empty_answers_are_had_again_elsewhere,
    p21_engines_that_close_idle_connections_cost_no_request,
];

fn small() -> Value {
    json!({"model": "m", "prompt": "x", "max_tokens": 4})
}

async fn p40_killing_an_engine_and_then_a_node_costs_no_request(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    for _ in 0..3 {
        mesh.simulated("m", &["--ttft", "20ms", "--itl", "2ms"]).await;
    }
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4).map(|_| client(mesh.http, Arc::clone(&stop), Arc::clone(&answered))).collect();
    let load = async {
        let failures = futures::future::join_all(clients).await;
        failures.into_iter().flatten().collect::<Vec<String>>()
    };
    let chaos = async {
        progress(&answered, 20).await;
        let engine = mesh.nodes[0].says("pid=").await;
        assert!(std::process::Command::new("kill").args(["-KILL", &engine]).status().unwrap().success());
        let down = eventually("the registry shows Down", async || {
            mesh.listed().await.into_iter().find(|node| node["lifecycle"] == "down")
        })
        .await;
        progress(&answered, 20).await;
        eventually("and later it is gone", async || {
            mesh.listed().await.iter().all(|node| node["id"] != down["id"]).then_some(())
        })
        .await;
        mesh.nodes[1].signal("-KILL");
        progress(&answered, 40).await;
        stop.store(true, Ordering::SeqCst);
    };
    let (failures, ()) = tokio::join!(load, chaos);
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(mesh.nodes[0].ends().await, 128 + 9, "the engine's end is handed on");
}

/// Asks again and again, 20 requests a second from four of them; what went wrong.
async fn client(to: std::net::SocketAddr, stop: Arc<AtomicBool>, answered: Arc<AtomicUsize>) -> Vec<String> {
    let mut failures = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    while !stop.load(Ordering::SeqCst) {
        tick.tick().await;
        match try_post(to, "/v1/completions", &small()).await {
            Ok(answer) if answer.status == 200 => _ = answered.fetch_add(1, Ordering::SeqCst),
            Ok(answer) => failures.push(format!("{} {:?}", answer.status, answer.body)),
            Err(error) => failures.push(error),
        }
    }
    failures
}

async fn progress(answered: &AtomicUsize, more: usize) {
    let goal = answered.load(Ordering::SeqCst) + more;
    eventually("requests are answered", async || (answered.load(Ordering::SeqCst) >= goal).then_some(())).await;
}

async fn p20_a_request_that_breaks_engines_is_given_to_two_at_the_most(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let mut logs = Vec::new();
    for _ in 0..4 {
        logs.push(mesh.scripted("m").await);
    }
    let poison = json!({"model": "m", "prompt": "x", "script": [["close"]]});
    let answer = post(mesh.http, "/v1/completions", &poison).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (502, json!("engine_broke_off")));
    assert_eq!(logs.iter().map(|log| log.events("request").len()).sum::<usize>(), 2);
}

async fn p20_a_late_answer_is_asked_for_once_more_and_only_when_the_first_engine_has_let_go(way: Way) {
    // Counted from the end of the request, however long such a large one is on its way.
    let mut mesh = Mesh::by(way, &["--answer-within", "10s"]).await;
    let logs = [mesh.scripted("m").await, mesh.scripted("m").await, mesh.scripted("m").await];
    let slow = json!({"model": "m", "prompt": "x".repeat(2 << 20), "script": [["connections"], ["gone"]]});
    let answer = post(mesh.http, "/v1/completions", &slow).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (504, json!("upstream_timeout")));
    let all = |event: &str| {
        let mut events: Vec<_> = logs.iter().flat_map(|log| log.events(event)).collect();
        events.sort_by(|a, b| f64::total_cmp(&a["at"].as_f64().unwrap(), &b["at"].as_f64().unwrap()));
        events
    };
    eventually("and the engines are free again", async || (all("gone").len() == 2).then_some(())).await;
    let (asked, seen) = (all("request"), all("connections"));
    assert_eq!(asked.len(), 2, "no third engine gets it");
    let standing = |seen: &Value| seen["standing"].as_array().unwrap().contains(&asked[0]["caller"]);
    assert!(standing(&seen[0]) && !standing(&seen[1]), "the second is asked when the first was let go of");
}

async fn truncated_and_empty_answers_are_had_again_elsewhere(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    mesh.scripted("m").await;
    for broken in [
        json!([["send", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":"], ["close"]]),
        json!([["send", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n"], ["reset"]]),
        json!([["send", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]]),
        json!([
            ["send", "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"],
            ["close"]
        ]),
    ] {
        let before = mesh.metric("otela_ingress_retries_total").await;
        let answer = post(mesh.http, "/v1/completions", &json!({"model": "m", "script": broken})).await;
        // Both engines do the same, so the client is told; it never gets half an answer as a whole one.
        assert_eq!(answer.status, 502, "{broken}");
        assert_eq!(mesh.metric("otela_ingress_retries_total").await - before, 1.0);
    }
}

async fn p21_engines_that_close_idle_connections_cost_no_request(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.simulated("m", &["--idle-timeout", "300ms", "--ttft", "1ms", "--itl", "1ms"]).await;
    for round in 0..repetitions(10, 40_u64) {
        let answer = post(mesh.http, "/v1/completions", &small()).await;
        assert_eq!(answer.status, 200, "round {round}");
        // Around the moment at which the engine closes.
        tokio::time::sleep(Duration::from_millis(280 + round * repetitions(4, 1))).await;
    }
}

#[tokio::test]
async fn an_engine_that_ends_is_down_at_once_and_the_node_leaves() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.scripted("m").await;
    let exits = json!({"model": "m", "script": [["exit", 7]]});
    let answer = post(mesh.http, "/v1/completions", &exits).await;
    assert_eq!(answer.status, 502);
    mesh.serves("m", 0).await;
    assert_eq!(mesh.nodes[0].ends().await, 7, "the engine's code is handed on");
    assert!(mesh.nodes[0].output().contains("the engine ended by itself"));
    eventually("it is gone from the list", async || mesh.listed().await.is_empty().then_some(())).await;
}
