//! P53: hosts with several interfaces, of which one leads to the others.

use super::{
    INGRESS, completion,
    lab::{Gateway, Lab, address},
    local, metric,
};
use crate::support::{Otela, eventually, get, try_post};
use serde_json::{Value, json};

/// A host as computing centres have them: lo, a bridge between containers, and `hsn0`, which leads to the others.
const INTERFACES: &str = "
    ip link set eth0 down; ip link set eth0 name hsn0; ip link set hsn0 up
    ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up
";

/// The first packet of each connection from the ingress is lost, so that this takes a second: the wrong machine always
/// answers first.
const LATE: &str = r#"
    nft add chain ip f in "{ type filter hook input priority 0; }"
    nft add set ip f seen "{ typeof tcp sequence; flags dynamic,timeout; timeout 1m; }"
    nft add rule ip f in ip saddr != 10.77.0.13 accept
    nft add rule ip f in "tcp flags & (syn|ack) == syn tcp sequence != @seen add @seen { tcp sequence } drop"
"#;

/// What the otela on `host` says of itself.
async fn status(lab: &Lab, host: &str, port: u16) -> Value {
    lab.on(host, async move || get(local(port), "/v1/registry/status").await.json()).await
}

/// The numbers in the addresses of its own that a peer announces, each once.
fn announced(status: &Value) -> Vec<String> {
    let addresses = status["addresses"].as_array().unwrap().iter().map(|address| address.as_str().unwrap());
    let own = addresses.filter(|address| !address.contains("p2p-circuit"));
    let mut ips: Vec<_> = own.map(|address| address.split('/').nth(2).unwrap().to_owned()).collect();
    ips.sort_unstable();
    ips.dedup();
    ips
}

/// Of which interface an address is that is left out, and why.
fn left_out<'a>(status: &'a Value, ip: &str) -> Option<(&'a str, &'a str)> {
    let mut all = status["reach"]["left_out"].as_array().unwrap().iter();
    let left = all.find(|left| left["address"].as_str().unwrap().contains(&format!("/{ip}/")))?;
    Some((left["interface"].as_str().unwrap(), left["reason"].as_str().unwrap()))
}

/// A node on `host`, on a port of its own that another host may have too.
fn node(lab: &Lab, host: &str, flags: &[&str]) -> Otela {
    let peer = ["start", "--mesh", "test", "--http", "127.0.0.1:7501", "--peer-listen", "/ip4/0.0.0.0/tcp/7420"];
    let engine = ["--process", env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
    lab.otela(host, &[&peer[..], flags, &engine].concat())
}

#[tokio::test]
async fn lab_netns_p53_of_several_interfaces_the_one_is_used_that_leads_there() {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    for host in ["r1", "r2", "p"] {
        lab.sh(host, INTERFACES);
    }
    // The node has a network for management that leads nowhere. The ingress has one of the same name and numbers, and
    // there is another machine at the node's.
    lab.sh("r1", "ip link add mgmt0 type bridge; ip addr add 192.168.50.2/24 dev mgmt0; ip link set mgmt0 up");
    lab.sh("p", &format!("ip link add mgmt0 type veth peer name mgmt0 netns {}", lab.host("r2")));
    lab.sh("p", "ip addr add 192.168.50.9/24 dev mgmt0; ip link set mgmt0 up");
    lab.sh("r2", "ip addr add 192.168.50.2/24 dev mgmt0; ip link set mgmt0 up");
    // The ingress is the one that dials.
    lab.sh("r1", "nft add table ip f; nft add chain ip f out \"{ type filter hook output priority 0; }\"");
    lab.sh("r1", "nft add rule ip f out ip daddr 10.77.0.13 tcp flags \"&\" \"(syn|ack)\" == syn drop");
    lab.sh("r1", LATE);
    // Where they meet; no relay, which could arrange a way.
    let meeting = ["ingress", "--mesh", "test", "--peer-listen", "/ip4/0.0.0.0/tcp/7411", "--listen", "127.0.0.1:7500"];
    let meeting = lab.otela("r2", &meeting);
    meeting.says("OpenAI base URL: http://").await;
    let bootstrap = format!("{}:7411", address("r2"));
    // It is alone in its mesh of the same name.
    let wrong = node(&lab, "r2", &[]);
    wrong.says("engine started").await;
    let flags = ["--bootstrap", &bootstrap];
    let right = node(&lab, "r1", &flags);
    let id = right.says("mesh=test peer=").await;
    let ingress = ["ingress", "--mesh", "test", "--bootstrap", &bootstrap, "--listen", "127.0.0.1:8080"];
    let _ingress = lab.otela("p", &[&ingress[..], &["--peer-listen", "/ip4/0.0.0.0/tcp/0"]].concat());

    let said = eventually("the node's own addresses", async || {
        let said = status(&lab, "r1", 7501).await;
        (announced(&said).len() == 2).then_some(said)
    })
    .await;
    assert_eq!(announced(&said), ["10.77.0.11", "192.168.50.2"]);
    assert_eq!(left_out(&said, "172.17.0.1").unwrap().0, "docker0", "{said}");
    assert_eq!(left_out(&said, "127.0.0.1").unwrap().0, "lo", "{said}");
    eventually("a direct answer", async || {
        let answer = lab.on("p", async || try_post(local(INGRESS), "/v1/completions", &completion(1)).await).await;
        answer.is_ok_and(|answer| answer.header("x-otela-path") == "direct").then_some(())
    })
    .await;
    let said = status(&lab, "p", INGRESS).await;
    let connection = said["connections"].as_array().unwrap().iter().find(|c| c["peer"] == id.as_str()).unwrap();
    assert_eq!(connection["address"], json!(format!("/ip4/10.77.0.11/tcp/7420/p2p/{id}")), "{said}");
    let nodes = lab.on("p", async || get(local(INGRESS), "/v1/registry/nodes").await.json()).await;
    assert_eq!(nodes["total"], 3, "two ingresses and the node: the other machine is none of them: {nodes}");
    assert_eq!(metric(&lab, "r2", 7501, "otela_peer_connections ").await, 0.0);
}

#[tokio::test]
async fn lab_netns_p53_what_is_chosen_is_announced_as_interfaces_come_and_go() {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    lab.sh("r1", INTERFACES);
    lab.sh("r1", "ip link add mgmt0 type bridge; ip addr add 192.168.50.2/24 dev mgmt0; ip link set mgmt0 up");
    let node = node(&lab, "r1", &["--announce", "hsn0,ib0,10.200.0.0/16", "--announce", "!10.77.0.200"]);
    node.says("registry: http://").await;
    let said = status(&lab, "r1", 7501).await;
    assert_eq!(announced(&said), ["10.77.0.11"], "{said}");
    assert_eq!(left_out(&said, "192.168.50.2"), Some(("mgmt0", "not chosen by --announce")), "{said}");
    let warned = |said: &Value| {
        let warnings = said["warnings"].as_array().unwrap();
        let of_choice = warnings.iter().find(|warning| warning["code"] == "announce_unmatched");
        of_choice.map_or_else(String::new, |warning| warning["message"].as_str().unwrap().to_owned())
    };
    assert!(warned(&said).contains("ib0, 10.200.0.0/16, !10.77.0.200"), "{said}");
    node.says("--announce names what this machine does not have now choice=ib0").await;
    let until = async |what: &str, wanted: &[&str]| {
        eventually(what, async || (announced(&status(&lab, "r1", 7501).await) == wanted).then_some(())).await;
    };
    lab.sh("r1", "ip link add ib0 type bridge; ip addr add 192.168.60.2/24 dev ib0; ip link set ib0 up");
    until("an interface that has come", &["10.77.0.11", "192.168.60.2"]).await;
    lab.sh("r1", "ip addr add 10.200.7.7/24 dev mgmt0; ip addr add 10.77.0.200/24 dev hsn0");
    until("an address of a subnet", &["10.200.7.7", "10.77.0.11", "192.168.60.2"]).await;
    let said = status(&lab, "r1", 7501).await;
    assert_eq!(left_out(&said, "10.77.0.200"), Some(("hsn0", "excluded by --announce")), "{said}");
    assert_eq!(warned(&said), "");
    lab.sh("r1", "ip link del ib0; ip addr del 10.200.7.7/24 dev mgmt0");
    until("what has gone", &["10.77.0.11"]).await;
    assert!(warned(&status(&lab, "r1", 7501).await).contains("ib0, 10.200.0.0/16"));
}
