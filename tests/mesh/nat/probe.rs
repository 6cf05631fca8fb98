//! `otela probe` between sites behind NATs: the relayed way, and a direct one where there is one to be found.

use super::{
    TCP,
    lab::{Gateway, Lab},
    node, relay,
};
use serde_json::Value;

/// Probes the node in site `a` from site `b`.
async fn probe(lab: &Lab, bootstrap: &str, flags: &[&str]) -> Value {
    let node = node(lab, bootstrap, TCP.0, &[]);
    let id = node.says("mesh=test peer=").await;
    node.says("reachable through a relay").await;
    let arguments = ["probe", &id, "--mesh", "test", "--bootstrap", bootstrap, "--json", "--bytes", "1000000"];
    let mut probe = lab.otela("b", &[&arguments, flags].concat());
    assert_eq!(probe.ends().await, 0, "{}", probe.output());
    serde_json::from_str(&probe.output()).unwrap()
}

fn paths(told: &Value) -> Vec<&str> {
    let ways = told["ways"].as_array().unwrap();
    assert!(ways.iter().all(|way| way["error"].is_null() && way["up"]["bytes"] == 1_000_000), "{told}");
    ways.iter().map(|way| way["path"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn lab_netns_p47_a_probe_finds_the_direct_way_where_nats_let_it_through() {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let told = probe(&lab, &bootstrap, &["--punch-within", "9m"]).await;
    assert_eq!(paths(&told), ["relayed", "direct"], "{told}");
    assert_eq!(told["hole_punch"]["result"], "found", "{told}");
    assert!(told["hole_punch"]["after_ms"].is_number(), "{told}");
}

#[tokio::test]
async fn lab_netns_p47_a_probe_says_that_there_is_no_direct_way() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let told = probe(&lab, &bootstrap, &["--punch-within", "3s"]).await;
    assert_eq!(paths(&told), ["relayed"], "{told}");
    assert_eq!(told["hole_punch"]["result"], "not_found", "{told}");
    let own = told["tried"].as_array().unwrap().iter().find(|tried| tried["reached"] == false).unwrap();
    assert!(own["error"].as_str().is_some_and(|error| !error.is_empty()), "{told}");
}
