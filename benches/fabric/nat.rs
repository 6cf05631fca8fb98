//! How soon and how surely peers behind NATs are reached: `otela` itself, in network namespaces.

use crate::{
    lab::{self, Gateway, Lab},
    quantile,
    report::Row,
    support::{Otela, get, sum_metric, try_post},
};
use futures::future::join_all;
use serde_json::json;
use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

/// Reach from the start of a node behind a NAT to its first answer through an ingress.
const ROUTABLE_S: f64 = 3.0;
/// Reach from the first contact to a direct path, which counts if it comes in time...
const DIRECT_S: f64 = 5.0;
/// ...so often, in percent.
const DIRECT_SHARE: f64 = 95.0;
/// Reach from the return of a relay to the reservation on it.
const RESERVED_S: f64 = 60.0;
/// Nothing takes longer, or it does not come at all.
const GIVE_UP: Duration = Duration::from_secs(60);

/// Why namespaces cannot be made here.
pub(crate) fn missing() -> Option<String> {
    let works = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let can = works("ip", &["netns", "list"]) && works("nft", &["--version"]) && works("unshare", &["--net", "true"]);
    (!can).then(|| "network namespaces need root, iproute2 and nftables".to_owned())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn relay(lab: &Lab, host: &str, key: &str, flags: &[&str]) -> (Otela, String) {
    let key = lab.dir().join(key);
    let peer = ["relay", "--mesh", "test", "--http", "127.0.0.1:7500", "--key", key.to_str().unwrap()];
    let relay = lab.otela(host, &[&peer[..], flags].concat());
    let id = relay.says("mesh=test peer=").await;
    relay.says("others join with --bootstrap ").await;
    (relay, format!("/ip4/{}/tcp/7411/p2p/{id}", lab::address(host)))
}

fn node(lab: &Lab, bootstrap: &str) -> Otela {
    let peer = ["start", "--mesh", "test", "--bootstrap", bootstrap, "--http", "127.0.0.1:7500", "--process"];
    let engine = [env!("CARGO_BIN_EXE_otela"), "engine", "m", "--port", "0"];
    lab.otela("a", &[&peer[..], &engine].concat())
}

async fn ingress(lab: &Lab, bootstrap: &str) -> Otela {
    let peer = ["ingress", "--mesh", "test", "--bootstrap", bootstrap, "--listen", "127.0.0.1:8080"];
    let ingress = lab.otela("b", &peer);
    ingress.says("OpenAI base URL: http://").await;
    ingress
}

/// Sends one request in site `b`; the path of its answer.
async fn path(lab: &Lab) -> Option<String> {
    lab.on("b", async || {
        let body = json!({"model": "m", "prompt": "x", "max_tokens": 1});
        let answer = try_post(local(8080), "/v1/completions", &body).await.ok()?;
        (answer.status == 200).then(|| answer.header("x-otela-path").to_owned())
    })
    .await
}

/// Seconds until `holds`, if it ever does.
async fn until(mut holds: impl AsyncFnMut() -> bool) -> Option<f64> {
    let began = Instant::now();
    while !holds().await {
        if began.elapsed() > GIVE_UP {
            return None;
        }
    }
    Some(began.elapsed().as_secs_f64())
}

pub(crate) async fn rows(quick: bool) -> Vec<Row> {
    let mut rows = joins(if quick { 2 } else { 10 }).await;
    rows.extend(directs(if quick { 3 } else { 40 }).await);
    rows.extend(relay_killed().await);
    rows
}

/// A node that starts behind a NAT that lets nobody through.
async fn joins(tries: usize) -> Vec<Row> {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (_relay, bootstrap) = relay(&lab, "r1", "r1", &[]).await;
    let _ingress = ingress(&lab, &bootstrap).await;
    let mut took = Vec::new();
    for _ in 0..tries {
        let mut node = node(&lab, &bootstrap);
        match until(async || path(&lab).await.is_some()).await {
            Some(seconds) => took.push(seconds),
            None => return vec![Row::unmeasured("a node behind a NAT", "it was not reached within a minute")],
        }
        node.signal("-TERM");
        node.ends().await;
        until(async || path(&lab).await.is_none()).await;
    }
    took.sort_by(f64::total_cmp);
    let row = |what: &str, q| Row::new(what, quantile(&took, q), "s").samples(took.len());
    vec![
        row("start behind a NAT to first answer, its engine included, median", 0.5),
        row("start behind a NAT to first answer, its engine included, worst", 1.0).reach(ROUTABLE_S),
    ]
}

/// Nodes behind NATs that map endpoint-independently.
async fn directs(tries: usize) -> Vec<Row> {
    let lab = Lab::new(Gateway::Cone, Gateway::Cone);
    let (_relay, bootstrap) = relay(&lab, "r1", "r1", &[]).await;
    let _ingress = ingress(&lab, &bootstrap).await;
    let mut took = Vec::new();
    for _ in 0..tries {
        let mut node = node(&lab, &bootstrap);
        until(async || path(&lab).await.is_some()).await;
        took.push(until(async || path(&lab).await.as_deref() == Some("direct")).await.unwrap_or(f64::INFINITY));
        node.signal("-TERM");
        node.ends().await;
        until(async || path(&lab).await.is_none()).await;
    }
    took.sort_by(f64::total_cmp);
    let in_time = took.iter().filter(|seconds| **seconds <= DIRECT_S).count();
    let share = in_time as f64 / took.len() as f64 * 100.0;
    vec![
        Row::new("first answer to direct path, median", quantile(&took, 0.5), "s").samples(took.len()),
        Row::new("direct path within 5 s of the first answer", share, "%").samples(took.len()).at_least(DIRECT_SHARE),
    ]
}

/// Requests go on while one of two relays is killed, and while it comes back.
async fn relay_killed() -> Vec<Row> {
    let lab = Lab::new(Gateway::Symmetric, Gateway::Symmetric);
    let (mut first, bootstrap) = relay(&lab, "r1", "r1", &[]).await;
    let (_second, _) = relay(&lab, "r2", "r2", &["--bootstrap", &bootstrap]).await;
    let _node = node(&lab, &bootstrap);
    let _ingress = ingress(&lab, &bootstrap).await;
    let reserved = async |n: f64| {
        let page = lab.on("a", async || get(local(7500), "/metrics").await.body).await;
        sum_metric(std::str::from_utf8(&page).unwrap(), "otela_peer_reservations ") == n
    };
    until(async || reserved(2.0).await && path(&lab).await.is_some()).await;
    let killed = Instant::now();
    first.signal("-KILL");
    first.ends().await;
    let (mut sent, mut lost) = (0, 0);
    while killed.elapsed() < Duration::from_secs(5) {
        let answers = join_all((0..4).map(|_| path(&lab))).await;
        sent += answers.len();
        lost += answers.iter().filter(|answer| answer.is_none()).count();
    }
    let _first = relay(&lab, "r1", "r1", &[]).await;
    let back = until(async || reserved(2.0).await).await;
    vec![
        Row::new("requests lost when a relay is killed and a second one is there", f64::from(lost as u32), "")
            .samples(sent)
            .reach(0.0),
        match back {
            Some(seconds) => Row::new("return of the relay to the reservation on it", seconds, "s").reach(RESERVED_S),
            None => Row::unmeasured("return of the relay to the reservation on it", "none within a minute"),
        },
    ]
}
