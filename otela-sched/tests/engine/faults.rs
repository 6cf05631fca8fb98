//! Each fault as a client sees it.

use crate::{
    Engine,
    client::{End, Reply, post},
    config,
};
use otela_node::tasks::Tasks;
use otela_sched::engine::{BreakOff, EngineError, Failure, How, Outcome, serve};
use otela_testing::{FAR_BEYOND_PATIENCE as NEVER, PATIENCE, Stopwatch, finishes, stays_pending};
use serde_json::{Value, json};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";

fn chat(stream: bool, sim: &Value) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "hi" }],
        "stream": stream, "max_tokens": 9, "ignore_eos": true, "otela_sim": sim,
    })
}

async fn faulty() -> Engine {
    Engine::start(|c| c.allow_faults = true).await
}

async fn asked(engine: &Engine, stream: bool, sim: Value) -> Reply {
    engine.client().post(CHAT, &chat(stream, &sim)).await
}

#[tokio::test]
async fn a_cut_answer_ends_without_its_end() {
    let engine = faulty().await;
    for events in [0, 1, 3] {
        let reply = asked(&engine, true, json!({ "cut_after": events })).await;
        assert_eq!((reply.status, reply.end), (200, End::Closed));
        assert_eq!(reply.events().len(), events);
        let reply = asked(&engine, true, json!({ "reset_after": events })).await;
        assert_eq!((reply.status, reply.end), (200, End::Reset));
        assert_eq!(reply.events().len(), events);
    }
    for (fault, end) in [("cut_after", End::Closed), ("reset_after", End::Reset)] {
        let none = asked(&engine, false, json!({ fault: 0 })).await;
        assert_eq!((none.status, none.body.len(), none.end), (200, 0, end));
        let half = asked(&engine, false, json!({ fault: 1 })).await;
        let length: usize = half.headers["content-length"].parse().unwrap();
        assert_eq!((half.body.len(), half.end), (length / 2, end));
        let whole = asked(&engine, false, json!({ fault: 2 })).await;
        assert_eq!((whole.json()["object"].as_str(), whole.end), (Some("chat.completion"), End::Clean));
    }
    let client = engine.client();
    client.reaches("otela_sim_faults_total{fault=\"cut\"}", 5.0).await;
    client.reaches("otela_sim_faults_total{fault=\"reset\"}", 5.0).await;
    assert_eq!(client.metric("otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}").await, 0.0);
    engine.stop().await;
}

#[tokio::test]
async fn a_stalled_answer_stays_open_until_its_client_leaves() {
    let engine = faulty().await;
    let client = engine.client();
    let mut wire = client.connect().await;
    wire.write(&post(CHAT, &chat(true, &json!({ "stall_after": 3 })).to_string())).await;
    client.reaches("otela_sim_faults_total{fault=\"stall\"}", 1.0).await;
    let (status, _) = finishes("the engine", wire.head()).await;
    assert_eq!(status, 200);
    // Other requests are served meanwhile, and the stalled one says nothing more.
    assert_eq!(asked(&engine, true, json!({})).await.end, End::Clean);
    stays_pending("it says nothing more", Duration::from_millis(200), wire.until("[DONE]")).await;
    assert_eq!(client.metric("otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}").await, 0.0);
    drop(wire);
    client.reaches("otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}", 1.0).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_crash_takes_all_connections_down_and_is_the_outcome() {
    let engine = Engine::start(|c| {
        c.crash_code = 77;
        c.allow_faults = true;
        c.timing.itl = Duration::from_millis(1);
    })
    .await;
    let client = engine.client();
    let mut idle = client.connect().await;
    let mut other = client.connect().await;
    other.write(&post(CHAT, &chat(true, &json!({ "stall_after": 1 })).to_string())).await;
    other.until("\"assistant\"").await;
    let reply = asked(&engine, true, json!({ "crash_after": 4 })).await;
    assert_eq!(reply.events().len(), 4);
    assert_ne!(reply.end, End::Clean);
    assert_ne!(other.closed().await, End::Clean);
    idle.closed().await;
    let address = engine.address;
    assert_eq!(finishes("the engine", engine.serving.ended()).await, Outcome::Crashed(77));
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens any more");
    assert!(engine.tasks.shutdown(PATIENCE).await);
}

#[tokio::test]
async fn a_hanging_engine_says_nothing_and_lies_about_its_health() {
    let engine = Engine::start(|c| c.faults.hang = true).await;
    let client = engine.client();
    let mut wire = client.connect().await;
    wire.write(&post(CHAT, &chat(true, &Value::Null).to_string())).await;
    client.reaches("otela_sim_faults_total{fault=\"hang\"}", 1.0).await;
    assert_eq!(client.get("/health").await.status, 200);
    assert_eq!(client.get("/v1/models").await.json()["data"].as_array().unwrap().len(), 1);
    stays_pending("it says nothing", Duration::from_millis(200), wire.head()).await;
    drop(wire);
    client.reaches("otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}", 1.0).await;
    engine.stop().await;
}

#[tokio::test]
async fn failures_have_a_status_a_shape_and_a_retry_after() {
    let failure = Failure { status: 429, retry_after: Some(Duration::from_millis(1500)) };
    let engine = Engine::start(|c| c.faults.fail = Some(failure)).await;
    let bodies = [
        (CHAT, chat(true, &Value::Null)),
        ("/v1/completions", json!({ "prompt": "x" })),
        ("/v1/embeddings", json!({ "input": "x" })),
        ("/v1/responses", json!({ "input": "x", "stream": true })),
    ];
    for (path, body) in bodies {
        let reply = engine.client().post(path, &body).await;
        assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (429, "2"), "{path}");
        let error = &reply.json()["error"];
        assert_eq!((&error["code"], &error["type"]), (&json!(429), &json!("TooManyRequestsError")));
    }
    assert_eq!(engine.client().get("/health").await.status, 200);
    engine.stop().await;
    let engine = faulty().await;
    let reply = asked(&engine, false, json!({ "fail": 503, "retry_after_secs": 4 })).await;
    assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (503, "4"));
    assert_eq!(asked(&engine, false, json!({ "fail": 503 })).await.headers.get("retry-after"), None);
    let wrong = asked(&engine, false, json!({ "fial": 503 })).await;
    assert!(wrong.status == 400 && wrong.text().contains("fial"), "{}", wrong.text());
    engine.stop().await;
}

#[tokio::test]
async fn an_error_may_be_the_first_event_of_a_good_status() {
    let engine = Engine::start(|c| c.faults.error_event = true).await;
    let reply = engine.client().post(CHAT, &chat(true, &Value::Null)).await;
    assert_eq!((reply.status, reply.end), (200, End::Clean));
    let events = reply.events();
    assert_eq!((&events[0]["error"]["code"], &events[1], events.len()), (&json!(500), &json!("[DONE]"), 2));
    let reply = engine.client().post("/v1/responses", &json!({ "input": "x", "stream": true })).await;
    let events = reply.events();
    assert_eq!((events[0]["type"].as_str(), events.len()), (Some("response.failed"), 1));
    assert_eq!(events[0]["response"]["status"], "failed");
    let whole = engine.client().post(CHAT, &chat(false, &Value::Null)).await;
    assert_eq!(whole.json()["error"]["type"], "InternalServerError");
    engine.stop().await;
}

#[tokio::test]
async fn silence_comes_after_the_headers_of_a_stream() {
    let engine = faulty().await;
    let begin = Stopwatch::start();
    let mut wire = engine.client().connect().await;
    wire.write(&post(CHAT, &chat(true, &json!({ "silence_ms": 150 })).to_string())).await;
    finishes("the engine", wire.head()).await;
    wire.until("data:").await;
    begin.assert_at_least(Duration::from_millis(150), "the silence");
    let begin = Stopwatch::start();
    asked(&engine, false, json!({ "silence_ms": 150 })).await;
    begin.assert_at_least(Duration::from_millis(150), "the silence");
    let mut wire = engine.client().connect().await;
    let long = chat(true, &json!({ "silence_ms": NEVER.as_millis() as u64 }));
    wire.write(&post(CHAT, &long.to_string())).await;
    assert_eq!(finishes("the engine", wire.head()).await.0, 200, "the headers do not wait");
    drop(wire);
    engine.client().reaches("otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}", 1.0).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_kept_alive_connection_is_closed_when_idle_and_not_before() {
    let engine = Engine::start(|c| {
        c.idle_timeout = Duration::from_millis(120);
        c.timing.ttft = Duration::from_millis(300);
    })
    .await;
    let mut wire = engine.client().connect().await;
    let mut begin = Stopwatch::start();
    for _ in 0..2 {
        // Longer under way than the time-out.
        begin = Stopwatch::start();
        wire.write(&post(CHAT, &chat(true, &Value::Null).to_string())).await;
        assert_eq!(finishes("the engine", wire.reply()).await.end, End::Clean);
    }
    assert_eq!(wire.closed().await, End::Closed);
    begin.assert_at_least(Duration::from_millis(300 + 120), "an answer and the time-out");
    engine.stop().await;
}

#[tokio::test]
async fn while_it_warms_up_it_says_so() {
    let engine = Engine::start(|c| c.start.ready_after = NEVER).await;
    assert_eq!(engine.client().get("/health").await.status, 503);
    assert_eq!(engine.client().get("/v1/models").await.json()["data"], json!([]));
    let reply = engine.client().post(CHAT, &chat(true, &Value::Null)).await;
    assert_eq!((reply.status, reply.json()["error"]["code"].as_u64()), (503, Some(503)));
    assert!(reply.headers.contains_key("retry-after"));
    engine.stop().await;
    let engine = Engine::start(|c| c.start.ready_after = Duration::from_millis(50)).await;
    finishes("the engine is ready", async { while engine.client().get("/health").await.status != 200 {} }).await;
    assert_eq!(engine.client().get("/v1/models").await.json()["data"].as_array().unwrap().len(), 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_late_port_is_closed_until_then_and_can_be_given_up() {
    let begin = Stopwatch::start();
    let engine = Engine::start(|c| c.start.port_after = Duration::from_millis(80)).await;
    begin.assert_at_least(Duration::from_millis(80), "the port");
    engine.stop().await;
    let mut config = config();
    config.start.port_after = NEVER;
    let tasks = Tasks::new();
    tasks.drain();
    assert!(matches!(finishes("the engine", serve(config, &tasks)).await, Err(EngineError::Stopped)));
}

#[tokio::test]
async fn a_taken_port_and_a_senseless_configuration_are_told_at_once() {
    let engine = Engine::start(|_| {}).await;
    let mut taken = config();
    taken.listen = engine.address;
    let error = serve(taken, &Tasks::new()).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains(&engine.address.to_string()), "{error}");
    let mut senseless = config();
    senseless.faults.break_off = Some(BreakOff { events: 1, how: How::Cut });
    senseless.capacity.block_size = 0;
    assert!(matches!(serve(senseless, &Tasks::new()).await, Err(EngineError::Config(_))));
    engine.stop().await;
}
