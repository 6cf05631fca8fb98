//! The OpenAI surface: models, bodies, errors, headers.

use crate::{
    support::{Mesh, Way, chunk, eventually, get, post, post_bytes, raw, read_to_end, send, stream_of},
    wire::H2,
};
use bytes::Bytes;
use http_body_util::Full;
use otela_testing::{Stopwatch, assert_comparable};
use serde_json::{Value, json};
use std::{io::Write as _, process::Stdio};

each_way![
    p01_model_ids_with_slashes_and_colons,
    p03_bodies_of_screenshots_pass_and_the_limit_is_told,
    p04_unknown_models_and_models_that_are_not_ready,
    p05_bytes_go_through_unchanged,
    p06_encoded_bodies_are_decoded_before_routing,
    p07_framing_is_made_anew_on_each_hop,
    p09_p15_answers_are_not_touched,
    p18_p19_the_engines_own_refusals_reach_the_client_and_hurt_nobody,
    p23_keys_of_clients_are_written_nowhere,
    p24_an_engine_gets_its_own_key_and_never_a_clients,
    p24_p29_credentials_stay_here_and_errors_tell_nothing_inner,
    p25_control_routes_of_engines_cannot_be_reached,
    any_inference_route_is_carried_and_metrics_count_it,
    p35_the_list_of_models_asks_nobody,
    p03_clients_that_announce_much_and_send_little_lock_nobody_out,
    p19_client_errors_are_not_asked_for_elsewhere,
];

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5})
}

async fn p01_model_ids_with_slashes_and_colons(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.simulated("mistralai/Mistral-7B:fp8", &[]).await;
    let list = get(mesh.http, "/v1/models").await.json();
    assert_eq!(list["object"], "list");
    for path in ["mistralai/Mistral-7B:fp8", "mistralai%2FMistral-7B:fp8", "mistralai%2FMistral-7B%3Afp8"] {
        let one = get(mesh.http, &format!("/v1/models/{path}")).await;
        assert_eq!((one.status, &one.json()), (200, &list["data"][0]), "{path}");
    }
    assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("mistralai/Mistral-7B:fp8")).await.status, 200);
    let unknown = get(mesh.http, "/v1/models/no/such").await;
    assert_eq!((unknown.status, unknown.json()["error"]["code"].clone()), (404, json!("model_not_found")));
    let no_route = get(mesh.http, "/v1/nothing").await;
    assert_eq!((no_route.status, no_route.json()["error"]["code"].clone()), (404, json!("unknown_url")));
    let method = post(mesh.http, "/v1/models", &json!({})).await;
    assert_eq!((method.status, method.json()["error"]["code"].clone()), (405, json!("method_not_allowed")));
}

async fn p03_bodies_of_screenshots_pass_and_the_limit_is_told(way: Way) {
    let mut mesh = Mesh::by(way, &["--body-mib-max", "40"]).await;
    let log = mesh.scripted("m").await;
    let by_default = Mesh::by(way, &["--bootstrap", &mesh.bootstrap]).await;
    by_default.serves("m", 1).await;
    for mib in [8, 31] {
        let body = json!({"model": "m", "image": "A".repeat((mib << 20) + (1 << 19))});
        assert_eq!(post(by_default.http, "/v1/chat/completions", &body).await.status, 200, "{mib} MiB");
    }
    let lengths: Vec<_> = log.events("request").iter().map(|event| event["length"].as_u64().unwrap() >> 20).collect();
    assert_eq!(lengths, [8, 31]);
    // Declared: refused before a byte is sent. Undeclared: refused at the byte that is too much.
    let declared =
        raw(mesh.http, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 41943041\r\n\r\n").await;
    let mut declared = declared;
    let (text, _) = read_to_end(&mut declared).await;
    assert!(text.starts_with("HTTP/1.1 413") && text.contains("41943040"), "{text}");
    let mut chunked =
        raw(mesh.http, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let part = chunk(&"A".repeat(1 << 20)).into_bytes();
    for _ in 0..41 {
        if tokio::io::AsyncWriteExt::write_all(&mut chunked, &part).await.is_err() {
            break;
        }
    }
    let text = crate::support::read_until(&mut chunked, "\r\n").await;
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    assert_eq!(log.events("request").len(), 2, "the engine never saw the others");
}

async fn p04_unknown_models_and_models_that_are_not_ready(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    for stream in [false, true] {
        let mut body = chat("no/such");
        body["stream"] = stream.into();
        let answer = post(mesh.http, "/v1/chat/completions", &body).await;
        assert_eq!((answer.status, answer.header("content-type")), (404, "application/json"));
        let error = &answer.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
        assert!(error["message"].as_str().unwrap().contains("no/such") && error["type"].is_string());
    }
    mesh.simulated("Org/M", &[]).await;
    assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("Org/M")).await.status, 200);
    assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("org/m")).await.status, 404, "case counts");
    assert_eq!(get(mesh.http, "/v1/models/org/m").await.status, 404, "everywhere");
    // Its only node leaves: known, but not ready.
    mesh.nodes[0].signal("-TERM");
    mesh.nodes[0].ends().await;
    mesh.serves("Org/M", 0).await;
    let answer = post(mesh.http, "/v1/chat/completions", &chat("Org/M")).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (503, json!("model_not_ready")));
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1);
}

async fn p05_bytes_go_through_unchanged(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let answer_body = r#"{"choices":[{"reasoning_content":"\u00e9","logprobs":null}],"kv_transfer_params":{"x":12345678901234567},"f":1e-7 }"#;
    let reply = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-custom: kept\r\ncontent-length: {}\r\n\r\n{answer_body}",
        answer_body.len()
    );
    let body = format!(
        r#"{{ "zzz_future":1, "chat_template_kwargs":{{"enable_thinking":false}},"top_k":20, "big":12345678901234567,"tiny":1e-7,"text":"\u8bfb写\ud83d\ude00",  "model":"m","stream_options":{{"include_usage":false}},"script":[["send",{}]]}}"#,
        Value::from(reply)
    );
    let request = http::Request::post("/v1/chat/completions?x=%2F").header("host", "test");
    let answer = send(mesh.http, request.body(Full::new(Bytes::from(body.clone()))).unwrap()).await.unwrap();
    assert_eq!(answer.body, answer_body);
    assert_eq!((answer.status, answer.header("x-custom")), (200, "kept"));
    let seen = log.nth("request", 1).await;
    let seen_body: String = seen["body"].as_str().unwrap().to_owned();
    let sent: String = body.bytes().map(char::from).collect();
    assert_eq!(seen_body, sent, "byte for byte");
    assert!(seen["head"].as_str().unwrap().starts_with("POST /v1/chat/completions?x=%2F HTTP/1.1"));
}

async fn p06_encoded_bodies_are_decoded_before_routing(way: Way) {
    let mut mesh = Mesh::by(way, &["--body-mib-max", "4"]).await;
    let log = mesh.scripted("m").await;
    let plain = chat("m").to_string();
    let gzip = piped("gzip -c", plain.as_bytes());
    let both = piped("gzip -c", &gzip);
    let bomb = piped("gzip -c", &vec![0; 64 << 20]);
    for (coding, body, status) in [
        ("gzip", gzip.clone(), 200),
        ("gzip, gzip", both, 200),
        ("gzip", gzip[..gzip.len() / 2].to_vec(), 400),
        ("zstd", b"\x28\xb5\x2f\xfd\x04".to_vec(), 400),
        ("gzip", bomb, 413),
        ("foo", gzip, 415),
    ] {
        let request =
            http::Request::post("/v1/chat/completions").header("host", "t").header("content-encoding", coding);
        let answer = send(mesh.http, request.body(Full::new(body.into())).unwrap()).await.unwrap();
        assert_eq!(answer.status, status, "{coding}: {:?}", answer.body);
        assert!(status == 200 || answer.json()["error"]["message"].is_string());
    }
    for event in log.events("request") {
        assert_eq!(event["body"].as_str().unwrap(), plain);
        assert!(!event["head"].as_str().unwrap().contains("content-encoding"));
    }
    assert_eq!(log.events("request").len(), 2);
}

fn piped(command: &str, input: &[u8]) -> Vec<u8> {
    let mut child = std::process::Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output.stdout
}

async fn p07_framing_is_made_anew_on_each_hop(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    // Encoded answers pass with their encoding and their length.
    let gzip: String = piped("gzip -c", b"{\"ok\":true}").into_iter().map(char::from).collect();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\n\r\n",
        gzip.chars().count()
    );
    let mut body = chat("m");
    body["script"] = json!([["send", head + &gzip]]);
    let answer = post(mesh.http, "/v1/chat/completions", &body).await;
    assert_eq!(answer.body.iter().map(|b| char::from(*b)).collect::<String>(), gzip);
    assert_eq!(
        (answer.header("content-encoding"), answer.header("x-hop"), answer.header("keep-alive")),
        ("gzip", "", "")
    );
    // A chunked request arrives with one framing, and the answer's chunks become one body.
    body["script"] =
        json!([["send", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"]]);
    let text = body.to_string();
    let (first, second) = text.split_at(10);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close, x-mine\r\nx-mine: 1\r\ntransfer-encoding: chunked\r\n\r\n{}{}0\r\n\r\n",
        chunk(first),
        chunk(second)
    );
    let (answer, clean) = read_to_end(&mut raw(mesh.http, request.as_bytes()).await).await;
    assert!(clean && answer.ends_with("\r\n\r\nabcde"), "{answer}");
    let head = log.nth("request", 2).await["head"].as_str().unwrap().to_lowercase();
    assert!(head.contains(&format!("content-length: {}", text.len())) && !head.contains("chunked"), "{head}");
    assert!(!head.contains("x-mine"));
}

async fn p09_p15_answers_are_not_touched(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.simulated("m", &[]).await;
    let embed = |format: &str| json!({"model": "m", "input": "hi", "encoding_format": format});
    let base64 = post(mesh.http, "/v1/embeddings", &embed("base64")).await.json();
    assert!(base64["data"][0]["embedding"].is_string());
    let floats = post(mesh.http, "/v1/embeddings", &embed("float")).await.json();
    assert!(floats["data"][0]["embedding"][0].is_number());
    for (options, usages) in
        [(json!(null), 0), (json!({"include_usage": false}), 0), (json!({"include_usage": true}), 1)]
    {
        let mut body = chat("m");
        body["stream"] = true.into();
        if !options.is_null() {
            body["stream_options"] = options.clone();
        }
        let answer = post(mesh.http, "/v1/chat/completions", &body).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        let events = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let with_usage = events.filter(|data| !serde_json::from_str::<Value>(data).unwrap()["usage"].is_null()).count();
        assert_eq!(with_usage, usages, "{options}");
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
}

async fn p18_p19_the_engines_own_refusals_reach_the_client_and_hurt_nobody(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let refusal = |status: &str, extra: &str| {
        let body = r#"{"error":{"message":"mine","type":"x","code":null}}"#;
        let mut request = chat("m");
        let length = body.len();
        request["script"] =
            json!([["send", format!("HTTP/1.1 {status} No\r\n{extra}content-length: {length}\r\n\r\n{body}")]]);
        request
    };
    let busy =
        post(mesh.http, "/v1/chat/completions", &refusal("429", "Retry-After: 30\r\nretry-after-ms: 29500\r\n")).await;
    assert_eq!((busy.status, busy.header("retry-after"), busy.header("retry-after-ms")), (429, "30", "29500"));
    let dated =
        post(mesh.http, "/v1/chat/completions", &refusal("503", "Retry-After: Fri, 31 Dec 2027 23:59:59 GMT\r\n"))
            .await;
    assert_eq!((dated.status, dated.header("retry-after")), (503, "Fri, 31 Dec 2027 23:59:59 GMT"));
    for status in ["400", "401", "403", "404", "413", "422"].iter().cycle().take(20) {
        let answer = post(mesh.http, "/v1/chat/completions", &refusal(status, "")).await;
        assert_eq!(
            (answer.status.to_string().as_str(), answer.json()["error"]["message"].clone()),
            (*status, json!("mine"))
        );
    }
    assert_eq!(log.events("request").len(), 22, "each was asked once");
    assert_eq!(post(mesh.http, "/v1/chat/completions", &chat("m")).await.status, 200);
    assert_eq!(mesh.ready("m").await, 1);
}

async fn p24_p29_credentials_stay_here_and_errors_tell_nothing_inner(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/rerank", "/tokenize"] {
        let request = http::Request::post(path)
            .header("host", "canary.example")
            .header("authorization", "Bearer canary")
            .header("x-api-key", "canary")
            .header("cookie", "s=canary")
            .header("x-forwarded-for", "canary")
            .header("x-otela-node", "canary");
        let request = request.body(Full::new(Bytes::from(chat("m").to_string()))).unwrap();
        let answer = send(mesh.http, request).await.unwrap();
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("x-request-id").len(), 32);
    }
    let heads: Vec<_> = log.events("request").iter().map(|e| e["head"].as_str().unwrap().to_owned()).collect();
    assert_eq!(heads.len(), 4);
    assert!(heads.iter().all(|head| !head.contains("canary")), "{heads:?}");
    let mut broken = chat("m");
    broken["script"] = json!([["reset"]]);
    let answer = post(mesh.http, "/v1/chat/completions", &broken).await;
    assert_eq!(answer.status, 502);
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(!text.contains("127.0.0.1") && !text.contains("12D3"), "{text}");
    assert!(!answer.header("x-request-id").is_empty());
}

async fn p24_an_engine_gets_its_own_key_and_never_a_clients(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted_with("m", &[], &["--api-key", "engines"]).await;
    for path in ["/v1/chat/completions", "/v1/audio/speech", "/v1/responses", "/v1/service/llm/v1/rerank"] {
        let request = http::Request::post(path).header("host", "t").header("authorization", "Bearer canary");
        let request = request.body(Full::new(Bytes::from(chat("m").to_string()))).unwrap();
        assert_eq!(send(mesh.http, request).await.unwrap().status, 200, "{path}");
    }
    let heads: Vec<_> = log.events("request").iter().map(|e| e["head"].as_str().unwrap().to_lowercase()).collect();
    let right = |head: &String| head.matches("authorization").count() == 1 && head.contains("bearer engines");
    assert!(heads.len() >= 4 && heads.iter().filter(|head| !right(head)).count() <= 1, "{heads:?}");
    assert!(heads.iter().all(|head| !head.contains("canary")), "{heads:?}");
}

async fn p23_keys_of_clients_are_written_nowhere(way: Way) {
    const KEY: &str = "c4n4ry7f3a91d2";
    let everything = ["--log", "trace"];
    let mut mesh = Mesh::by(way, &everything).await;
    let log = mesh.scripted_with("m", &everything, &[]).await;
    let http2 = H2::on(raw(mesh.http, b"").await).await;
    let mut answers = Vec::new();
    for (name, value) in [
        ("authorization", format!("Bearer sk-{KEY}-x")),
        ("authorization", format!("{KEY}x")),
        ("x-api-key", format!("sk-{KEY}-x")),
        ("cookie", format!("session={KEY}")),
        ("proxy-authorization", format!("Basic {KEY}")),
    ] {
        for (path, body) in [
            ("/v1/chat/completions", chat("m")),
            ("/v1/chat/completions", chat("none")),
            ("/v1/messages", chat("none")),
            ("/v1/chat/completions?api_key=sk-c4n4ry7f3a91d2&x=1", chat("m")),
            // The engine breaks off.
            ("/v1/rerank", json!({"model": "m", "script": [["close"]]})),
            ("/sleep", chat("m")),
        ] {
            let request = http::Request::post(path).header("host", "t").header(name, &value);
            let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
            answers.push(send(mesh.http, request).await.unwrap());
            let mut request = crate::wire::request(path, crate::wire::body(&body));
            request.headers_mut().insert(name, value.parse().unwrap());
            answers.push(http2.ask(request).await);
        }
    }
    // One that is far too long, of which no answer may come.
    let long = format!("GET /v1/models HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {}\r\n\r\n", KEY.repeat(80_000));
    let mut client = raw(mesh.http, b"").await;
    let _ = tokio::io::AsyncWriteExt::write_all(&mut client, long.as_bytes()).await;
    let (text, _) = read_to_end(&mut client).await;
    assert!(!text.contains(KEY) && !text.contains("200 OK"), "{text}");
    assert!(answers.iter().filter(|answer| answer.status == 200).count() >= 20, "{answers:?}");
    for answer in &answers {
        assert!(!format!("{answer:?}").contains(KEY), "{answer:?}");
    }
    assert!(log.events("request").iter().all(|request| !request.to_string().contains(KEY)));
    let metrics = get(mesh.http, "/metrics").await;
    assert!(!String::from_utf8_lossy(&metrics.body).contains(KEY));
    eventually("all that is written", async || {
        let lines = mesh.ingress.output().lines().filter(|line| line.contains("total_ms=")).count();
        (lines >= answers.len()).then_some(())
    })
    .await;
    for output in [mesh.ingress.output(), mesh.nodes[0].output()] {
        assert!(output.contains("TRACE"), "it has written all that there is");
        let leaks: Vec<_> = output.lines().filter(|line| line.contains(KEY)).take(5).collect();
        assert!(leaks.is_empty(), "{leaks:?}");
    }
}

async fn p25_control_routes_of_engines_cannot_be_reached(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    for path in ["/sleep", "/v1/load_lora_adapter", "/collective_rpc", "/v1/../sleep", "/v1/%2e%2e/sleep", "//sleep"] {
        let (text, _) = read_to_end(&mut raw(mesh.http, &closing(&post_bytes(path, &chat("m")))).await).await;
        assert!(text.starts_with("HTTP/1.1 404"), "{path}: {text}");
    }
    assert_eq!(log.events("request").len(), 0);
}

fn closing(request: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(request).replacen("\r\nhost", "\r\nconnection: close\r\nhost", 1).into_bytes()
}

#[tokio::test]
async fn bodies_that_name_no_model_get_one_clear_error() {
    let mesh = Mesh::ingress(&[]).await;
    for (body, says) in [
        ("", "no body"),
        ("{", "not valid"),
        ("[]", "not valid"),
        ("{}", "names no `model`"),
        (r#"{"model":7}"#, "not valid"),
        (r#"{"model":"a","model":"b"}"#, "duplicate"),
    ] {
        let request = http::Request::post("/v1/chat/completions").header("host", "t");
        let answer = send(mesh.http, request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap();
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && message.contains(says), "{body}: {message}");
    }
    let request = http::Request::post("/v1/audio/transcriptions").header("host", "t");
    let request = request.header("content-type", "multipart/form-data; boundary=x");
    let answer = send(mesh.http, request.body(Full::new(Bytes::from("--x--"))).unwrap()).await.unwrap();
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (400, json!("missing_model")));
}

async fn p35_the_list_of_models_asks_nobody(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    mesh.simulated("m", &[]).await;
    mesh.simulated("m", &[]).await;
    mesh.simulated("n", &[]).await;
    let first = get(mesh.http, "/v1/models").await.body;
    let ids: Vec<_> = serde_json::from_slice::<Value>(&first).unwrap()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids, ["m", "n"]);
    let lists = async || {
        let watch = Stopwatch::start();
        for _ in 0..20 {
            assert_eq!(get(mesh.http, "/v1/models").await.body, first);
        }
        watch.read()
    };
    let control = [lists().await, lists().await, lists().await];
    // One node is stopped in its tracks: it accepts and never answers. Whether it is still listed or not by then, the model
    // is as old as its first replica.
    mesh.nodes[1].signal("-STOP");
    let measured = [lists().await, lists().await, lists().await];
    assert_comparable("lists beside a node that hangs", &measured, &control, 10);
    mesh.nodes[1].signal("-CONT");
}

async fn any_inference_route_is_carried_and_metrics_count_it(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let log = mesh.scripted("m").await;
    let mut body = chat("m");
    body["script"] =
        Value::from(stream_of(&["event: response.created\ndata: {}\n\n", "event: response.completed\ndata: {}\n\n"]));
    body["script"].as_array_mut().unwrap().push(json!(["send", "0\r\n\r\n"]));
    let answer = post(mesh.http, "/v1/responses", &body).await;
    assert_eq!(answer.header("content-type"), "text/event-stream");
    assert!(answer.body.ends_with(b"event: response.completed\ndata: {}\n\n"), "p13: nothing is added");
    assert_eq!(log.events("request").len(), 1);
    eventually("the request is counted", async || {
        (mesh.metric("otela_ingress_requests_total{end=\"complete\"}").await == 1.0).then_some(())
    })
    .await;
}

async fn p03_clients_that_announce_much_and_send_little_lock_nobody_out(way: Way) {
    // Nothing but room for both lets the small request through.
    let mut mesh = Mesh::by(way, &["--body-stall", "10h"]).await;
    mesh.simulated("m", &[]).await;
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n";
    let mut slow = Vec::new();
    for _ in 0..64 {
        slow.push(raw(mesh.http, head).await);
    }
    let answer = post(mesh.http, "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 1})).await;
    assert_eq!(answer.status, 200);
}

async fn p19_client_errors_are_not_asked_for_elsewhere(way: Way) {
    let mut mesh = Mesh::by(way, &[]).await;
    let logs = [mesh.scripted("m").await, mesh.scripted("m").await];
    for n in 1..=20 {
        let mut request = chat("m");
        request["script"] = json!([["send", "HTTP/1.1 400 No\r\ncontent-length: 2\r\n\r\n{}"]]);
        assert_eq!(post(mesh.http, "/v1/chat/completions", &request).await.status, 400);
        assert_eq!(logs.iter().map(|log| log.events("request").len()).sum::<usize>(), n);
    }
    assert_eq!(mesh.ready("m").await, 2, "and nobody is held to be at fault");
}
