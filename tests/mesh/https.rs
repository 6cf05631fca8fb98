//! TLS towards clients: what is spoken within it, and certificates that are renewed while requests run.

use crate::{
    support::{Mesh, Otela, ScriptedLog, eventually, raw, read_to_end},
    wire::{H2, held, scripted},
};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::{net::SocketAddr, path::Path, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, ServerName},
    },
};

const NAME: &str = "localhost";

/// Writes a certificate of its own authority and its key.
fn write(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.key_pair.serialize_pem()).unwrap();
    made.cert.der().clone()
}

/// An ingress with TLS that has joined a mesh whose node has a scripted engine.
struct Https {
    otela: Otela,
    to: SocketAddr,
    certificate: CertificateDer<'static>,
    log: ScriptedLog,
    mesh: Mesh,
}

impl Https {
    async fn start() -> Self {
        let mut mesh = Mesh::ingress(&[]).await;
        let log = mesh.scripted("m").await;
        let certificate = write(mesh.dir.path());
        let otela = Otela::run(ingress(
            mesh.dir.path(),
            &["--bootstrap", &mesh.bootstrap, "--https-every", "200ms", "--keep-alive", "10h"],
        ));
        let base = otela.says("OpenAI base URL: https://").await;
        let to = base.trim_end_matches("/v1").parse().unwrap();
        let https = Self { otela, to, certificate, log, mesh };
        eventually("it serves the model", async || {
            let head = https.http1(&[]).await?.send_request(models()).await.ok()?;
            let body = http_body_util::BodyExt::collect(head.into_body()).await.ok()?.to_bytes();
            (body.windows(8).any(|part| part == b"\"id\":\"m\"")).then_some(())
        })
        .await;
        https
    }

    /// A connection of a client that believes nothing but `certificate`.
    async fn connect(
        &self,
        certificate: &CertificateDer<'static>,
        alpn: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, raw(self.to, b"").await).await
    }

    async fn http2(&self) -> H2 {
        H2::on(self.connect(&self.certificate, &["h2"]).await.unwrap()).await
    }

    #[expect(clippy::disallowed_methods, reason = "the connection's task ends with the connection")]
    async fn http1(&self, alpn: &[&str]) -> Option<http1::SendRequest<Full<Bytes>>> {
        let tls = self.connect(&self.certificate, alpn).await.ok()?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }
}

/// The command line of an ingress that shows the certificate in `dir`.
fn ingress(dir: &Path, flags: &[&str]) -> Vec<String> {
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let mesh = ["ingress", "--listen", "127.0.0.1:0", "--mesh", "test", "--peer-listen", "/ip4/127.0.0.1/tcp/0"];
    let mut words: Vec<String> = mesh.iter().chain(flags).map(|word| (*word).to_owned()).collect();
    words.extend(["--https-cert".into(), file("cert.pem"), "--https-key".into(), file("key.pem")]);
    words
}

fn models() -> http::Request<Full<Bytes>> {
    http::Request::get("/v1/models").header("host", NAME).body(Full::new(Bytes::new())).unwrap()
}

#[tokio::test]
async fn what_is_spoken_within_tls_is_agreed_on() {
    let https = Https::start().await;
    for (offered, agreed) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let tls = https.connect(&https.certificate, offered).await.unwrap();
        assert_eq!(tls.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes), "{offered:?}");
        if agreed == Some("h2") {
            H2::on(tls).await.is_well().await;
        } else {
            let answer = https.http1(offered).await.unwrap().send_request(models()).await.unwrap();
            assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_11));
        }
    }
    assert!(https.connect(&https.certificate, &["spdy/3"]).await.is_err(), "nothing that both speak");
    // Without TLS there is no answer that could be taken for one.
    let (text, _) = read_to_end(&mut raw(https.to, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n").await).await;
    assert!(!text.contains("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn p11_whoever_leaves_within_tls_stops_the_engine() {
    let https = Https::start().await;
    // A stream of HTTP/2, then the whole connection of HTTP/1.1.
    let client = https.http2().await;
    let mut left = client.stream([crate::support::stream_of(&["data: 1\n\n"]), vec![json!(["gone"])]].concat()).await;
    left.until("data: 1", 1).await;
    drop(left);
    https.log.nth("gone", 1).await;
    client.is_well().await;
    let waits = http::Request::post("/v1/chat/completions").header("host", NAME);
    let waits = waits.body(Full::new(Bytes::from(scripted(json!([["gone"]])).to_string()))).unwrap();
    let mut sender = https.http1(&["http/1.1"]).await.unwrap();
    tokio::select! {
        head = sender.send_request(waits) => panic!("it has no head: {head:?}"),
        _ = https.log.nth("request", 2) => {}
    }
    drop(sender);
    https.log.nth("gone", 2).await;
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_and_what_runs_goes_on() {
    let https = Https::start().await;
    let client = https.http2().await;
    let mut runs = client.stream(held("renewed")).await;
    runs.until("content", 1).await;
    let renewed = write(https.mesh.dir.path());
    eventually("the new certificate", async || https.connect(&renewed, &["h2"]).await.ok()).await;
    assert!(https.connect(&https.certificate, &["h2"]).await.is_err(), "the old one is not shown any more");
    https.log.allow("renewed");
    let (text, clean) = runs.rest().await;
    assert!(clean && text.matches("content").count() == 2, "{text}");
    client.is_well().await;
    H2::on(https.connect(&renewed, &["h2"]).await.unwrap()).await.is_well().await;
}

#[tokio::test]
async fn a_certificate_and_a_key_that_do_not_belong_together_change_nothing() {
    let https = Https::start().await;
    let client = https.http2().await;
    let others = tempfile::tempdir().unwrap();
    write(others.path());
    std::fs::copy(others.path().join("key.pem"), https.mesh.dir.path().join("key.pem")).unwrap();
    const MARK: &str = "the old certificate stays";
    https.otela.says(MARK).await;
    let output = https.otela.output();
    let line = output.lines().find(|line| line.contains(MARK)).unwrap();
    assert!(line.contains("WARN") && line.contains("do they belong together?") && line.contains("key.pem"), "{line}");
    client.is_well().await;
    https.http2().await.is_well().await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_stops_the_start_with_one_line() {
    let (dir, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(dir.path());
    write(others.path());
    let files = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    let fails = async |says: &str| {
        let mut otela = Otela::run(ingress(dir.path(), &[]));
        let (code, output) = (otela.ends().await, otela.output());
        let errors: Vec<_> = output.lines().filter(|line| line.starts_with("otela: ")).collect();
        assert!(code == 78 && errors.len() == 1 && errors[0].contains(says), "{code} {output}");
        assert!(files.iter().any(|file| errors[0].contains(file.to_str().unwrap())), "{output}");
        assert!(!output.contains("panicked") && !output.contains("OpenAI base URL"), "{output}");
    };
    std::fs::copy(others.path().join("key.pem"), &files[1]).unwrap();
    fails("do they belong together?").await;
    std::fs::write(&files[1], "not a key").unwrap();
    fails("it should hold a private key as PEM").await;
    std::fs::remove_file(&files[0]).unwrap();
    fails("it should hold certificates as PEM").await;
    let mut alone = Otela::run(["ingress", "--https-cert", files[1].to_str().unwrap()]);
    assert!(alone.ends().await == 2 && alone.output().contains("--https-key"), "{}", alone.output());
}
