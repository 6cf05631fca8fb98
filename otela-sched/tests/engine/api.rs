//! Shapes and values of answers.

use crate::{
    Engine,
    client::{End, Reply, post},
};
use otela_sched::engine::Outcome;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn ask(fields: &Value) -> Value {
    let mut body =
        json!({ "model": "test/model", "messages": [{ "role": "user", "content": "Where does the river go?" }] });
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn said(reply: &Reply) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
}

fn error_of(reply: &Reply) -> (u16, String, Value, String) {
    let error = &reply.json()["error"];
    assert_eq!(error["code"], reply.status, "{error}");
    let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
    (reply.status, text("type"), error["param"].clone(), text("message"))
}

#[tokio::test]
async fn it_lists_its_models_and_says_that_it_is_simulated() {
    let engine = Engine::start(|c| c.model.served_names = vec!["one".into(), "two".into()]).await;
    let models = engine.client().get("/v1/models").await;
    assert_eq!(models.headers["x-otela-simulated"], "true");
    let list = models.json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["one", "two"]);
    let card = &list["data"][0];
    assert_eq!((&card["owned_by"], &card["root"]), (&json!("otela-simulated"), &json!("test/model")));
    assert_eq!((&card["parent"], &card["max_model_len"]), (&Value::Null, &json!(32_768)));
    assert_eq!(card["permission"][0]["object"], "model_permission");
    let version = engine.client().get("/version").await.json();
    assert!(version["version"].as_str().unwrap().starts_with("otela-simulated"));
    for path in ["/health", "/ping"] {
        let reply = engine.client().get(path).await;
        assert_eq!((reply.status, reply.body.len()), (200, 0));
    }
    let unknown = engine.client().get("/v1/models/one").await;
    assert_eq!((unknown.status, unknown.json()), (404, json!({ "detail": "Not Found" })));
    let wrong = engine.client().get(CHAT).await;
    assert_eq!((wrong.status, wrong.json()), (405, json!({ "detail": "Method Not Allowed" })));
    assert_eq!(engine.stop().await, Outcome::Drained);
}

#[tokio::test]
async fn a_chat_answer_has_vllms_shape_and_true_usage() {
    let engine = Engine::start(|_| {}).await;
    let body = ask(&json!({ "max_tokens": 7, "ignore_eos": true, "tools": [{ "type": "function" }], "zzz_future": 1 }));
    let request = post(CHAT, &body.to_string()).replace("host: engine", "host: engine\r\nX-Request-Id: abc");
    let reply = engine.client().send(&request).await;
    assert_eq!((reply.status, reply.end), (200, End::Clean));
    assert_eq!(reply.headers["x-request-id"], "abc");
    assert_eq!(reply.headers["x-otela-simulated"], "true");
    let answer = reply.json();
    assert_eq!(answer["id"], "chatcmpl-abc");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "test/model");
    assert_eq!(answer["system_fingerprint"], "otela-simulated");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice["message"]["role"], "assistant");
    let text = choice["message"]["content"].as_str().unwrap();
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 7);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], prompt + 7);
    let counted = |body: Value| {
        let client = engine.client();
        async move { client.post("/tokenize", &body).await.json()["count"].clone() }
    };
    assert_eq!(counted(json!({ "messages": body["messages"] })).await, prompt);
    assert_eq!(counted(json!({ "prompt": text })).await, 7);
    let other = engine.client().get("/health").await;
    assert_eq!(other.headers["x-request-id"].len(), 32);
    engine.stop().await;
}

#[tokio::test]
async fn the_same_prompt_gives_the_same_answer_on_every_engine_with_the_same_seed() {
    let (one, two) = (Engine::start(|_| {}).await, Engine::start(|_| {}).await);
    let seeded = Engine::start(|c| c.model.seed = 1).await;
    let answer = said(&one.client().post(CHAT, &ask(&json!({}))).await);
    assert_eq!(said(&two.client().post(CHAT, &ask(&json!({}))).await), answer);
    assert_ne!(said(&seeded.client().post(CHAT, &ask(&json!({}))).await), answer);
    assert_ne!(said(&one.client().post(CHAT, &ask(&json!({ "seed": 4 }))).await), answer);
    let many = one.client().post(CHAT, &ask(&json!({ "n": 3 }))).await.json();
    let texts: Vec<_> =
        many["choices"].as_array().unwrap().iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    assert_eq!((texts.len(), texts[0]), (3, answer.as_str()));
    assert_ne!(texts[1], texts[0]);
    for engine in [one, two, seeded] {
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let engine = Engine::start(|_| {}).await;
    for fields in [json!({}), json!({ "max_tokens": 5 }), json!({ "stop": [" the", "a"] }), json!({ "min_tokens": 90 })]
    {
        let whole = engine.client().post(CHAT, &ask(&fields)).await.json();
        let mut streamed = fields.clone();
        streamed["stream"] = json!(true);
        let reply = engine.client().post(CHAT, &ask(&streamed)).await;
        assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
        let events = reply.events();
        assert_eq!(events.last().unwrap(), "[DONE]");
        let chunks = &events[..events.len() - 1];
        assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk.get("usage").is_none()));
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
        let text: String = chunks.iter().map(|c| c["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().unwrap());
        let (last, before) = chunks.split_last().unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
        assert_eq!(last["choices"][0]["stop_reason"], whole["choices"][0]["stop_reason"]);
        assert!(before.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    }
    engine.stop().await;
}

#[tokio::test]
async fn usage_is_streamed_as_it_was_asked_for() {
    let engine = Engine::start(|_| {}).await;
    for (path, mut body) in
        [(CHAT, ask(&json!({ "n": 2 }))), ("/v1/completions", json!({ "prompt": ["a b", "c"], "n": 2 }))]
    {
        let whole = engine.client().post(path, &body).await.json()["usage"].clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let events = engine.client().post(path, &body).await.events();
        let with: Vec<_> = events.iter().filter(|event| event.get("usage").is_some()).collect();
        assert_eq!(with.len(), 1);
        assert_eq!(with[0], &events[events.len() - 2]);
        assert_eq!((&with[0]["usage"], &with[0]["choices"]), (&whole, &json!([])));
        body["stream_options"]["continuous_usage_stats"] = json!(true);
        let events = engine.client().post(path, &body).await.events();
        let said: Vec<_> = events[..events.len() - 1]
            .iter()
            .map(|event| event["usage"]["completion_tokens"].as_u64().expect("usage in every chunk"))
            .collect();
        assert!(said.is_sorted());
        assert_eq!(said.last().copied(), whole["completion_tokens"].as_u64());
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_partial_answer_is_continued_exactly_on_another_engine() {
    let (one, two) = (Engine::start(|_| {}).await, Engine::start(|_| {}).await);
    let whole = one.client().post(CHAT, &ask(&json!({ "stream": true }))).await.events();
    let pieces: Vec<_> = whole[..whole.len() - 1]
        .iter()
        .map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap().to_owned())
        .collect();
    let text = pieces.concat();
    for cut in 0..=pieces.len() {
        let partial = pieces[..cut].concat();
        let mut body = ask(&json!({ "add_generation_prompt": false, "continue_final_message": true }));
        body["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": partial }));
        let reply = two.client().post(CHAT, &body).await;
        assert_eq!(format!("{partial}{}", said(&reply)), text, "cut after {cut} events");
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
    }
    let mut body = ask(&json!({ "add_generation_prompt": false, "continue_final_message": true, "echo": true }));
    body["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": pieces[..9].concat() }));
    assert_eq!(said(&two.client().post(CHAT, &body).await), text, "echo repeats the partial answer");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_answered_in_vllms_shape() {
    let engine = Engine::start(|c| c.model.max_model_len = 400).await;
    let bad = "BadRequestError";
    let long = "word ".repeat(400);
    let cases = [
        (json!({ "model": "no/such" }), 404, "NotFoundError", json!("model"), "`no/such` does not exist"),
        (json!({ "model": "no/such", "stream": true }), 404, "NotFoundError", json!("model"), "test/model"),
        (json!({ "model": "Test/Model" }), 404, "NotFoundError", json!("model"), "does not exist"),
        (json!({ "messages": 3 }), 400, "Bad Request", Value::Null, "1 validation error"),
        (json!({ "messages": [] }), 400, "Bad Request", json!("messages"), "empty"),
        (json!({ "max_tokens": 0 }), 400, bad, json!("max_tokens"), "at least 1, got 0"),
        (json!({ "max_completion_tokens": -1 }), 400, bad, json!("max_completion_tokens"), "got -1"),
        (json!({ "max_tokens": 400 }), 400, bad, json!("max_tokens"), "maximum context length of 400"),
        (json!({ "messages": [{ "role": "user", "content": long }] }), 400, bad, json!("input_tokens"), "400 tokens"),
        (json!({ "min_tokens": 9, "max_tokens": 8 }), 400, bad, json!("min_tokens"), "max_tokens=8"),
        (json!({ "n": 0 }), 400, bad, json!("n"), "at least 1"),
        (json!({ "n": 1000 }), 400, bad, json!("n"), "more than 128"),
        (json!({ "stop": ["a", "b", "c", "d", "e"] }), 400, "Bad Request", json!("stop"), "at most 4"),
        (json!({ "stop": "" }), 400, bad, json!("stop"), "empty"),
        (json!({ "stream_options": {} }), 400, bad, json!("stream_options"), "stream"),
        (json!({ "continue_final_message": true }), 400, bad, Value::Null, "add_generation_prompt"),
        (json!({ "logprobs": true }), 400, bad, json!("logprobs"), "not simulated"),
        (json!({ "top_logprobs": 2 }), 400, bad, json!("top_logprobs"), "not simulated"),
        (json!({ "use_beam_search": true }), 400, bad, json!("use_beam_search"), "not simulated"),
        (json!({ "response_format": { "type": "json_object" } }), 400, bad, json!("response_format"), "not simulated"),
        (json!({ "otela_sim": { "hang": true } }), 400, bad, json!("otela_sim"), "--allow-faults"),
    ];
    for (fields, status, kind, param, text) in &cases {
        let (got, got_kind, got_param, message) = error_of(&engine.client().post(CHAT, &ask(fields)).await);
        assert_eq!((got, got_kind.as_str(), &got_param), (*status, *kind, param), "{fields}: {message}");
        assert!(message.contains(text), "{fields}: {message}");
    }
    let torn = engine.client().send(&post(CHAT, r#"{"model":"test/model","messages":"#)).await;
    assert_eq!(error_of(&torn).0, 400);
    let plain = post(CHAT, &ask(&json!({})).to_string()).replace("application/json", "text/plain");
    assert!(error_of(&engine.client().send(&plain).await).3.contains("application/json"));
    let refused = engine.client().metric("otela_sim_requests_refused_total{route=\"/v1/chat/completions\"}").await;
    assert_eq!(refused, cases.len() as f64 + 2.0);
    assert_eq!(engine.client().metric("otela_sim_requests_aborted_total{route=\"/v1/chat/completions\"}").await, 0.0);
    engine.stop().await;
}

#[tokio::test]
async fn null_fields_are_as_good_as_none() {
    let engine = Engine::start(|_| {}).await;
    let nulls = json!({
        "max_tokens": null, "n": null, "stop": null, "stream": null, "stream_options": null, "seed": null,
        "logprobs": null, "top_logprobs": null, "response_format": null, "otela_sim": null, "min_tokens": null,
        "add_generation_prompt": null, "continue_final_message": null, "echo": null, "model": null,
    });
    let with = engine.client().post(CHAT, &ask(&nulls)).await;
    assert_eq!(said(&with), said(&engine.client().post(CHAT, &ask(&json!({}))).await));
    engine.stop().await;
}

#[tokio::test]
async fn completions_go_on_from_text_or_tokens() {
    let engine = Engine::start(|_| {}).await;
    let path = "/v1/completions";
    let text = |body: Value| {
        let client = engine.client();
        async move { client.post(path, &body).await.json() }
    };
    let one = text(json!({ "prompt": "Once upon", "max_tokens": 9 })).await;
    assert_eq!((&one["object"], &one["usage"]["completion_tokens"]), (&json!("text_completion"), &json!(9)));
    assert_eq!(one["usage"]["prompt_tokens"], 2);
    let tokens = engine.client().post("/tokenize", &json!({ "prompt": "Once upon" })).await.json()["tokens"].clone();
    let again = text(json!({ "prompt": tokens, "max_tokens": 9, "echo": true })).await;
    let said = one["choices"][0]["text"].as_str().unwrap();
    assert_eq!(again["choices"][0]["text"], format!("Once upon{said}"));
    let more = text(json!({ "prompt": format!("Once upon{said}"), "max_tokens": 3 })).await;
    let longer = text(json!({ "prompt": "Once upon", "max_tokens": 12 })).await;
    assert_eq!(longer["choices"][0]["text"], format!("{said}{}", more["choices"][0]["text"].as_str().unwrap()));
    let many = text(json!({ "prompt": ["Once upon", "Now"], "n": 2, "max_tokens": 9 })).await;
    let indexes: Vec<_> = many["choices"].as_array().unwrap().iter().map(|c| c["index"].clone()).collect();
    assert_eq!(indexes, [0, 1, 2, 3]);
    assert_eq!(many["choices"][0]["text"], *said);
    let body = json!({ "prompt": "Once upon", "max_tokens": 9, "echo": true, "stream": true });
    let events = engine.client().post(path, &body).await.events();
    let streamed: String =
        events[..events.len() - 1].iter().map(|e| e["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, format!("Once upon{said}"));
    assert_eq!(text(json!({ "prompt": "Once upon" })).await["usage"]["completion_tokens"], 16);
    for wrong in [json!(""), json!([]), json!([5, 6]), json!({})] {
        assert_eq!(engine.client().post(path, &json!({ "prompt": wrong })).await.status, 400, "{wrong}");
    }
    engine.stop().await;
}

#[tokio::test]
async fn embeddings_come_as_floats_and_as_base64() {
    let engine = Engine::start(|c| c.model.embedding_dim = 6).await;
    let path = "/v1/embeddings";
    let floats = engine.client().post(path, &json!({ "model": "test/model", "input": ["one two", "x"] })).await.json();
    assert_eq!((&floats["object"], &floats["model"]), (&json!("list"), &json!("test/model")));
    assert_eq!(floats["usage"]["prompt_tokens"], 3);
    assert_eq!(floats["usage"]["total_tokens"], 3);
    let data = floats["data"].as_array().unwrap();
    assert_eq!((data.len(), &data[1]["index"], &data[1]["object"]), (2, &json!(1), &json!("embedding")));
    let vector: Vec<f32> =
        data[0]["embedding"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap() as f32).collect();
    assert_eq!(vector.len(), 6);
    let body = json!({ "input": "one two", "encoding_format": "base64" });
    let packed = engine.client().post(path, &body).await.json()["data"][0]["embedding"].clone();
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(packed.as_str().unwrap()).unwrap();
    let unpacked: Vec<f32> = bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(unpacked, vector);
    let short = engine.client().post(path, &json!({ "input": "one two", "dimensions": 2 })).await.json();
    assert_eq!(short["data"][0]["embedding"].as_array().unwrap().len(), 2);
    for (fields, status) in [
        (json!({ "input": "x", "dimensions": 7 }), 400),
        (json!({ "input": "x", "encoding_format": "hex" }), 400),
        (json!({ "input": [] }), 400),
        (json!({ "input": "x", "model": "other" }), 404),
    ] {
        assert_eq!(error_of(&engine.client().post(path, &fields).await).0, status, "{fields}");
    }
    engine.stop().await;
}

#[tokio::test]
async fn responses_come_whole_and_in_events() {
    let engine = Engine::start(|_| {}).await;
    let path = "/v1/responses";
    let body =
        json!({ "model": "test/model", "input": "hi", "instructions": "Be brief.", "max_output_tokens": 6, "n": 2 });
    let whole = engine.client().post(path, &body).await.json();
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 6);
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let reply = engine.client().post(path, &streamed).await;
    assert!(!reply.text().contains("[DONE]"), "a stream of responses has no such end");
    let events = reply.events();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let named: Vec<_> = reply.text().lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(kinds, named);
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    assert_eq!(kinds.last(), Some(&"response.completed"));
    let numbers: Vec<_> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..events.len() as u64));
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text);
    assert_eq!(events.last().unwrap()["response"]["usage"], whole["usage"]);
    let items = json!({ "input": [
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
    ] });
    let items = engine.client().post(path, &items).await.json();
    assert_eq!(items["status"], "completed");
    assert!(items["output"][0]["content"][0]["text"].as_str().unwrap().starts_with(text));
    let stored = engine.client().post(path, &json!({ "input": "hi", "previous_response_id": "resp_1" })).await;
    assert!(error_of(&stored).3.contains("not simulated"));
    engine.stop().await;
}

#[tokio::test]
async fn tokens_go_to_text_and_back() {
    let engine = Engine::start(|_| {}).await;
    let prompt = "Grüße, 世界 and beyond";
    let body = json!({ "prompt": prompt, "return_token_strs": true });
    let tokens = engine.client().post("/tokenize", &body).await.json();
    assert_eq!(tokens["max_model_len"], 32_768);
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    let strings: String = tokens["token_strs"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(strings, prompt);
    let back = engine.client().post("/detokenize", &json!({ "tokens": tokens["tokens"] })).await.json();
    assert_eq!(back, json!({ "prompt": prompt }));
    assert_eq!(engine.client().post("/detokenize", &json!({ "tokens": [7] })).await.status, 400);
    assert_eq!(engine.client().post("/tokenize", &json!({})).await.status, 400);
    engine.stop().await;
}

#[tokio::test]
async fn metrics_have_vllms_names_and_are_well_formed() {
    let engine = Engine::start(|_| {}).await;
    engine.client().post(CHAT, &ask(&json!({ "max_tokens": 4, "ignore_eos": true }))).await;
    let page = engine.client().get("/metrics").await;
    assert!(page.headers["content-type"].starts_with("text/plain; version=0.0.4"));
    let mut typed = std::collections::BTreeSet::new();
    for line in page.text().lines() {
        if let Some(named) = line.strip_prefix("# TYPE ") {
            let (name, kind) = named.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(typed.insert(name.to_owned()), "{name} comes twice");
        } else if !line.starts_with('#') {
            let name = &line[..line.find(['{', ' ']).unwrap()];
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':'), "{line}");
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(typed.contains(name) || typed.contains(family), "{line} has no TYPE");
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
        }
    }
    for name in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "num_preemptions_total",
    ] {
        assert!(typed.contains(&format!("vllm:{name}")), "{name} in {typed:?}");
    }
    let labels = "engine=\"0\",model_name=\"test/model\"";
    let metric = |name: &str| {
        let (client, sample) = (engine.client(), format!("vllm:{name}"));
        async move { client.metric(&sample).await }
    };
    assert_eq!(metric(&format!("generation_tokens_total{{{labels}}}")).await, 4.0);
    assert_eq!(metric(&format!("inter_token_latency_seconds_count{{{labels}}}")).await, 3.0);
    assert_eq!(metric(&format!("time_to_first_token_seconds_count{{{labels}}}")).await, 1.0);
    assert_eq!(metric(&format!("request_success_total{{{labels},finished_reason=\"length\"}}")).await, 1.0);
    engine.stop().await;
}
