//! Anthropic's Messages: our own errors in its shape, the engine's as they are.

use crate::support::{Answer, Mesh, Way, eventually, post, post_bytes, raw, read_to_end, send, stream_of};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};

each_way![
    our_own_errors_have_anthropics_shape,
    engines_errors_at_messages_pass_as_they_are,
    a_stream_of_messages_that_breaks_says_so_in_anthropics_words,
];

fn message(model: &str) -> Value {
    json!({"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]})
}

/// Type and code of an error of ours, which has all that Anthropic's clients look for.
fn ours(answer: &Answer) -> (u16, String, String) {
    let error = answer.json();
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{error}")).to_owned();
    assert_eq!((&error["type"], answer.header("content-type")), (&json!("error"), "application/json"));
    assert!(!text(&error["error"]["message"]).is_empty(), "{error}");
    assert_eq!(text(&error["request_id"]), answer.header("x-request-id"));
    (answer.status, text(&error["error"]["type"]), text(&error["error"]["code"]))
}

fn is(status: u16, kind: &str, code: &str) -> (u16, String, String) {
    (status, kind.to_owned(), code.to_owned())
}

async fn our_own_errors_have_anthropics_shape(way: Way) {
    let mut mesh = Mesh::by(way, &["--body-mib-max", "1", "--answer-within", "8s", "--retries-max", "0"]).await;
    mesh.scripted("m").await;
    let unknown = is(404, "not_found_error", "model_not_found");
    for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/service/llm/v1/messages"] {
        for stream in [false, true] {
            let mut body = message("no/such");
            body["stream"] = stream.into();
            assert_eq!(ours(&post(mesh.http, path, &body).await), unknown, "{path}");
        }
    }
    let scripted = |steps: Value| {
        let mut body = message("m");
        body["script"] = steps;
        body
    };
    for (path, body, expected) in [
        ("/v1/messages", json!({"messages": []}), is(400, "invalid_request_error", "missing_model")),
        ("/v1/p2p/nobody/v1/messages", message("m"), is(400, "invalid_request_error", "invalid_node")),
        ("/v1/messages/batches", message("m"), is(404, "not_found_error", "unknown_url")),
        // As of somebody whose base URL ends in /v1 although the package adds that itself.
        ("/v1/v1/messages", message("m"), is(404, "not_found_error", "unknown_url")),
        ("/v1/messages", json!({"model": "x".repeat(1 << 20)}), is(413, "request_too_large", "request_too_large")),
        // By the node, for the engine.
        ("/v1/messages", scripted(json!([["close"]])), is(502, "api_error", "engine_broke_off")),
        ("/v1/messages", scripted(json!([["gone"]])), is(504, "timeout_error", "upstream_timeout")),
    ] {
        assert_eq!(ours(&post(mesh.http, path, &body).await), expected, "{path}");
    }
    let request = http::Request::get("/v1/messages").header("host", "t").body(Full::new(Bytes::new())).unwrap();
    let wrong = send(mesh.http, request).await.unwrap();
    assert_eq!(ours(&wrong), is(405, "invalid_request_error", "method_not_allowed"));
    assert_eq!(wrong.header("allow"), "POST");
    mesh.nodes[0].signal("-TERM");
    mesh.serves("m", 0).await;
    let answer = post(mesh.http, "/v1/messages", &message("m")).await;
    assert_eq!(ours(&answer), is(503, "overloaded_error", "model_not_ready"));
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
    // Elsewhere nothing has changed.
    let answer = post(mesh.http, "/v1/responses", &message("m")).await.json();
    assert!(answer["type"].is_null() && answer["error"]["code"] == "model_not_ready", "{answer}");
}

async fn engines_errors_at_messages_pass_as_they_are(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    for (status, refusal) in [
        (400, r#"{"type":"error", "error":{"type":"invalid_request_error","message":"mine"}}"#),
        (429, r#"{"error":{"message":"of another shape","code":429}}"#),
        (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"mine"},"request_id":"req_1"}"#),
    ] {
        let length = refusal.len();
        let answer = format!("HTTP/1.1 {status} No\r\ncontent-length: {length}\r\n\r\n{refusal}");
        let mut body = message("m");
        body["script"] = json!([["send", answer]]);
        let answer = post(mesh.http, "/v1/messages", &body).await;
        assert_eq!((answer.status, &answer.body[..]), (status, refusal.as_bytes()));
    }
}

async fn a_stream_of_messages_that_breaks_says_so_in_anthropics_words(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    let event = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\"}\n\n";
    let mut body = message("m");
    body["stream"] = true.into();
    body["script"] = [stream_of(&[event, event]), vec![json!(["sleep", 0.1]), json!(["close"])]].concat().into();
    let (text, _) = read_to_end(&mut raw(mesh.http, &post_bytes("/v1/messages", &body)).await).await;
    let id = text.split_once("x-request-id: ").unwrap().1.split("\r\n").next().unwrap();
    let said = text.split_once("event: error\ndata: ").unwrap().1.split("\n\n").next().unwrap();
    let error: Value = serde_json::from_str(said).unwrap();
    assert_eq!((&error["type"], &error["request_id"]), (&json!("error"), &json!(id)));
    let inner = &error["error"];
    assert_eq!((&inner["type"], &inner["code"]), (&json!("api_error"), &json!("stream_broken")));
    assert!(inner["message"].as_str().unwrap().contains(id), "{error}");
    assert!(text.matches(event).count() == 2 && !text.ends_with("0\r\n\r\n"), "{text}");
    eventually("it is counted as broken", async || {
        (mesh.metric("otela_ingress_requests_total{end=\"broke_off\"}").await == 1.0).then_some(())
    })
    .await;
}
