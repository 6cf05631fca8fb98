//! The door, where a connection comes through a relay.

use super::{
    INGRESS, NODE, TCP,
    lab::{Gateway, Lab},
    local, path, relay,
};
use crate::support::{eventually, get};
use std::{fs, process::Command};

#[tokio::test]
async fn lab_netns_who_is_not_admitted_is_refused_over_a_circuit_too() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let key = lab.dir().join("node.key");
    let made = Command::new(env!("CARGO_BIN_EXE_otela")).arg("key").arg(&key).output().unwrap();
    let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    // The relay admits the node; the ingress, which meets it over a circuit only, does not.
    let mesh = lab.dir().join("mesh.toml");
    fs::write(&mesh, format!("name = \"test\"\n[revoked]\npeers = [\"{id}\"]\n")).unwrap();
    let peer = ["--bootstrap", &bootstrap, "--peer-listen", TCP.0];
    let shown = ["--mesh", "test", "--http", "127.0.0.1:7500", "--key", key.to_str().unwrap()];
    let engine = ["--process", env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
    let node = lab.otela("a", &[&["start"], &peer[..], &shown, &engine].concat());
    let shown = ["--mesh-file", mesh.to_str().unwrap(), "--listen", "127.0.0.1:8080"];
    let _ingress = lab.otela("b", &[&["ingress"], &peer[..], &shown].concat());
    let refused = async |host, port, what: &str| {
        eventually(&format!("{what} refused in {host}"), async || {
            // It need not listen yet.
            let answer = lab.on(host, async move || crate::support::try_get(local(port), "/v1/registry/status").await);
            let status = answer.await.ok()?.json();
            let mut refused = status["refused"].as_array()?.iter();
            refused.any(|r| r["what"] == what && r["reason"] == "revoked_peer").then_some(())
        })
        .await;
    };
    refused("b", INGRESS, "peers").await;
    refused("a", NODE, "us").await;
    eventually("it came through the relay", async || node.output().contains("p2p-circuit").then_some(())).await;
    assert!(path(&lab).await.is_err());
    eventually("the relay has it", async || {
        let page = lab.on("r1", async || get(local(NODE), "/v1/registry/nodes").await.json()).await;
        page["nodes"].as_array()?.iter().any(|node| node["id"] == id.as_str()).then_some(())
    })
    .await;
}
