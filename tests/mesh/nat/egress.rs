//! Sites that let little out: only port 443, only a proxy, only a login node, only IPv6, no UDP.

use super::{
    Gateway, INGRESS, Lab, NODE, TCP, completion, local, metric,
    proxy::{NAME, Proxy, VARIABLE},
    relay,
};
use crate::support::{Otela, eventually, get, try_post};
use otela_testing::{Stopwatch, lazily};
use serde_json::{Value, json};
use std::time::Duration;

const ENGINE: [&str; 6] = ["--process", env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
/// By then a peer that did not answer would be suspected, and evicted after a grace of a second.
const SUSPECTED_BY_THEN: Duration = Duration::from_secs(10);
const NODE_IS: [&str; 5] = ["start", "--mesh", "test", "--http", "127.0.0.1:7500"];

/// A provider in site `a`, whose gateway lets little out.
fn node(lab: &Lab, variables: &[&str], flags: &[&str]) -> Otela {
    lab.otela_with("a", variables, &[&NODE_IS, flags, &ENGINE].concat())
}

/// An ingress on public host `p`.
async fn ingress(lab: &Lab, variables: &[&str], flags: &[&str]) -> Otela {
    let peer = ["ingress", "--mesh", "test", "--listen", "127.0.0.1:8080"];
    let ingress = lab.otela_with("p", variables, &[&peer, flags].concat());
    ingress.says("OpenAI base URL: http://").await;
    ingress
}

/// Sends one request to the ingress at `p`; the path that its answer took, or what went wrong.
async fn path(lab: &Lab) -> Result<String, String> {
    lab.on("p", async || {
        let answer = try_post(local(INGRESS), "/v1/completions", &completion(1)).await?;
        match answer.status {
            200 => Ok(answer.header("x-otela-path").to_owned()),
            status => Err(format!("{status} {:?}", answer.body)),
        }
    })
    .await
}

/// Waits until requests are answered over this path.
async fn takes(lab: &Lab, wanted: &str, node: &Otela) {
    let what = lazily(|| format!("a {wanted} path\n{}", node.output()));
    eventually(what, async || (path(lab).await.as_deref() == Ok(wanted)).then_some(())).await;
}

/// How the peer on a host is connected to `peer`.
async fn connection(lab: &Lab, host: &str, port: u16, peer: &str) -> Value {
    let status = lab.on(host, async move || get(local(port), "/v1/registry/status").await.json()).await;
    let connections = status["connections"].as_array().unwrap().iter();
    connections.clone().find(|connection| connection["peer"] == peer).cloned().unwrap_or(Value::Null)
}

/// The id at the end of an address.
fn id(address: &str) -> &str {
    address.rsplit('/').next().unwrap()
}

/// A certificate for the relay on `r1`, by address and by name, and its authority, as files.
fn certificate(lab: &Lab) -> [String; 3] {
    let (authority_key, key) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let params = rcgen::CertificateParams::new(vec![NAME.0.to_owned(), NAME.1.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority, &authority_key).unwrap();
    [("cert.pem", certificate.pem()), ("key.pem", key.serialize_pem()), ("ca.pem", authority.pem())].map(
        |(name, text)| {
            let path = lab.dir().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        },
    )
}

/// A relay on `r1` that shows a certificate on port 443, and its other address for those outside.
async fn wss_relay(lab: &Lab, certificate: &[String; 3]) -> (Otela, String) {
    let [own, key, _] = certificate;
    let listen = "/ip4/0.0.0.0/tcp/7411,/ip4/0.0.0.0/tcp/443/tls/ws";
    relay(lab, "r1", TCP.1, &["--peer-listen", listen, "--tls-cert", own, "--tls-key", key]).await
}

#[tokio::test]
async fn lab_netns_where_only_port_443_gets_out_a_relay_there_serves_over_tcp() {
    let lab = Lab::new(Gateway::Only443, Gateway::Cone);
    let (_relay, bootstrap) = relay(&lab, "r1", "tcp/443", &["--peer-listen", "/ip4/0.0.0.0/tcp/443"]).await;
    let _ingress = ingress(&lab, &[], &["--bootstrap", &bootstrap]).await;
    let node = node(&lab, &[], &["--bootstrap", &bootstrap]);
    takes(&lab, "relayed", &node).await;
    let relayed = connection(&lab, "a", NODE, id(&bootstrap)).await;
    assert_eq!((&relayed["path"], &relayed["carrier"]), (&json!("direct"), &json!("tcp")), "{relayed}");
}

#[tokio::test]
async fn lab_netns_where_only_port_443_gets_out_a_relay_there_serves_over_wss() {
    let lab = Lab::new(Gateway::Only443, Gateway::Cone);
    let files = certificate(&lab);
    let (relay, outside) = wss_relay(&lab, &files).await;
    let _ingress = ingress(&lab, &[], &["--bootstrap", &outside]).await;
    let inside = outside.replace("tcp/7411", "tcp/443/wss");
    // The authority is unknown, which is said; nothing else gets out.
    let stranger = node(&lab, &[], &["--bootstrap", &inside]);
    stranger.says("signed by nobody who is trusted here (a site's own authority is given with --tls-ca)").await;
    drop(stranger);
    let authority = format!("SSL_CERT_FILE={}", files[2]);
    for (variables, flags) in [(vec![], vec!["--tls-ca", &files[2]]), (vec![authority.as_str()], vec![])] {
        let mut node = node(&lab, &variables, &[&["--bootstrap", &inside], &flags[..]].concat());
        takes(&lab, "relayed", &node).await;
        let to_relay = connection(&lab, "a", NODE, id(&outside)).await;
        assert_eq!((&to_relay["path"], &to_relay["carrier"]), (&json!("direct"), &json!("wss")), "{to_relay}");
        let opened = "otela_peer_connections_opened_total{carrier=\"wss\",through=\"nothing\"}";
        assert_eq!(metric(&lab, "a", NODE, opened).await, 1.0, "{}", relay.output());
        node.signal("-TERM");
        assert_eq!(node.ends().await, 0);
    }
}

#[tokio::test]
async fn lab_netns_p52_where_only_a_proxy_gets_out_it_leads_to_the_relay() {
    for carrier in ["tcp", "wss"] {
        let lab = Lab::new(Gateway::Closed, Gateway::Cone);
        let proxy = Proxy::start(&lab).await;
        let files = certificate(&lab);
        let (_relay, outside) = match carrier {
            "wss" => wss_relay(&lab, &files).await,
            _ => relay(&lab, "r1", "tcp/443", &["--peer-listen", "/ip4/0.0.0.0/tcp/443"]).await,
        };
        let _ingress = ingress(&lab, &[], &["--bootstrap", &outside]).await;
        // Names are the proxy's to resolve: nobody else in there could.
        let inside = match carrier {
            "wss" => format!("/dns4/{}/tcp/443/wss/p2p/{}", NAME.0, id(&outside)),
            _ => format!("/dns4/{}/tcp/443/p2p/{}", NAME.0, id(&outside)),
        };
        let node = node(&lab, &[VARIABLE], &["--bootstrap", &inside, "--tls-ca", &files[2]]);
        takes(&lab, "relayed", &node).await;
        let to_relay = connection(&lab, "a", NODE, id(&outside)).await;
        let how = (&to_relay["path"], &to_relay["carrier"], &to_relay["proxied"]);
        assert_eq!(how, (&json!("direct"), &json!(carrier), &json!(true)), "{to_relay}");
        let asked = proxy.asked();
        assert!(asked.contains(&format!("{}:443", NAME.0)), "{asked:?}");
        assert!(!asked.iter().any(|to| to.starts_with("127.") || to.starts_with('[')), "{asked:?}");
        let punched = metric(&lab, "a", NODE, "otela_peer_hole_punches_total{transport=\"tcp\",result=\"ok\"}").await;
        assert_eq!(punched, 0.0, "not through a proxy");
        // A proxy may cut what it leads to at any time.
        proxy.cut().await;
        node.says("a relay does not relay for this peer any more").await;
        takes(&lab, "relayed", &node).await;
    }
}

#[tokio::test]
async fn lab_netns_p52_a_dead_proxy_does_not_harm_what_is_reached_without() {
    // One that is not there, and one that never answers.
    for url in ["http://127.0.0.1:9", "http://10.77.0.99:3128"] {
        let variables = ["http_proxy", "https_proxy", "all_proxy"].map(|name| format!("{name}={url}"));
        let variables = variables.each_ref().map(String::as_str);
        let lab = Lab::new(Gateway::Cone, Gateway::Cone);
        let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
        let _ingress = ingress(&lab, &variables, &["--bootstrap", &bootstrap]).await;
        let node = node(&lab, &variables, &["--bootstrap", &bootstrap]);
        takes(&lab, "direct", &node).await;
        let proxied = "otela_peer_connections_opened_total{carrier=\"tcp\",through=\"proxy\"}";
        assert_eq!(metric(&lab, "a", NODE, proxied).await + metric(&lab, "p", INGRESS, proxied).await, 0.0);
    }
}

#[tokio::test]
async fn lab_netns_without_any_way_out_a_login_node_relays_though_nobody_outside_can_dial_it() {
    let lab = Lab::new(Gateway::Closed, Gateway::Cone);
    let grace = ["--grace", "1s", "--grace-far", "1s"];
    let (_first, bootstrap) = relay(&lab, "r1", TCP.1, &grace).await;
    let joins = [&["--bootstrap", &bootstrap], &grace[..]].concat();
    let (_second, _) = relay(&lab, "r2", TCP.1, &joins).await;
    let ingress = ingress(&lab, &[], &joins).await;
    // The login node is the gateway, which nobody outside can dial.
    let login = lab.otela("ga", &[&["relay", "--mesh", "test", "--http", "127.0.0.1:7500"], &joins[..]].concat());
    let relay_id = login.says("mesh=test peer=").await;
    eventually("ingress and login node are connected", async || {
        (connection(&lab, "p", INGRESS, &relay_id).await["path"] == "direct").then_some(())
    })
    .await;
    let node = node(&lab, &[], &[&["--via", "192.168.10.1:7411"], &grace[..]].concat());
    takes(&lab, "relayed", &node).await;
    assert_eq!(metric(&lab, "a", NODE, "otela_peer_reservations ").await, 1.0, "{}", ingress.output());
    assert!(metric(&lab, "ga", NODE, "otela_relay_circuits ").await >= 1.0);
    // It stays that way: nobody takes those for dead whom it cannot reach.
    let watched = Stopwatch::start();
    while watched.read() < SUSPECTED_BY_THEN {
        assert_eq!(path(&lab).await.as_deref(), Ok("relayed"), "{}\n{}", node.output(), ingress.output());
    }
    let nodes = lab.on("p", async || get(local(INGRESS), "/v1/registry/nodes").await.json()).await;
    assert_eq!(nodes["total"], 5, "{nodes}");
}

#[tokio::test]
async fn lab_netns_over_ipv6_alone() {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    for (host, byte) in [("r1", 11), ("r2", 12), ("p", 13)] {
        lab.sh(host, &format!("ip addr flush dev eth0; ip addr add fd77::{byte}/64 dev eth0 nodad"));
    }
    let listen = "/ip6/::/tcp/7411,/ip6/::/udp/7411/quic-v1";
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &["--peer-listen", listen]).await;
    let bootstrap = format!("/ip6/fd77::11/tcp/7411/p2p/{}", id(&bootstrap));
    for free in ["/ip6/::/tcp/0", "/ip6/::/udp/0/quic-v1"] {
        let peer = ["--bootstrap", &bootstrap, "--peer-listen", free];
        let mut ingress = ingress(&lab, &[], &peer).await;
        let mut node = lab.otela("r2", &[&NODE_IS[..], &peer, &ENGINE].concat());
        takes(&lab, "direct", &node).await;
        for peer in [&mut ingress, &mut node] {
            peer.signal("-TERM");
            assert_eq!(peer.ends().await, 0);
        }
    }
}

#[tokio::test]
async fn lab_netns_where_udp_is_dropped_nobody_waits_for_quic() {
    let lab = Lab::new(Gateway::OnlyTcp, Gateway::OnlyTcp);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let _ingress = ingress(&lab, &[], &["--bootstrap", &bootstrap]).await;
    // One of its addresses leads nowhere.
    let quic = bootstrap.replace(TCP.1, "udp/7411/quic-v1");
    let node = node(&lab, &[], &["--bootstrap", &quic, "--bootstrap", &bootstrap]);
    eventually("it is served", async || path(&lab).await.is_ok().then_some(())).await;
    // When both sides knock at once is chance: a second try may be needed, and clients are served meanwhile.
    takes(&lab, "direct", &node).await;
    node.says("a bootstrap does not answer").await;
    assert_eq!(path(&lab).await.as_deref(), Ok("direct"));
}
