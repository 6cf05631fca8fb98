//! Streams that survive their node: continued on another one, within the same answer.

use crate::support::{Mesh, Way, eventually, post, post_bytes, raw, read_until, send, stream_of};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use std::collections::BTreeSet;

each_way![
    an_engine_that_dies_within_a_stream_is_continued_as_if_it_had_not,
    a_client_may_say_no_or_ask_to_be_told,
    an_answer_with_more_than_text_ends_with_an_error,
];

/// The answers of all simulated engines to this are the same.
fn ask(words: usize, extra: &Value) -> Value {
    let mut body = json!({
        "model": "m",
        "messages": [{"role": "user", "content": "tell me about rivers"}],
        "max_tokens": words,
        "temperature": 0,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// What a stream says when it is put together.
#[derive(Debug, Default, PartialEq)]
struct Told {
    text: String,
    finish: Vec<String>,
    ids: BTreeSet<String>,
    created: BTreeSet<u64>,
    roles: usize,
    usage: Vec<Value>,
    done: usize,
    errors: usize,
}

fn told(body: &[u8]) -> Told {
    let mut told = Told::default();
    let text = std::str::from_utf8(body).unwrap();
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        if data == "[DONE]" {
            told.done += 1;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        told.errors += usize::from(chunk.get("error").is_some());
        told.ids.extend(chunk["id"].as_str().map(str::to_owned));
        told.created.extend(chunk["created"].as_u64());
        if let Some(usage) = chunk.get("usage").filter(|usage| !usage.is_null()) {
            told.usage.push(usage.clone());
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            told.roles += usize::from(choice["delta"].get("role").is_some());
            let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
            told.text.push_str(text.unwrap_or_default());
            told.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
        }
    }
    told
}

async fn an_engine_that_dies_within_a_stream_is_continued_as_if_it_had_not(way: Way) {
    let mut mesh = Mesh::by(way, &["--policy", "round-robin"]).await;
    mesh.simulated("m", &["--itl", "5ms"]).await;
    let whole = post(mesh.http, "/v1/chat/completions", &ask(60, &json!({}))).await.json();
    let expected = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // Each of these dies in the middle of its first stream.
    for _ in 0..3 {
        mesh.simulated("m", &["--itl", "5ms", "--crash-after", "13"]).await;
    }
    let streaming = json!({"stream": true, "stream_options": {"include_usage": true}});
    for _ in 0..4 {
        let answer = post(mesh.http, "/v1/chat/completions", &ask(60, &streaming)).await;
        let told = told(&answer.body);
        assert_eq!((told.errors, told.done, told.roles), (0, 1, 1), "{:?}", answer.body);
        assert_eq!(told.text, expected);
        assert_eq!((told.ids.len(), told.created.len(), told.usage.len()), (1, 1, 1), "{told:?}");
        assert_eq!(told.finish, [whole["choices"][0]["finish_reason"].as_str().unwrap()]);
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(told.usage[0][count], whole["usage"][count], "{count}");
        }
    }
    assert!(mesh.metric("otela_ingress_streams_broken_total{reason=\"continued\"}").await >= 3.0);
    eventually("nothing is in flight", async || (mesh.metric("otela_ingress_in_flight").await == 0.0).then_some(()))
        .await;
}

#[tokio::test]
async fn a_killed_node_is_continued_and_completions_too() {
    for (route, body) in [
        ("/v1/chat/completions", ask(200, &json!({"stream": true}))),
        (
            "/v1/completions",
            json!({"model": "m", "prompt": "Rivers are", "max_tokens": 200, "stream": true, "temperature": 0}),
        ),
    ] {
        let mut mesh = Mesh::ingress(&[]).await;
        mesh.simulated("m", &["--itl", "10ms"]).await;
        let mut plain = body.clone();
        plain["stream"] = false.into();
        let whole = post(mesh.http, route, &plain).await.json();
        let choice = &whole["choices"][0];
        let expected = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().to_owned();
        let mut client = raw(mesh.http, &post_bytes(route, &body)).await;
        let begin = read_until(&mut client, "\"choices\"").await;
        mesh.simulated("m", &["--itl", "1ms"]).await;
        mesh.nodes[0].signal("-KILL");
        let rest = read_until(&mut client, "0\r\n\r\n").await;
        let body = dechunked(&(begin + &rest));
        let told = told(body.as_bytes());
        assert_eq!((told.errors, told.done), (0, 1), "{body}");
        assert_eq!(told.text, expected, "{route}");
        assert_eq!(told.usage, [] as [Value; 0], "nobody asked for it");
    }
}

/// The body of a chunked answer.
fn dechunked(answer: &str) -> String {
    let mut rest = answer.split_once("\r\n\r\n").unwrap().1;
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").unwrap_or_default();
        if size == 0 {
            break;
        }
    }
    body
}

async fn a_client_may_say_no_or_ask_to_be_told(way: Way) {
    let mut mesh = Mesh::by(way, &["--policy", "round-robin"]).await;
    for _ in 0..3 {
        mesh.simulated("m", &["--itl", "2ms", "--allow-faults"]).await;
    }
    // The fault is the engine's that is asked first: the others are given the request without it.
    let faulty = |resume: &'static str| {
        let body = ask(40, &json!({"stream": true, "otela_sim": {"cut_after": 9}}));
        let request = http::Request::post("/v1/chat/completions")
            .header("host", "t")
            .header("content-type", "application/json")
            .header("x-otela-resume", resume);
        request.body(Full::new(Bytes::from(body.to_string()))).unwrap()
    };
    // A field that nobody knows may mean anything: such a request is not continued, and says so.
    let broken = send(mesh.http, faulty("on")).await;
    assert!(broken.is_err(), "{broken:?}");
    assert!(mesh.metric("otela_ingress_streams_broken_total{reason=\"not_text\"}").await >= 1.0);
    let wrong = send(mesh.http, faulty("perhaps")).await.unwrap();
    assert_eq!((wrong.status, wrong.json()["error"]["code"].clone()), (400, json!("invalid_header")));
    mesh.simulated("dying", &["--itl", "2ms", "--crash-after", "5"]).await;
    mesh.simulated("dying", &["--itl", "2ms"]).await;
    let request = |resume: &'static str| {
        let mut body = ask(40, &json!({"stream": true}));
        body["model"] = "dying".into();
        let request = http::Request::post("/v1/chat/completions")
            .header("host", "t")
            .header("content-type", "application/json")
            .header("x-otela-resume", resume);
        request.body(Full::new(Bytes::from(body.to_string()))).unwrap()
    };
    let mut marked = 0;
    for _ in 0..2 {
        let answer = send(mesh.http, request("mark")).await.unwrap();
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        marked += text.matches(": otela: continued on 12D3").count();
        assert_eq!(told(text.as_bytes()).errors, 0, "{text}");
    }
    assert_eq!(marked, 1, "one of them was on the node that died");
}

async fn an_answer_with_more_than_text_ends_with_an_error(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.scripted("m").await;
    mesh.scripted("m").await;
    let tool = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n";
    let mut steps = stream_of(&[tool]);
    steps.extend([json!(["sleep", 0.1]), json!(["close"])]);
    let body = json!({"model": "m", "stream": true, "messages": [], "script": steps});
    let mut client = raw(mesh.http, &post_bytes("/v1/chat/completions", &body)).await;
    let text = read_until(&mut client, "stream_broken").await;
    assert!(text.contains(tool) && !text.contains("[DONE]"), "{text}");
    eventually("it is counted", async || {
        (mesh.metric("otela_ingress_streams_broken_total{reason=\"not_text\"}").await == 1.0).then_some(())
    })
    .await;
}
