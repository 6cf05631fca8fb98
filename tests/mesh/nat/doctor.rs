//! `otela doctor` behind gateways: what it says of a NAT, and of a firewall that drops UDP.

use super::{
    TCP,
    lab::{Gateway, Lab},
    relay,
};
use serde_json::Value;

/// What a doctor in site `a` finds, and its exit code.
async fn doctor(lab: &Lab, bootstraps: &str) -> (i32, Value) {
    let mut doctor = lab.otela("a", &["doctor", "--mesh", "test", "--bootstrap", bootstraps, "--json"]);
    let code = doctor.ends().await;
    (code, serde_json::from_str(&doctor.output()).unwrap_or_else(|error| panic!("{error} {}", doctor.output())))
}

fn found<'a>(told: &'a Value, check: &str) -> (&'a str, &'a str) {
    let found = told["checks"].as_array().unwrap().iter().find(|found| found["check"] == check);
    let found = found.unwrap_or_else(|| panic!("{check}: {told:#}"));
    (found["verdict"].as_str().unwrap(), found["says"].as_str().unwrap())
}

#[tokio::test]
async fn lab_netns_p47_a_doctor_tells_the_kind_of_a_nat() {
    for (gateway, verdict, says) in
        [(Gateway::Cone, "ok", "keeps ports"), (Gateway::Symmetric, "warn", "another port for each destination")]
    {
        let lab = Lab::new(gateway, Gateway::Cone);
        let (_first, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
        let (_second, other) = relay(&lab, "r2", TCP.1, &["--bootstrap", &bootstrap]).await;
        let (code, told) = doctor(&lab, &format!("{bootstrap},{other}")).await;
        let nat = found(&told, "nat");
        assert!(nat.0 == verdict && nat.1.contains(says) && nat.1.contains("10.77.0.101"), "{gateway:?} {told:#}");
        assert_eq!((code, found(&told, "relays").0, found(&told, "udp").0), (0, "ok", "ok"), "{told:#}");
    }
}

#[tokio::test]
async fn lab_netns_p47_a_doctor_sees_a_firewall_that_drops_udp() {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    lab.sh("ga", "nft insert rule ip gateway through meta l4proto udp drop");
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let (code, told) = doctor(&lab, &bootstrap).await;
    assert_eq!((code, found(&told, "mesh").0), (0, "ok"), "{told:#}");
    let udp = found(&told, "udp");
    assert!(udp.0 == "warn" && udp.1.contains("drops UDP"), "{told:#}");
    let bootstraps = told["checks"].as_array().unwrap().iter().filter(|found| found["check"] == "bootstrap");
    let says: Vec<_> = bootstraps.map(|found| found["says"].as_str().unwrap()).collect();
    assert!(says[0].starts_with("TCP") && says[0].contains("round trip"), "{says:?}");
    assert!(says[1].starts_with("QUIC") && says[1].contains("firewall"), "{says:?}");
}

#[tokio::test]
async fn lab_netns_p45_a_doctor_says_that_nobody_could_reach_this_machine() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Cone);
    let (_full, bootstrap) = relay(&lab, "r1", TCP.1, &["--reservations-max", "0"]).await;
    let (code, told) = doctor(&lab, &bootstrap).await;
    let relays = found(&told, "relays");
    assert!(code == 1 && relays.0 == "fail" && relays.1.contains("none of 1"), "{told:#}");
}
