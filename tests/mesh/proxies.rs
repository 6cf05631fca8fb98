//! Proxy variables of a cluster's environment, on one machine.

use crate::support::{Otela, eventually, get, post};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpListener;

#[tokio::test]
async fn p52_engines_probes_and_near_peers_never_see_a_proxy_and_the_engine_keeps_its_environment() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", proxy.local_addr().unwrap());
    let names = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let variables = names.map(|name| format!("{name}={url}"));
    let otela = |arguments: &[&str]| {
        let peer = ["--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0"];
        let variables = variables.iter().map(String::as_str);
        let first = variables.chain([env!("CARGO_BIN_EXE_otela"), arguments[0]]);
        Otela::run_program("env", first.chain(peer).chain(arguments[1..].iter().copied()))
    };
    let ingress = otela(&["ingress", "--listen", "127.0.0.1:0"]);
    let base = ingress.says("OpenAI base URL: http://").await;
    let http: SocketAddr = base.trim_end_matches("/v1").parse().unwrap();
    let bootstrap = eventually("the ingress' own address", async || {
        let answer = get(http, "/v1/dnt/bootstraps").await.json();
        Some(answer["bootstraps"][0].as_str()?.to_owned())
    })
    .await;
    let script = "echo engine-sees=$https_proxy; exec \"$0\" engine m --port 0";
    let node =
        otela(&["start", "--bootstrap", &bootstrap, "--process", "sh", "-c", script, env!("CARGO_BIN_EXE_otela")]);
    assert_eq!(node.says("engine-sees=").await, url);
    eventually(&format!("an answer\n{}", node.output()), async || {
        let answer = post(http, "/v1/completions", &json!({"model": "m", "prompt": "x", "max_tokens": 1})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    // Somebody who is gone is dialled again and again, and not through the proxy either.
    drop(ingress);
    node.says("a bootstrap does not answer").await;
    otela_testing::stays_pending("the proxy is asked nothing", Duration::from_millis(200), proxy.accept()).await;
}

#[tokio::test]
async fn p52_a_proxy_that_cannot_be_used_is_said_and_no_more() {
    for (variable, line) in [
        ("https_proxy=socks5://127.0.0.1:9", "otela speaks to http:// proxies only, and this is socks5://"),
        ("ALL_PROXY=http://", "not the URL of a proxy"),
    ] {
        let ingress = ["ingress", "--mesh", "test", "--listen", "127.0.0.1:0", "--peer-listen", "/ip4/127.0.0.1/tcp/0"];
        let ingress = Otela::run_program("env", [&[variable, env!("CARGO_BIN_EXE_otela")], &ingress[..]].concat());
        ingress.says("OpenAI base URL: http://").await;
        let name = variable.split('=').next().unwrap();
        let said = ingress.writes(&format!("the proxy in {name} is not used"), 1).await;
        assert!(said.contains(line), "{said}");
    }
}

#[tokio::test]
async fn a_listener_with_tls_needs_a_certificate() {
    let listen = ["relay", "--peer-listen", "/ip4/127.0.0.1/tcp/0/tls/ws"];
    let mut relay = Otela::run(listen);
    assert_eq!(relay.ends().await, 78);
    assert!(relay.output().contains("give a certificate with --tls-cert and --tls-key"), "{}", relay.output());
    let gone = ["--tls-cert", "/does/not/exist", "--tls-key", "/does/not/exist"];
    let mut relay = Otela::run([&listen[..], &gone].concat());
    assert_eq!(relay.ends().await, 78);
    assert!(relay.output().contains("cannot use /does/not/exist of --tls-cert"), "{}", relay.output());
}
