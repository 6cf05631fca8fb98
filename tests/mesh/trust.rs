//! Whom a request trusts: nothing is ever dispatched outside of that, whatever fails.

use crate::support::{Answer, Mesh, eventually, get, post, send};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use std::process::Command;
use tempfile::TempDir;

/// Two providers' keys and ids.
struct Providers {
    dir: TempDir,
    ids: [String; 2],
}

impl Providers {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ids = [0, 1].map(|n| {
            let path = dir.path().join(format!("{n}.key"));
            let output = Command::new(env!("CARGO_BIN_EXE_otela")).arg("key").arg(path).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        });
        Self { dir, ids }
    }

    fn key(&self, n: usize) -> String {
        self.dir.path().join(format!("{n}.key")).to_str().unwrap().to_owned()
    }

    /// Adds a node of the provider.
    async fn add(&self, mesh: &mut Mesh, n: usize, engine: &[&str]) {
        mesh.start(&["--provider-key", &self.key(n)], "m", engine).await;
        eventually("it is proven", async || {
            let nodes = get(mesh.http, &format!("/v1/registry/nodes?provider={}", self.ids[n])).await.json();
            (nodes["total"].as_u64()? >= 1).then_some(())
        })
        .await;
    }
}

fn chat(metadata: &Value) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "metadata": metadata})
}

async fn ask(mesh: &Mesh, trusted: &[&str], body: &Value) -> Result<Answer, String> {
    let mut request =
        http::Request::post("/v1/chat/completions").header("host", "t").header("content-type", "application/json");
    for ids in trusted {
        request = request.header("x-otela-trusted-providers", *ids);
    }
    send(mesh.http, request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

fn code(answer: &Answer) -> (u16, String) {
    (answer.status, answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Which provider's node has answered.
async fn provider_of(mesh: &Mesh, answer: &Answer) -> String {
    let node = get(mesh.http, &format!("/v1/registry/nodes/{}", answer.header("x-otela-node"))).await.json();
    node["provider"]["id"].as_str().unwrap_or("nobody").to_owned()
}

#[tokio::test]
async fn only_trusted_providers_are_asked_by_header_and_by_body() {
    let (providers, mut mesh) = (Providers::new(), Mesh::ingress(&[]).await);
    let [a, b] = &providers.ids;
    mesh.simulated("m", &[]).await;
    let none = ask(&mesh, &[a], &chat(&json!({}))).await.unwrap();
    assert_eq!(code(&none), (403, "no_trusted_provider".into()), "one that proves nothing is trusted by nobody");
    providers.add(&mut mesh, 0, &[]).await;
    providers.add(&mut mesh, 1, &[]).await;
    for _ in 0..8 {
        let by_header = ask(&mesh, &[a], &chat(&json!({}))).await.unwrap();
        assert_eq!((by_header.status, provider_of(&mesh, &by_header).await), (200, a.clone()));
        let by_body = ask(&mesh, &[], &chat(&json!({"otela_trusted_providers": [b]}))).await.unwrap();
        assert_eq!((by_body.status, provider_of(&mesh, &by_body).await), (200, b.clone()));
        let both = format!("{a}, {b}");
        let narrowed = ask(&mesh, &[&both], &chat(&json!({"otela_trusted_providers": a}))).await.unwrap();
        assert_eq!(provider_of(&mesh, &narrowed).await, *a);
    }
    for (headers, body) in [
        (vec![""], json!({})),
        (vec!["eth"], json!({})),
        (vec![a.as_str()], json!({"otela_trusted_providers": b})),
        (vec![], json!({"otela_trusted_providers": []})),
        (vec![], json!({"otela_trusted_providers": "eth"})),
    ] {
        let wrong = ask(&mesh, &headers, &chat(&body)).await.unwrap();
        assert_eq!(code(&wrong), (400, "invalid_trust".into()), "{headers:?} {body}");
    }
    // A node by its name is under the filter too.
    let stranger = mesh.listed().await.iter().find(|node| node["provider"].is_null()).unwrap()["id"].clone();
    let path = format!("/v1/p2p/{}/v1/chat/completions", stranger.as_str().unwrap());
    let request = http::Request::post(path).header("host", "t").header("x-otela-trusted-providers", a);
    let answer = send(mesh.http, request.body(Full::new(Bytes::from(chat(&json!({})).to_string()))).unwrap()).await;
    assert_eq!(code(&answer.unwrap()), (403, "no_trusted_provider".into()));
}

#[tokio::test]
async fn nothing_leaves_the_trusted_when_they_fail() {
    let flags = ["--hedge-after", "100ms", "--policy", "round-robin"];
    let (providers, mut mesh) = (Providers::new(), Mesh::ingress(&flags).await);
    let [a, b] = &providers.ids;
    // All of the trusted one's break their streams; the other's are well.
    providers.add(&mut mesh, 0, &["--itl", "5ms", "--ttft", "300ms", "--allow-faults"]).await;
    providers.add(&mut mesh, 1, &["--itl", "5ms"]).await;
    mesh.simulated("m", &["--itl", "5ms"]).await;
    let others = async || -> f64 {
        let nodes = mesh.listed().await;
        let mut sum = 0.0;
        for node in nodes.iter().filter(|node| node["provider"]["id"] != a.as_str()) {
            let mut body = chat(&json!({}));
            body["max_tokens"] = 1.into();
            let path = format!("/v1/p2p/{}/v1/chat/completions", node["id"].as_str().unwrap());
            sum += f64::from(post(mesh.http, &path, &body).await.status == 200);
        }
        sum
    };
    assert_eq!(others().await, 2.0, "they are well");
    let before = mesh.metric("otela_ingress_hedges_total").await;
    for fault in
        [json!({"cut_after": 0}), json!({"fail": 503}), json!({"reset_after": 0}), json!({"error_event": true})]
    {
        for stream in [false, true] {
            let mut body = chat(&json!({"otela_trusted_providers": a}));
            (body["otela_sim"], body["stream"]) = (fault.clone(), stream.into());
            let answer = ask(&mesh, &[], &body).await;
            let failed = answer.as_ref().is_err()
                || answer.as_ref().is_ok_and(|a| a.status >= 500 || a.body.windows(7).any(|w| w == b"\"error\""));
            assert!(failed, "{fault}, {stream}: {answer:?}");
            let from = answer.as_ref().map(|answer| answer.header("x-otela-node").to_owned()).unwrap_or_default();
            if !from.is_empty() {
                assert_eq!(provider_of(&mesh, answer.as_ref().unwrap()).await, *a, "{fault}");
            }
        }
    }
    assert_eq!(mesh.metric("otela_ingress_hedges_total").await, before, "there was nobody to race");
    // The trusted node is killed within a stream: it is not continued by those who are not trusted.
    let mut body = chat(&json!({"otela_trusted_providers": a}));
    (body["stream"], body["max_tokens"]) = (true.into(), 4_000.into());
    let killed = async {
        eventually("it runs", async || (mesh.metric("otela_ingress_in_flight").await == 1.0).then_some(())).await;
        mesh.nodes[0].signal("-KILL");
    };
    let (answer, ()) = tokio::join!(ask(&mesh, &[], &body), killed);
    assert!(answer.is_err() || answer.as_ref().is_ok_and(|answer| answer.status >= 500), "{answer:?}");
    let gone = ask(&mesh, &[a], &chat(&json!({}))).await.unwrap();
    assert!(gone.status == 403 || gone.status == 503, "{gone:?}");
    assert_eq!(ask(&mesh, &[b], &chat(&json!({}))).await.unwrap().status, 200);
}
