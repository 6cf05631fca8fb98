//! The batch as seen from outside: pace, queueing, what leaving clients free, preemption.

use crate::{Engine, client::post};
use otela_testing::{FAR_BEYOND_PATIENCE as NEVER, Stopwatch, finishes};
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const RUNNING: &str = "vllm:num_requests_running{engine=\"0\",model_name=\"test/model\"}";
const WAITING: &str = "vllm:num_requests_waiting{engine=\"0\",model_name=\"test/model\"}";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"test/model\"}";
const FINISHED: &str = "vllm:request_success_total{engine=\"0\",model_name=\"test/model\",finished_reason=\"length\"}";
const ABORTED: &str = "otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}";

fn chat(stream: bool, tokens: u32) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "hi" }], "stream": stream, "max_tokens": tokens, "ignore_eos": true,
    })
}

#[tokio::test]
async fn tokens_come_at_the_pace_that_was_set() {
    let engine = Engine::start(|c| {
        c.timing.ttft = Duration::from_millis(60);
        c.timing.itl = Duration::from_millis(15);
    })
    .await;
    let begin = Stopwatch::start();
    let mut wire = engine.client().connect().await;
    wire.write(&post(CHAT, &chat(true, 5).to_string())).await;
    finishes("the headers, which do not wait", wire.head()).await;
    wire.until("\"assistant\"").await;
    begin.assert_at_least(Duration::from_millis(60), "the first token");
    wire.until("[DONE]").await;
    begin.assert_at_least(Duration::from_millis(60 + 4 * 15), "the last token");
    engine.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place_wherever_its_request_is() {
    // One slot: the first request is in prefill or decoding, the second waits.
    for (ttft, streams) in [(NEVER, false), (NEVER, true), (Duration::ZERO, false), (Duration::ZERO, true)] {
        let engine = Engine::start(|c| {
            c.timing.ttft = ttft;
            c.timing.itl = NEVER;
            c.capacity.max_num_seqs = 1;
        })
        .await;
        let client = engine.client();
        let request = post(CHAT, &chat(streams, 9).to_string());
        let mut first = client.connect().await;
        first.write(&request).await;
        if streams && ttft.is_zero() {
            first.until("\"assistant\"").await;
        }
        client.reaches(RUNNING, 1.0).await;
        let mut queued = client.connect().await;
        queued.write(&request).await;
        client.reaches(WAITING, 1.0).await;
        assert!(client.metric(KV_USAGE).await > 0.0);
        drop(queued);
        client.reaches(WAITING, 0.0).await;
        client.reaches(ABORTED, 1.0).await;
        assert_eq!(client.metric(RUNNING).await, 1.0);
        drop(first);
        client.reaches(RUNNING, 0.0).await;
        client.reaches(ABORTED, 2.0).await;
        assert_eq!(client.metric(KV_USAGE).await, 0.0);
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_counts_as_gone() {
    let engine = Engine::start(|c| c.timing.itl = NEVER).await;
    let mut wire = engine.client().connect().await;
    wire.write(&post(CHAT, &chat(true, 9).to_string())).await;
    wire.until("\"assistant\"").await;
    wire.finish().await;
    engine.client().reaches(ABORTED, 1.0).await;
    engine.client().reaches(RUNNING, 0.0).await;
    engine.stop().await;
}

#[tokio::test]
async fn the_next_in_line_gets_the_place_of_one_that_left() {
    let engine = Engine::start(|c| {
        c.timing.itl = NEVER;
        c.capacity.max_num_seqs = 1;
    })
    .await;
    let client = engine.client();
    let mut first = client.connect().await;
    first.write(&post(CHAT, &chat(true, 9).to_string())).await;
    first.until("\"assistant\"").await;
    let body = chat(false, 1);
    let next = client.post(CHAT, &body);
    let leave = async {
        client.reaches(WAITING, 1.0).await;
        drop(first);
    };
    let (reply, ()) = futures::join!(next, leave);
    assert_eq!(reply.status, 200);
    engine.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let engine = Engine::start(|c| c.capacity.max_num_seqs = 1).await;
    let client = engine.client();
    let mut slow = client.connect().await;
    // Some 10 MB, more than the sockets' buffers hold.
    let mut body = chat(true, 10_000);
    body["n"] = json!(4);
    slow.write(&post(CHAT, &body.to_string())).await;
    client.reaches(FINISHED, 4.0).await;
    assert_eq!(client.post(CHAT, &chat(false, 3)).await.status, 200);
    let reply = finishes("the engine", slow.reply()).await;
    assert_eq!(reply.events().last().unwrap(), "[DONE]");
    engine.stop().await;
}

#[tokio::test]
async fn answers_survive_preemption() {
    let calm = Engine::start(|_| {}).await;
    let tight = Engine::start(|c| {
        c.model.max_model_len = 128;
        c.capacity.block_size = 4;
        c.capacity.num_gpu_blocks = Some(32);
        c.timing.itl = Duration::from_millis(1);
    })
    .await;
    let expected = calm.client().post(CHAT, &chat(false, 100)).await.json()["choices"].clone();
    let client = tight.client();
    let body = chat(false, 100);
    let replies = futures::future::join_all((0..6).map(|_| client.post(CHAT, &body)));
    for reply in finishes("the engine", replies).await {
        assert_eq!(reply.json()["choices"], expected);
    }
    let preempted = client.metric("vllm:num_preemptions_total{engine=\"0\",model_name=\"test/model\"}").await;
    assert!(preempted > 0.0);
    assert_eq!(client.metric(KV_USAGE).await, 0.0);
    calm.stop().await;
    tight.stop().await;
}

#[tokio::test]
async fn requests_under_way_are_finished_while_the_engine_drains() {
    let engine = Engine::start(|c| c.timing.itl = Duration::from_millis(20)).await;
    let client = engine.client();
    let mut idle = client.connect().await;
    let mut wire = client.connect().await;
    wire.write(&post(CHAT, &chat(true, 10).to_string())).await;
    wire.until("\"assistant\"").await;
    engine.tasks.drain();
    idle.closed().await;
    wire.until("[DONE]").await;
    wire.closed().await;
    engine.stop().await;
}
