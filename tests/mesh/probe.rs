//! `otela probe`: what it measures between real processes, and what it says when it cannot.

use crate::support::{Mesh, Otela, get};
use serde_json::Value;

/// Runs a probe on loopback to its end: the exit code and the output.
async fn probe(arguments: &[&str]) -> (i32, String) {
    let usual =
        ["probe", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--count", "10", "--bytes", "100000"];
    let mut process = Otela::run(usual.iter().chain(arguments));
    (process.ends().await, process.output())
}

#[tokio::test]
async fn a_node_is_measured_by_its_id_and_by_its_address_and_does_not_notice() {
    let mut mesh = Mesh::ingress(&[]).await;
    mesh.simulated("m", &[]).await;
    let node = mesh.listed().await[0].clone();
    let id = node["id"].as_str().unwrap();
    let (code, output) = probe(&[id, "--bootstrap", &mesh.bootstrap, "--json"]).await;
    let told: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    assert_eq!(
        (code, &told["peer"], &told["hole_punch"]["result"]),
        (0, &node["id"], &"not_needed".into()),
        "{output}"
    );
    let way = &told["ways"][0];
    assert_eq!((&way["path"], &way["transport"], &way["error"]), (&"direct".into(), &"tcp".into(), &Value::Null));
    assert_eq!((&way["round_trips"]["count"], &way["up"]["bytes"]), (&10.into(), &100_000.into()), "{way}");
    assert!(way["round_trips"]["p50_ms"].as_f64() <= way["round_trips"]["p99_ms"].as_f64(), "{way}");
    assert!(way["down"]["megabytes_per_s"].as_f64().unwrap() > 0.0, "{way}");
    // Flags that are there for the node that runs here are not in the way.
    let key = mesh.dir.path().join("key");
    let relay = Otela::run([
        "relay",
        "--mesh",
        "test",
        "--key",
        key.to_str().unwrap(),
        "--peer-listen",
        "/ip4/127.0.0.1/tcp/0",
    ]);
    relay.says("others join").await;
    let address = format!("{}/p2p/{id}", node["addresses"][0].as_str().unwrap());
    let (code, output) = probe(&[&address, "--key", key.to_str().unwrap()]).await;
    assert!(code == 0 && output.contains("UP MB/S") && output.contains("reached after"), "{code} {output}");
    assert!(output.lines().any(|line| line.starts_with("direct  tcp")), "{output}");
    // Whoever has looked was never a member.
    let listed = get(mesh.http, "/v1/registry/nodes?state=alive,unreachable,suspect,evicted,left").await.json();
    assert_eq!(listed["total"], 2, "{listed}");
    let status = get(mesh.http, "/v1/registry/status").await.json();
    assert!(!status["refused"].as_array().unwrap().iter().any(|refused| refused["what"] == "probes"), "{status}");
}

#[tokio::test]
async fn what_cannot_be_measured_is_said_on_one_line() {
    let mesh = Mesh::ingress(&[]).await;
    let nobody = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
    let (code, output) = probe(&[nobody, "--bootstrap", &mesh.bootstrap]).await;
    assert!(code == 69 && output.contains("the mesh does not know") && output.contains(nobody), "{code} {output}");
    let (code, output) = probe(&[nobody]).await;
    assert!(code == 2 && output.contains("--bootstrap") && output.lines().count() == 1, "{code} {output}");
    let (code, output) = probe(&["node1"]).await;
    assert!(code == 2 && output.contains("/p2p/ID"), "{code} {output}");
    let (code, output) = probe(&[nobody, "--for", "1h"]).await;
    assert!(code == 2 && output.contains("10s"), "{code} {output}");
    // Another peer is at the address.
    let (head, id) = mesh.bootstrap.split_once("/p2p/").unwrap();
    let (code, output) = probe(&[&format!("{head}/p2p/{nobody}")]).await;
    assert!(code == 69 && output.contains(&format!("another peer is there: {id}")), "{code} {output}");
    assert!(output.lines().last().unwrap().starts_with("otela: no way to"), "{output}");
}
