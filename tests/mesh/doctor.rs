//! `otela doctor`: what it says of a mesh that can be joined, and of what is in the way.

use crate::support::{Mesh, Otela, get};
use serde_json::Value;

const NEAR: &str = "/ip4/127.0.0.1/tcp/0";

/// Runs a doctor on loopback to its end: the exit code, and what it has found.
async fn doctor(arguments: &[&str]) -> (i32, Value) {
    doctor_of("test", arguments).await
}

async fn doctor_of(mesh: &str, arguments: &[&str]) -> (i32, Value) {
    let usual = ["doctor", "--mesh", mesh, "--json"];
    let near = ["--peer-listen", NEAR];
    let listens = arguments.contains(&"--peer-listen");
    let usual = usual.iter().chain(near.iter().filter(|_| !listens));
    let mut process = Otela::run(usual.chain(arguments));
    let (code, output) = (process.ends().await, process.output());
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {code} {output}")))
}

/// The verdict and the words of each finding of a check.
fn found<'a>(told: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let checks = told["checks"].as_array().unwrap().iter().filter(|found| found["check"] == check);
    checks.map(|found| (found["verdict"].as_str().unwrap(), found["says"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_mesh_that_can_be_joined_is_found_well_beside_bootstraps_that_are_not() {
    let mesh = Mesh::ingress(&["--peer-listen", "/ip4/127.0.0.1/udp/0/quic-v1"]).await;
    let (head, id) = mesh.bootstrap.split_once("/p2p/").unwrap();
    let nobody = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo";
    let other = format!("{head}/p2p/{nobody}");
    let bootstraps = [&mesh.bootstrap, "127.0.0.1:1", &other, "no-such-host.invalid:7411"].join(",");
    let (code, told) = doctor(&["--bootstrap", &bootstraps]).await;
    assert_eq!((code, &told["ok"]), (0, &true.into()), "{told:#}");
    let bootstrap = found(&told, "bootstrap");
    let says = |verdict: &str, marks: &[&str]| {
        let fits = |(v, says): &&(&str, &str)| *v == verdict && marks.iter().all(|mark| says.contains(mark));
        assert!(bootstrap.iter().any(|found| fits(&found)), "{verdict} {marks:?}: {bootstrap:#?}");
    };
    says("ok", &["TCP", head, id, "round trip"]);
    says("warn", &["TCP", "127.0.0.1/tcp/1:", "refused"]);
    says("warn", &["TCP", head, "another peer is there", id]);
    says("warn", &["no-such-host.invalid", "resolved"]);
    assert!(
        found(&told, "names").iter().any(|(v, says)| *v == "warn" && says.contains("no-such-host.invalid")),
        "{told:#}"
    );
    assert_eq!(found(&told, "mesh").iter().map(|(verdict, _)| *verdict).collect::<Vec<_>>(), ["ok"], "{told:#}");
    assert!(found(&told, "clock")[0].1 == "agrees with the mesh's", "{told:#}");
    assert!(found(&told, "nat")[0].1.starts_with("none"), "{told:#}");
    assert!(found(&told, "reachable")[0].1.contains("could dial"), "{told:#}");
    for warned in told["checks"].as_array().unwrap().iter().filter(|found| found["verdict"] != "ok") {
        assert!(warned["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{warned}");
    }
    // Whoever has looked was never a member.
    let listed = get(mesh.http, "/v1/registry/nodes?state=alive,unreachable,suspect,evicted,left").await.json();
    assert_eq!(listed["total"], 1, "{listed}");
}

#[tokio::test]
async fn a_mesh_that_cannot_be_joined_is_told_with_what_to_do() {
    let mesh = Mesh::ingress(&[]).await;
    let (code, told) = doctor(&[]).await;
    assert_eq!((code, found(&told, "mesh")[0].0), (1, "fail"), "{told:#}");
    let (code, told) = doctor(&["--bootstrap", "127.0.0.1:1"]).await;
    assert_eq!((code, &told["ok"], found(&told, "mesh")[0].0), (1, &false.into(), "fail"), "{told:#}");
    assert!(found(&told, "proxy")[0].1.contains("no bootstrap is reached"), "{told:#}");
    let (code, told) = doctor_of("other", &["--bootstrap", &mesh.bootstrap]).await;
    let bootstrap = found(&told, "bootstrap");
    assert!(code == 1 && bootstrap.iter().any(|(_, says)| says.contains("it is of another mesh")), "{told:#}");
    // A relay needs nobody.
    let (code, told) = doctor(&["--as", "relay"]).await;
    assert_eq!((code, found(&told, "mesh")[0].0), (0, "ok"), "{told:#}");
}

#[tokio::test]
async fn what_is_wrong_on_this_machine_is_told_and_nothing_is_touched() {
    let mesh = Mesh::ingress(&[]).await;
    let (dir, holder) = (tempfile::tempdir().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (key, state) = (dir.path().join("key"), dir.path().join("state"));
    let (key, state) = (key.to_str().unwrap(), state.to_str().unwrap());
    let arguments = ["--bootstrap", &mesh.bootstrap, "--key", key, "--state", state, "--announce", "nosuchif0"];
    let (code, told) = doctor(&arguments).await;
    assert_eq!(code, 1, "nothing would be announced: {told:#}");
    assert!(found(&told, "interfaces").iter().any(|(_, says)| says.contains("nosuchif0")), "{told:#}");
    assert_eq!((found(&told, "key")[0].0, found(&told, "state")[0].0), ("ok", "ok"), "{told:#}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it only looks");
    // An otela that runs here is not disturbed, and what it holds is no error.
    let taken = format!("/ip4/127.0.0.1/tcp/{}", holder.local_addr().unwrap().port());
    let node = Otela::run(["relay", "--mesh", "test", "--key", key, "--state", state, "--peer-listen", NEAR]);
    node.says("others join").await;
    let arguments = ["--bootstrap", &mesh.bootstrap, "--key", key, "--state", state, "--peer-listen", &taken];
    let (code, told) = doctor(&arguments).await;
    assert_eq!(code, 0, "{told:#}");
    for (check, says) in [("key", "in use by another otela"), ("state", "in use by another otela"), ("port", &taken)] {
        assert!(found(&told, check)[0].0 == "warn" && found(&told, check)[0].1.contains(says), "{check} {told:#}");
    }
    std::fs::write(dir.path().join("wrong"), "not a key").unwrap();
    let (code, told) =
        doctor(&["--bootstrap", &mesh.bootstrap, "--key", dir.path().join("wrong").to_str().unwrap()]).await;
    assert_eq!((code, found(&told, "key")[0].0), (1, "fail"), "{told:#}");
}

#[tokio::test]
async fn people_read_lines() {
    let mesh = Mesh::ingress(&[]).await;
    let mut process = Otela::run(["doctor", "--mesh", "test", "--peer-listen", NEAR, "--bootstrap", &mesh.bootstrap]);
    let (code, output) = (process.ends().await, process.output());
    assert!(code == 0 && output.ends_with("A mesh can be joined and served from here."), "{code} {output}");
    assert!(output.lines().any(|line| line.starts_with("ok    mesh")), "{output}");
}
