//! Peers behind NATs, in namespaces: relayed at first, direct where the NATs allow it.

mod addresses;
mod doctor;
mod door;
mod egress;
mod lab;
mod long;
mod probe;
mod proxy;

use crate::support::{
    EVENT, Otela, ScriptedLog, eventually, finishes, get, in_halves, post, post_bytes, raw, read_to_end, sum_metric,
    try_post,
};
use futures::future::join_all;
use lab::{Gateway, Lab};
use otela_testing::lazily;
use serde_json::{Value, json};
use std::{cell::Cell, net::SocketAddr, time::Duration};

const TCP: (&str, &str) = ("/ip4/0.0.0.0/tcp/0", "tcp/7411");
const QUIC: (&str, &str) = ("/ip4/0.0.0.0/udp/0/quic-v1", "udp/7411/quic-v1");

/// Where the registry of each peer is read on its host, and where an ingress listens.
const NODE: u16 = 7500;
const INGRESS: u16 = 8080;

/// A relay on a public host, and the address at which others join through it.
async fn relay(lab: &Lab, host: &str, carrier: &str, flags: &[&str]) -> (Otela, String) {
    let arguments = ["relay", "--mesh", "test", "--http", "127.0.0.1:7500"];
    let relay = lab.otela(host, &[&arguments, flags].concat());
    let id = relay.says("mesh=test peer=").await;
    relay.says("others join with --bootstrap ").await;
    (relay, format!("/ip4/{}/{carrier}/p2p/{id}", lab::address(host)))
}

/// A provider in site `a`.
fn node(lab: &Lab, bootstrap: &str, listen: &str, flags: &[&str]) -> Otela {
    let peer =
        ["start", "--mesh", "test", "--bootstrap", bootstrap, "--peer-listen", listen, "--http", "127.0.0.1:7500"];
    let engine = ["--process", env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
    lab.otela("a", &[&peer[..], &engine, flags].concat())
}

/// A provider in site `a` with a scripted engine, and what that has seen.
fn scripted(lab: &Lab, bootstrap: &str) -> (Otela, ScriptedLog) {
    let (flags, log) =
        (["--mesh", "test", "--bootstrap", bootstrap, "--http", "127.0.0.1:7500"], lab.dir().join("log"));
    let engine = ["--process", "python3", ScriptedLog::ENGINE, log.to_str().unwrap(), "m"];
    (lab.otela("a", &[&["start", "--peer-listen", TCP.0], &flags[..], &engine].concat()), ScriptedLog::at(log))
}

/// An ingress in site `b`.
async fn ingress(lab: &Lab, bootstrap: &str, listen: &str) -> Otela {
    let peer =
        ["ingress", "--mesh", "test", "--bootstrap", bootstrap, "--peer-listen", listen, "--listen", "127.0.0.1:8080"];
    let ingress = lab.otela("b", &peer);
    ingress.says("OpenAI base URL: http://").await;
    ingress
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn completion(tokens: u32) -> Value {
    json!({"model": "m", "prompt": "hello", "max_tokens": tokens})
}

/// Sends one request in site `b`; the path that its answer took, or what went wrong.
async fn path(lab: &Lab) -> Result<String, String> {
    lab.on("b", async || {
        let answer = try_post(local(INGRESS), "/v1/completions", &completion(1)).await?;
        match answer.status {
            200 => Ok(answer.header("x-otela-path").to_owned()),
            status => Err(format!("{status} {:?}", answer.body)),
        }
    })
    .await
}

/// Waits until requests take this path.
async fn takes(lab: &Lab, wanted: &str) {
    let last = Cell::new(Ok(String::new()));
    let what = lazily(|| format!("a {wanted} path, and not {:?}", last.replace(Ok(String::new()))));
    eventually(what, async || {
        let path = path(lab).await;
        let taken = path.as_deref() == Ok(wanted);
        last.set(path);
        taken.then_some(())
    })
    .await;
}

/// A metric of a peer: the sum over the labels that begin like this.
async fn metric(lab: &Lab, host: &str, port: u16, name: &'static str) -> f64 {
    let page = lab.on(host, async move || get(local(port), "/metrics").await.body).await;
    sum_metric(std::str::from_utf8(&page).unwrap(), name)
}

#[tokio::test]
async fn lab_netns_p47_endpoint_independent_nats_get_a_direct_way() {
    for (listen, carrier) in [TCP, QUIC] {
        let lab = Lab::new(Gateway::Cone, Gateway::Cone);
        let (_relay, bootstrap) = relay(&lab, "r1", carrier, &[]).await;
        let _node = node(&lab, &bootstrap, listen, &[]);
        let _ingress = ingress(&lab, &bootstrap, listen).await;
        eventually("an answer", async || path(&lab).await.ok()).await;
        takes(&lab, "direct").await;
        let name = if carrier == TCP.1 {
            "otela_peer_hole_punches_total{transport=\"tcp\",result=\"ok\"}"
        } else {
            "otela_peer_hole_punches_total{transport=\"quic\",result=\"ok\"}"
        };
        // By whoever got through: to the other it may be a connection like any that comes in.
        eventually("it is counted", async || {
            let counted = metric(&lab, "a", NODE, name).await + metric(&lab, "b", INGRESS, name).await;
            (counted >= 1.0).then_some(())
        })
        .await;
        // To the relay and to each other: the one through the relay is closed.
        eventually("the relayed connection is closed", async || {
            (metric(&lab, "r1", NODE, "otela_relay_circuits ").await == 0.0).then_some(())
        })
        .await;
        assert_eq!(path(&lab).await.as_deref(), Ok("direct"));
        assert_eq!(metric(&lab, "r1", NODE, "otela_relay_reservations ").await, 2.0);
    }
}

#[tokio::test]
async fn lab_netns_p47_symmetric_nats_stay_relayed_without_a_gap() {
    for (listen, carrier) in [TCP, QUIC] {
        let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
        let (_relay, bootstrap) = relay(&lab, "r1", carrier, &[]).await;
        let _node = node(&lab, &bootstrap, listen, &[]);
        let _ingress = ingress(&lab, &bootstrap, listen).await;
        eventually("an answer", async || path(&lab).await.ok()).await;
        // Whatever is tried meanwhile, nothing is lost.
        let failed = "otela_peer_hole_punches_total";
        let mut requests = 0;
        let tried = async {
            while requests < 50
                || metric(&lab, "a", NODE, failed).await + metric(&lab, "b", INGRESS, failed).await < 2.0
            {
                assert_eq!(path(&lab).await.as_deref(), Ok("relayed"), "request {requests} with {carrier}");
                requests += 1;
            }
        };
        finishes("tries at a hole punch are counted", tried).await;
    }
}

#[tokio::test]
async fn lab_netns_p44_large_bodies_and_many_streams_through_a_relay_are_whole() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let _node = node(&lab, &bootstrap, TCP.0, &["--itl", "20ms"]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    let answer = lab
        .on("b", async || {
            let body = json!({"model": "m", "prompt": "x", "image": "A".repeat(8 << 20), "max_tokens": 1});
            post(local(INGRESS), "/v1/completions", &body).await
        })
        .await;
    assert_eq!((answer.status, answer.header("x-otela-path")), (200, "relayed"));
    for way in ["otela_relay_received_bytes_total", "otela_relay_sent_bytes_total"] {
        assert!(metric(&lab, "r1", NODE, way).await >= f64::from(8 << 20), "the relay counts what it carries");
    }
    let streams = lab
        .on("b", async || {
            let body = json!({"model": "m", "prompt": "x", "max_tokens": 100, "stream": true, "ignore_eos": true});
            join_all((0..200).map(|_| post(local(INGRESS), "/v1/completions", &body))).await
        })
        .await;
    for answer in &streams {
        let text = std::str::from_utf8(&answer.body).unwrap();
        assert_eq!((answer.status, answer.header("x-otela-path")), (200, "relayed"), "{text}");
        assert!(text.ends_with("data: [DONE]\n\n") && text.matches("\"text\"").count() >= 100, "{text}");
    }
    // The two sides may have dialled each other at once.
    let circuits = metric(&lab, "r1", NODE, "otela_relay_circuits ").await;
    assert!((1.0..=2.0).contains(&circuits), "all over one connection: {circuits}");
}

/// Sends requests one after the other until `done`, and fifty at least; what went wrong with any of them.
async fn requests_until(lab: &Lab, mut done: impl AsyncFnMut() -> bool) -> Vec<String> {
    let (mut failed, mut sent) = (Vec::new(), 0);
    let sending = async {
        while sent < 50 || !done().await {
            failed.extend(path(lab).await.err());
            sent += 1;
        }
    };
    finishes("requests are sent until something has happened", sending).await;
    failed
}

#[tokio::test]
async fn lab_netns_p46_a_relay_that_is_killed_costs_no_request_and_is_used_again_when_it_is_back() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let key = lab.dir().join("r1");
    let flags = ["--key", key.to_str().unwrap()];
    let (mut first, bootstrap) = relay(&lab, "r1", TCP.1, &flags).await;
    let (_second, _) = relay(&lab, "r2", TCP.1, &["--bootstrap", &bootstrap]).await;
    let node = node(&lab, &bootstrap, TCP.0, &["--itl", "20ms"]);
    let ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    let reserved = async || metric(&lab, "a", NODE, "otela_peer_reservations ").await;
    eventually(&format!("two reservations\n{}", node.output()), async || (reserved().await == 2.0).then_some(())).await;
    // Many are under way on it, which no budget for second tries may bound.
    let under_way = lab.on("b", async || {
        let slow = json!({"model": "m", "prompt": "x", "max_tokens": 400, "ignore_eos": true});
        join_all((0..100).map(|_| try_post(local(INGRESS), "/v1/completions", &slow))).await
    });
    let kill = async {
        let running = async || metric(&lab, "b", INGRESS, "otela_ingress_in_flight ").await;
        eventually("all are under way", async || (running().await == 100.0).then_some(())).await;
        first.signal("-KILL");
        first.ends().await;
    };
    let (answers, ()) = tokio::join!(under_way, kill);
    let lost: Vec<_> = answers.iter().filter(|answer| !answer.as_ref().is_ok_and(|a| a.status == 200)).collect();
    assert!(lost.is_empty(), "{} {:?}", lost.len(), lost[0]);
    let failed = requests_until(&lab, async || reserved().await == 1.0).await;
    assert!(failed.is_empty(), "{failed:?}\n{}\n{}", node.output(), ingress.output());
    let _first = relay(&lab, "r1", TCP.1, &flags).await;
    let failed = requests_until(&lab, async || reserved().await == 2.0).await;
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test]
async fn lab_netns_p46_a_relay_that_is_down_at_the_start_is_found_when_it_comes() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let key = lab.dir().join("r1");
    let flags = ["--key", key.to_str().unwrap()];
    let (mut first, bootstrap) = relay(&lab, "r1", TCP.1, &flags).await;
    first.signal("-KILL");
    first.ends().await;
    let node = node(&lab, &bootstrap, TCP.0, &[]);
    node.says("engine started").await;
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    node.says("a bootstrap does not answer").await;
    let _first = relay(&lab, "r1", TCP.1, &flags).await;
    takes(&lab, "relayed").await;
}

#[tokio::test]
async fn lab_netns_p46_a_node_whose_address_changes_is_reached_again() {
    let lab = Lab::new(Gateway::Cone, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let node = node(&lab, &bootstrap, TCP.0, &[]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    eventually("an answer", async || path(&lab).await.ok()).await;
    lab.sh("a", "ip addr del 192.168.10.2/24 dev eth0; ip addr add 192.168.10.77/24 dev eth0; ip route add default via 192.168.10.1");
    node.says("closing a connection from an address that is gone").await;
    eventually("an answer from the new address", async || path(&lab).await.ok()).await;
}

#[tokio::test]
async fn lab_netns_p44_a_circuit_cut_at_a_limit_says_so_and_the_next_request_has_a_fresh_one() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    // What libp2p's relays allow by default.
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &["--circuit-bytes-max", "131072"]).await;
    let _node = node(&lab, &bootstrap, TCP.0, &["--itl", "2ms"]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    let cut = async || metric(&lab, "r1", NODE, "otela_relay_circuits_cut_total").await;
    let of = |tokens| json!({"model": "m", "prompt": "x", "max_tokens": tokens, "stream": true, "ignore_eos": true});
    // More than one circuit carries: knowing the limit does not help.
    let body = of(2_000);
    let (text, clean) = lab
        .on("b", async move || {
            let mut client = raw(local(INGRESS), &post_bytes("/v1/completions", &body)).await;
            read_to_end(&mut client).await
        })
        .await;
    let said = text.rsplit("\n\n").find(|event| event.contains("error")).unwrap_or(&text);
    assert!(!clean || !text.contains("[DONE]"), "{said}");
    assert!(said.contains("stream_broken") && said.contains("came through a relay"), "{said}");
    eventually("the relay has counted it", async || (cut().await >= 1.0).then_some(())).await;
    // The next one has a fresh circuit.
    takes(&lab, "relayed").await;
    // Together more than three carry: each takes a fresh one in time.
    let before = cut().await;
    for n in 0..16 {
        let body = of(100);
        let answer = lab.on("b", async move || try_post(local(INGRESS), "/v1/completions", &body).await).await;
        let text = answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        assert!(text.as_ref().is_ok_and(|text| text.ends_with("data: [DONE]\n\n")), "stream {n}: {text:?}");
    }
    assert_eq!(cut().await, before, "none of them was cut");
}

#[tokio::test]
async fn lab_netns_p44_circuits_that_last_a_moment_serve_without_a_gap() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &["--circuit-for-max", "12s"]).await;
    let _node = node(&lab, &bootstrap, TCP.0, &[]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    // Whether an old circuit is cut or is given up just before is chance; that others have taken its place is not.
    let circuits = "otela_peer_connections_opened_total{carrier=\"tcp\",through=\"relay\"}";
    let made = async || metric(&lab, "b", INGRESS, circuits).await;
    let failed = requests_until(&lab, async || made().await >= 3.0).await;
    assert!(failed.is_empty(), "{failed:?}");
}

#[tokio::test]
async fn lab_netns_p46_a_node_that_slept_is_back_though_its_gateway_has_forgotten_it() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let node = node(&lab, &bootstrap, TCP.0, &[]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    node.signal("-STOP");
    // Translations go with the address.
    lab.sh("ga", "ip addr del 10.77.0.101/24 dev eth0; ip addr add 10.77.0.101/24 dev eth0");
    eventually("it is gone", async || path(&lab).await.is_err().then_some(())).await;
    eventually("it is evicted", async || {
        let nodes = lab.on("b", async || get(local(INGRESS), "/v1/registry/nodes").await.json()).await;
        (nodes["total"] == 2).then_some(())
    })
    .await;
    node.signal("-CONT");
    takes(&lab, "relayed").await;
}

#[tokio::test]
async fn lab_netns_a_member_that_wakes_and_dials_its_relay_twice_keeps_what_runs_through_it() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_first, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let (_second, _) = relay(&lab, "r2", TCP.1, &["--bootstrap", &bootstrap]).await;
    let _node = node(&lab, &bootstrap, TCP.0, &["--itl", "100ms"]);
    let ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    ingress.signal("-STOP");
    tokio::time::sleep(Duration::from_secs(12)).await;
    ingress.signal("-CONT");
    eventually("an answer", async || path(&lab).await.ok()).await;
    // Longer than it takes until one of two connections is closed.
    let answers = lab
        .on("b", async || {
            let body = json!({"model": "m", "prompt": "x", "max_tokens": 400, "stream": true, "ignore_eos": true});
            join_all((0..5).map(|_| try_post(local(INGRESS), "/v1/completions", &body))).await
        })
        .await;
    for answer in answers {
        let text = answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
        assert!(text.as_ref().is_ok_and(|text| text.ends_with("data: [DONE]\n\n")), "{}\n{text:?}", ingress.output());
    }
}

#[tokio::test]
async fn lab_netns_one_host_that_connects_and_says_nothing_does_not_keep_others_out() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let _node = node(&lab, &bootstrap, TCP.0, &[]);
    // Each that the relay closes is opened again, until the ingress has joined.
    let (done, ended) = tokio::sync::oneshot::channel::<()>();
    let flood = lab.on("p", async || {
        let relay = SocketAddr::from(([10, 77, 0, 11], 7411));
        let silent = async || {
            loop {
                if let Ok(mut tcp) = tokio::net::TcpStream::connect(relay).await {
                    let _ = tokio::io::AsyncReadExt::read(&mut tcp, &mut [0; 64]).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let all = join_all((0..600).map(|_| silent()));
        tokio::select! {
            _ = all => {}
            _ = ended => {}
        }
    });
    let joins = async {
        let denied = async || metric(&lab, "r1", NODE, "otela_peer_connections_denied_total").await;
        eventually("some are denied", async || (denied().await > 0.0).then_some(())).await;
        let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
        takes(&lab, "relayed").await;
        done.send(()).expect("the flood goes on");
    };
    tokio::join!(flood, joins);
}

#[tokio::test]
async fn lab_netns_p45_a_node_is_ready_once_somebody_could_reach_it() {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    // It has no place.
    let (_full, bootstrap) = relay(&lab, "r1", TCP.1, &["--reservations-max", "0"]).await;
    let node = node(&lab, &bootstrap, TCP.0, &[]);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    node.says("a relay does not relay for this peer").await;
    node.says("nobody can reach this node yet").await;
    let models = || lab.on("b", async || get(local(INGRESS), "/v1/registry/models").await.json());
    let model = models().await["models"][0].clone();
    assert_eq!((&model["id"], &model["ready"]), (&json!("m"), &json!(0)), "{model}");
    let (_second, _) = relay(&lab, "r2", TCP.1, &["--bootstrap", &bootstrap]).await;
    takes(&lab, "relayed").await;
}

#[tokio::test]
async fn lab_netns_p47_a_stream_over_a_relay_goes_on_when_a_direct_way_appears() {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    // Nothing passes between the two gateways at first.
    lab.sh("net", "nft add table bridge cut; nft add chain bridge cut f \"{ type filter hook forward priority 0; }\"");
    lab.sh("net", "nft add rule bridge cut f ip saddr 10.77.0.101 ip daddr 10.77.0.102 drop");
    let (_relay, bootstrap) = relay(&lab, "r1", TCP.1, &[]).await;
    let (_node, log) = scripted(&lab, &bootstrap);
    let _ingress = ingress(&lab, &bootstrap, TCP.0).await;
    takes(&lab, "relayed").await;
    // It begins on the relayed way, and its second half is sent when others have found the direct one.
    let body = json!({"model": "m", "prompt": "x", "stream": true, "script": in_halves("direct")});
    let stream = lab.on("b", async move || post(local(INGRESS), "/v1/completions", &body).await);
    let (answer, ()) = tokio::join!(stream, async {
        log.nth("request", 1).await;
        lab.sh("net", "nft flush chain bridge cut f");
        takes(&lab, "direct").await;
        log.allow("direct");
    });
    let text = std::str::from_utf8(&answer.body).unwrap();
    assert_eq!((answer.status, answer.header("x-otela-path")), (200, "relayed"), "{text}");
    assert_eq!(text.replace(":\n\n", ""), format!("{EVENT}{EVENT}data: [DONE]\n\n"));
    eventually("the relayed connection is closed", async || {
        (metric(&lab, "r1", NODE, "otela_relay_circuits ").await == 0.0).then_some(())
    })
    .await;
}
