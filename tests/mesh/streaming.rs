//! Event streams: bytes, silence, breaks, and clients that leave.

use crate::support::{Mesh, Way, chunk, eventually, post, post_bytes, raw, read_to_end, read_until, stream_of};
use otela_testing::repetitions;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::AsyncWriteExt;

each_way![
    p10_bytes_arrive_as_they_were_sent_however_they_are_cut,
    p11a_a_client_that_resets_a_stream_stops_the_engine,
    p11b_a_client_that_closes_while_it_waits_stops_the_engine,
    p11b_a_client_that_asked_for_100_continue_is_missed_too,
    p12_a_client_of_http_1_0_cannot_take_a_part_for_the_whole,
    p11c_a_client_that_only_stops_sending_gets_its_answer,
    p12_p16_a_broken_stream_never_looks_whole,
    p12_a_killed_node_breaks_its_streams_at_once,
    p13_a_stream_without_done_is_whole,
    p14_silence_is_bridged_between_events_only,
    p17_a_failure_in_the_first_event_is_passed_on_and_counted,
    p34_aborted_requests_leave_no_count_behind,
];

fn scripted(steps: impl Into<Value>) -> Value {
    json!({"model": "m", "stream": true, "messages": [], "script": steps.into()})
}

/// Flags of an ingress that writes nothing to a client that waits: a failed write is no way to find out that it has gone.
pub(crate) const NOTHING_IS_WRITTEN: [&str; 2] = ["--keep-alive", "10h"];

const EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";

async fn p10_bytes_arrive_as_they_were_sent_however_they_are_cut(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    let text = "data: {\"t\":\"读写😀é\"}\r\n\r\n: comment\nevent: x\nid: 7\ndata: a\ndata: b\n\ndata: c\r\rdata: d\n\ndata: e\n\n";
    let latin: String = text.bytes().map(char::from).collect();
    let whole = latin.chars().count();
    let mut scripts: Vec<Vec<String>> = vec![latin.chars().map(String::from).collect()];
    for cut in (1..whole).step_by(3) {
        let (a, b): (String, String) = (latin.chars().take(cut).collect(), latin.chars().skip(cut).collect());
        scripts.push(vec![a, b]);
    }
    scripts.push(vec![format!("data: {}\n\n", "y".repeat(300 * 1024))]);
    for pieces in scripts {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let mut steps = stream_of(&pieces);
        steps.push(json!(["send", "0\r\n\r\n"]));
        let answer = post(mesh.http, "/v1/chat/completions", &scripted(steps)).await;
        let got: String = answer.body.iter().map(|byte| char::from(*byte)).collect();
        assert_eq!(got, pieces.concat());
    }
}

async fn p11a_a_client_that_resets_a_stream_stops_the_engine(way: Way) {
    let mut mesh = Mesh::by(way, &NOTHING_IS_WRITTEN).await;
    let log = mesh.scripted("m").await;
    for (n, reset) in [(1, true), (2, false)] {
        let mut steps = stream_of(&[EVENT, EVENT, "data: {\"third\":{}}\n\n"]);
        steps.push(json!(["gone"]));
        let mut client = raw(mesh.http, &post_bytes("/v1/chat/completions", &scripted(steps))).await;
        // The engine has said all: one that is cut off while it speaks does not note it as being left.
        read_until(&mut client, "third").await;
        if reset {
            rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        }
        drop(client);
        log.nth("gone", n).await;
    }
    nothing_in_flight(&mesh).await;
}

async fn p11b_a_client_that_closes_while_it_waits_stops_the_engine(way: Way) {
    let mut mesh = Mesh::by(way, &NOTHING_IS_WRITTEN).await;
    let log = mesh.scripted("m").await;
    for stream in [false, true] {
        let mut body = scripted(vec![json!(["gone"])]);
        body["stream"] = stream.into();
        let client = raw(mesh.http, &post_bytes("/v1/chat/completions", &body)).await;
        let nth = log.events("gone").len() + 1;
        log.nth("request", nth).await;
        drop(client);
        log.nth("gone", nth).await;
    }
    nothing_in_flight(&mesh).await;
    assert!(mesh.metric("otela_ingress_requests_total{end=\"client_gone\"}").await >= 2.0);
}

#[tokio::test]
async fn a_client_that_closes_after_the_last_event_has_got_all_of_it() {
    let mut mesh = Mesh::ingress(&[]).await;
    let log = mesh.scripted("m").await;
    let end = async |end| mesh.metric(&format!("otela_ingress_requests_total{{end=\"{end}\"}}")).await;
    const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    // Read event by event, passed on as it comes, and of another dialect.
    for (n, (route, tools, last)) in [
        ("/v1/chat/completions", false, "data: [DONE]\n\n"),
        ("/v1/chat/completions", true, "data: [DONE]\n\n"),
        ("/v1/messages", false, STOP),
    ]
    .into_iter()
    .enumerate()
    {
        // The body has no end: the engine waits until its caller is gone.
        let steps = [stream_of(&[EVENT, last]), vec![json!(["gone"])]].concat();
        let mut body = scripted(steps);
        body["max_tokens"] = 9.into();
        if tools {
            body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
        }
        let mut client = raw(mesh.http, &post_bytes(route, &body)).await;
        read_until(&mut client, last).await;
        drop(client);
        log.nth("gone", n + 1).await;
        eventually("it is counted", async || (end("complete").await == n as f64 + 1.0).then_some(())).await;
    }
    assert_eq!(end("client_gone").await, 0.0);
}

async fn p11b_a_client_that_asked_for_100_continue_is_missed_too(way: Way) {
    let mut mesh = Mesh::by(way, &NOTHING_IS_WRITTEN).await;
    let log = mesh.scripted("m").await;
    let request = String::from_utf8(post_bytes("/v1/chat/completions", &scripted(vec![json!(["gone"])]))).unwrap();
    let request = request.replacen("\r\nhost", "\r\nexpect: 100-continue\r\nhost", 1);
    let mut client = raw(mesh.http, request.as_bytes()).await;
    read_until(&mut client, "100 Continue").await;
    log.nth("request", 1).await;
    drop(client);
    log.nth("gone", 1).await;
}

async fn p12_a_client_of_http_1_0_cannot_take_a_part_for_the_whole(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    let mut steps = stream_of(&[EVENT, "data: {\"half"]);
    steps.extend([json!(["sleep", 0.1]), json!(["close"])]);
    let request = String::from_utf8(post_bytes("/v1/chat/completions", &scripted(steps))).unwrap();
    let mut client = raw(mesh.http, request.replacen("HTTP/1.1", "HTTP/1.0", 1).as_bytes()).await;
    let (_, clean) = read_to_end(&mut client).await;
    assert!(!clean, "the connection is reset");
    // And an engine of HTTP/1.0, whose answers end with the connection, is framed anew.
    let head = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let steps = vec![json!(["send", format!("{head}{EVENT}")]), json!(["close"])];
    let mut client = raw(mesh.http, &post_bytes("/v1/chat/completions", &scripted(steps))).await;
    let text = read_until(&mut client, "\r\n0\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 200") && text.contains(EVENT), "{text}");
}

async fn p11c_a_client_that_only_stops_sending_gets_its_answer(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    for stream in [false, true] {
        let answer = if stream { stream_of(&[EVENT]) } else { vec![json!(["send", "HTTP/1.1 200 OK\r\n"])] };
        let mut steps = vec![json!(["sleep", 0.5])];
        steps.extend(answer);
        steps.push(json!(["sleep", 0.5]));
        steps.push(json!(["send", if stream { "0\r\n\r\n" } else { "content-length: 4\r\n\r\ndone" }]));
        let mut client = raw(mesh.http, &post_bytes("/v1/chat/completions", &scripted(steps))).await;
        client.shutdown().await.unwrap();
        let (text, clean) = read_to_end(&mut client).await;
        assert!(clean && text.ends_with(if stream { "0\r\n\r\n" } else { "done" }), "{text}");
        assert!(text.contains("HTTP/1.1 200"), "{text}");
    }
}

async fn p12_p16_a_broken_stream_never_looks_whole(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let other = mesh.scripted("m").await;
    const THIRD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"third\"}}]}\n\n";
    for (n, (route, ending, end_mark)) in [
        ("/v1/chat/completions", "close", "data: {\"error\""),
        ("/v1/chat/completions", "reset", "data: {\"error\""),
        ("/v1/responses", "close", "event: error\ndata: {\"code\":\"stream_broken\""),
        ("/v1/messages", "close", "event: error\ndata: {\"error\":{"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut steps = stream_of(&[EVENT, EVENT, THIRD]);
        // A reset takes away what was not read before it.
        steps.push(json!(["await", format!("read-{n}")]));
        steps.push(json!([ending]));
        let mut client = raw(mesh.http, &post_bytes(route, &scripted(steps))).await;
        let begun = read_until(&mut client, "third").await;
        [&log, &other].iter().for_each(|log| log.allow(&format!("read-{n}")));
        let text = begun + &read_to_end(&mut client).await.0;
        assert_eq!(text.matches("\"content\"").count(), 3, "no text twice: {text}");
        assert!(text.contains(end_mark), "{route}: {text}");
        assert!(!text.contains("[DONE]") && !text.ends_with("0\r\n\r\n"), "{text}");
    }
    // An event that was not whole is kept back where events are told apart, so something can be said after those before it.
    let mut steps = stream_of(&[EVENT, "data: {\"half"]);
    steps.extend([json!(["sleep", 0.1]), json!(["close"])]);
    let (text, _) = read_to_end(&mut raw(mesh.http, &post_bytes("/v1/chat/completions", &scripted(steps))).await).await;
    assert!(!text.contains("half") && text.contains("data: {\"error\"") && !text.ends_with("0\r\n\r\n"), "{text}");
    // Elsewhere nothing is put into the middle of an event.
    let mut steps = stream_of(&[EVENT, "data: {\"half"]);
    steps.extend([json!(["sleep", 0.1]), json!(["close"])]);
    let (text, _) = read_to_end(&mut raw(mesh.http, &post_bytes("/v1/responses", &scripted(steps))).await).await;
    assert!(text.contains("half") && !text.contains("error") && !text.ends_with("0\r\n\r\n"), "{text}");
    assert_eq!(log.events("request").len() + other.events("request").len(), 6, "never sent again");
    eventually("all are counted as broken", async || {
        (mesh.metric("otela_ingress_requests_total{end=\"broke_off\"}").await == 6.0).then_some(())
    })
    .await;
}

async fn p12_a_killed_node_breaks_its_streams_at_once(way: Way) {
    // Before anybody could evict it.
    let mut mesh = Mesh::by(way, &["--grace", "10h", "--grace-far", "10h"]).await;
    mesh.scripted("m").await;
    let mut steps = stream_of(&[EVENT, EVENT, EVENT]);
    steps.push(json!(["gone"]));
    let mut client = raw(mesh.http, &post_bytes("/v1/chat/completions", &scripted(steps))).await;
    read_until(&mut client, "content").await;
    mesh.nodes[0].signal("-KILL");
    let (text, _) = read_to_end(&mut client).await;
    assert!(text.contains("data: {\"error\"") && !text.ends_with("0\r\n\r\n"), "{text}");
}

async fn p13_a_stream_without_done_is_whole(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    for last in ["event: response.completed\ndata: {}\n\n", "event: response.failed\ndata: {}\n\n", EVENT] {
        let mut steps = stream_of(&[EVENT, last]);
        steps.push(json!(["send", "0\r\n\r\n"]));
        let answer = post(mesh.http, "/v1/responses", &scripted(steps)).await;
        assert_eq!(answer.body, format!("{EVENT}{last}"));
    }
}

async fn p14_silence_is_bridged_between_events_only(way: Way) {
    let mut mesh = Mesh::by(way, &["--keep-alive", "200ms"]).await;
    mesh.scripted("m").await;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let steps = vec![
        json!(["send", head]),
        json!(["sleep", 0.9]),
        json!(["send", chunk("data: ha")]),
        json!(["sleep", 0.9]),
        json!(["send", chunk("lf\n\n")]),
        json!(["sleep", 0.5]),
        json!(["send", "0\r\n\r\n"]),
    ];
    let answer = post(mesh.http, "/v1/chat/completions", &scripted(steps)).await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.contains("data: half\n\n"), "no comment inside an event: {text:?}");
    let (before, after) = text.split_once("data: half\n\n").unwrap();
    assert!(before.matches(":\n\n").count() >= 3 && after.contains(":\n\n"), "{text:?}");
    // An answer that is no stream is waited for in silence.
    let steps = vec![json!(["sleep", 0.9]), json!(["send", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"])];
    assert_eq!(post(mesh.http, "/v1/chat/completions", &scripted(steps)).await.body, "ok");
}

async fn p17_a_failure_in_the_first_event_is_passed_on_and_counted(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    let event = "data: {\"error\":{\"code\":\"boom\"}}\n\n";
    let mut steps = stream_of(&[event]);
    steps.push(json!(["send", "0\r\n\r\n"]));
    let answer = post(mesh.http, "/v1/chat/completions", &scripted(steps)).await;
    assert_eq!((answer.status, &answer.body[..]), (200, event.as_bytes()));
    assert_eq!(mesh.metric("otela_ingress_error_events_total").await, 1.0);
}

async fn p34_aborted_requests_leave_no_count_behind(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.simulated("m", &["--ttft", "40ms", "--itl", "5ms"]).await;
    let body = json!({"model": "m", "stream": true, "max_tokens": 200, "ignore_eos": true, "prompt": "x"});
    let request = post_bytes("/v1/completions", &body);
    for batch in 0..repetitions(5, 20_u64) {
        let mut clients = Vec::new();
        for _ in 0..50 {
            clients.push(raw(mesh.http, &request).await);
        }
        // A different moment in the life of a request each time.
        tokio::time::sleep(Duration::from_millis(batch * repetitions(28, 7))).await;
        drop(clients);
    }
    nothing_in_flight(&mesh).await;
    let node = mesh.nodes[0].says("registry: http://").await;
    let node = node.split('/').next().unwrap().parse().unwrap();
    eventually("the node is idle", async || {
        let text = crate::support::get(node, "/metrics").await;
        let text = String::from_utf8(text.body.to_vec()).unwrap();
        (crate::support::sum_metric(&text, "otela_agent_in_flight") == 0.0).then_some(())
    })
    .await;
    // On a machine that has so much to do a node may be taken for gone for a moment.
    mesh.serves("m", 1).await;
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 1})).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
}

async fn nothing_in_flight(mesh: &Mesh) {
    eventually("nothing is in flight", async || (mesh.metric("otela_ingress_in_flight").await == 0.0).then_some(()))
        .await;
}
