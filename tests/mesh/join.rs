//! Ways into a mesh that need the web: lists, with the environment's proxy and with TLS.

use crate::support::{Mesh, Otela, eventually, finishes, get};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer},
};

const OTELA: &str = env!("CARGO_BIN_EXE_otela");

/// A node with one bootstrap, in an environment of its own.
fn node(bootstrap: &str, environment: &[String]) -> Otela {
    let join = ["start", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0", "--http", "127.0.0.1:0"];
    let flags = join.into_iter().chain(["--bootstrap", bootstrap]);
    // Whatever this machine's environment says of proxies is not meant here.
    let clean = ["-u", "no_proxy", "-u", "NO_PROXY", "-u", "all_proxy", "-u", "ALL_PROXY"];
    let environment = environment.iter().map(String::as_str);
    Otela::run_program("env", clean.into_iter().chain(environment).chain([OTELA]).chain(flags))
}

async fn joins(mesh: &Mesh, node: &Otela) {
    eventually(&format!("the node joins: {}", node.output()), async || (mesh.listed().await.len() == 1).then_some(()))
        .await;
}

/// Reads one request and answers with `body`; what was asked for.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, body: &str) -> std::io::Result<String> {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        asked.push(stream.read_u8().await?);
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await?;
    Ok(String::from_utf8_lossy(&asked).into_owned())
}

/// The first request that a server gets, which answers it with `body`, over TLS if it has any.
#[expect(clippy::disallowed_methods, reason = "it ends with the request")]
async fn server(tls: Option<TlsAcceptor>, body: String) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let first = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answered = match &tls {
                None => answer(stream, &body).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => answer(stream, &body).await,
                    Err(error) => Err(error),
                },
            };
            if let Ok(asked) = answered {
                return asked;
            }
        }
    });
    (at, first)
}

#[tokio::test]
async fn the_address_of_any_ingress_is_a_list() {
    let mesh = Mesh::ingress(&[]).await;
    let node = node(&format!("http://{}/v1/dnt/bootstraps", mesh.http), &[]);
    joins(&mesh, &node).await;
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_one_line_and_holds_nothing_up() {
    let mesh = Mesh::ingress(&[]).await;
    let list = format!("http://{}/v1/nothing/here", mesh.http);
    let node = node(&list, &[]);
    let http = node.observed().await;
    node.says("cannot read a list of bootstraps").await;
    assert_eq!(get(http, "/v1/registry/status").await.status, 200);
    let failures = async || {
        let text = String::from_utf8(get(http, "/metrics").await.body.to_vec()).unwrap();
        crate::support::sum_metric(&text, "otela_peer_bootstrap_lists_failed_total")
    };
    eventually("it is tried again", async || (failures().await >= 2.0).then_some(())).await;
    let lines = node.output().lines().filter(|line| line.contains("cannot read a list")).count();
    assert!(lines == 1 && node.output().contains(&list) && node.output().contains("404"), "{}", node.output());
}

#[tokio::test]
async fn a_list_is_had_through_the_proxy_of_the_environment() {
    let mesh = Mesh::ingress(&[]).await;
    let (proxy, asked) = server(None, mesh.bootstrap.clone()).await;
    let node = node("http://lists.example/mesh", &[format!("http_proxy=http://{proxy}")]);
    joins(&mesh, &node).await;
    let asked = asked.await.unwrap();
    assert!(asked.starts_with("GET http://lists.example/mesh HTTP/1.1"), "{asked}");
}

#[tokio::test]
async fn p52_a_proxy_that_is_dead_is_not_asked_for_a_list_on_this_machine() {
    let mesh = Mesh::ingress(&[]).await;
    let node = node(&format!("http://{}/v1/dnt/bootstraps", mesh.http), &["http_proxy=http://127.0.0.1:9".to_owned()]);
    joins(&mesh, &node).await;
}

#[tokio::test]
async fn a_list_over_tls_is_believed_where_the_system_trusts_its_server() {
    let mesh = Mesh::ingress(&[]).await;
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let authority = authority.self_signed(&authority_key).unwrap();
    let server_certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server_certificate = server_certificate.signed_by(&key, &authority, &authority_key).unwrap();
    let roots = mesh.dir.path().join("roots.pem");
    std::fs::write(&roots, authority.pem()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![server_certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    let (at, asked) = server(Some(tls), mesh.bootstrap.clone()).await;
    let list = format!("https://localhost:{}/mesh", at.port());
    let mut doubts = node(&list, &[]);
    doubts.says("cannot read a list of bootstraps").await;
    assert!(doubts.output().contains("certificate"), "{}", doubts.output());
    doubts.signal("-TERM");
    assert_eq!(doubts.ends().await, 0);
    assert!(mesh.listed().await.is_empty());
    let trusts = node(&list, &[format!("SSL_CERT_FILE={}", roots.display())]);
    joins(&mesh, &trusts).await;
    drop(trusts);
    finishes("the server was asked", asked).await.unwrap();
}
