//! Streams through a relay that take long, and some that are silent for long.

use super::{
    INGRESS, TCP, ingress,
    lab::{Gateway, Lab},
    local, node, relay, takes,
};
use crate::support::post;
use otela_testing::repetitions;
use serde_json::json;

#[tokio::test]
async fn lab_netns_p44_a_long_stream_comes_whole_through_a_relay() {
    // Three minutes, or half an hour, at fifty tokens a second.
    let tokens = repetitions(9_000, 90_000);
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    // Time is compressed in the engine, which says in seconds what takes half an hour elsewhere.
    let context = (2 * tokens).to_string();
    let _node = node(&lab, &bootstrap, TCP.0, &["--itl", "0ms", "--max-model-len", &context]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    let body = json!({"model": "m", "prompt": "x", "max_tokens": tokens, "stream": true, "ignore_eos": true});
    let events = stream(&lab, body).await.matches("data: {").count();
    assert!(events >= tokens, "{events} events of {tokens}");
}

#[tokio::test]
async fn lab_netns_a_stream_that_is_silent_outlives_the_gateways_time_outs() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    for gateway in ["ga", "gb"] {
        lab.sh(gateway, "sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=10");
    }
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let _node = node(&lab, &bootstrap, TCP.0, &["--allow-faults"]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    // Longer than the gateways remember a connection on which nothing moves.
    let faults = json!({"silence_ms": 25_000});
    let body = json!({"model": "m", "prompt": "x", "max_tokens": 3, "stream": true, "otela_sim": faults});
    takes(&lab, "relayed").await;
    let events = stream(&lab, body).await.matches("data: {").count();
    assert!(events >= 3, "{events} events");
}

/// One streamed completion in site `b`, all of it, which must end as it should.
async fn stream(lab: &Lab, body: serde_json::Value) -> String {
    let answer = lab.on("b", async move || post(local(INGRESS), "/v1/completions", &body).await).await;
    assert_eq!((answer.status, answer.header("x-otela-path")), (200, "relayed"));
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{}", &text[text.len().saturating_sub(400)..]);
    text
}
