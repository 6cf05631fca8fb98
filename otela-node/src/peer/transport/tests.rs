//! Real transports over loopback, with proxies and certificates that are in order or not.

use super::*;
use crate::{
    peer::{Identity, PeerConfig, admission::Tally},
    tasks::Tasks,
    telemetry::chain,
};
use futures::{StreamExt, stream::FuturesUnordered};
use libp2p::core::{
    Endpoint,
    muxing::StreamMuxerExt,
    transport::{DialOpts, ListenerId, PortUse, TransportEvent},
};
use otela_testing::finishes;
use std::{future::poll_fn, path::PathBuf, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
    sync::mpsc,
};

#[test]
fn a_taken_port_is_noticed() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let taken = format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
    assert_eq!(check_free(&taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    drop(holder);
    check_free(&taken).unwrap();
    check_free(&"/ip4/0.0.0.0/tcp/0".parse().unwrap()).unwrap();
}

#[test]
fn connections_of_an_address_are_known() {
    let remote = "192.0.2.1:443".parse().unwrap();
    for (address, may) in [
        ("/ip4/192.0.2.1/tcp/443", true),
        ("/ip4/192.0.2.1/tcp/444", false),
        ("/ip4/192.0.2.2/tcp/443", false),
        ("/ip6/::ffff:192.0.2.1/tcp/443/tls/ws", true),
        ("/dns4/relay.example/tcp/443/wss", true),
        ("/ip4/192.0.2.1/udp/443/quic-v1", false),
    ] {
        assert_eq!(may_lead_to(&address.parse().unwrap(), &remote), may, "{address}");
    }
}

/// A peer that only has transports.
struct Bare {
    key: Keypair,
    transport: Proven,
    /// The transport of circuits leads to it.
    _client: relay::client::Behaviour,
}

impl Bare {
    fn new(egress: &Egress) -> Self {
        let config = PeerConfig::new("test".parse().unwrap(), Identity::ephemeral(), Vec::new());
        let key = config.identity.keypair().clone();
        let door = Admission::start(&config, Tally::default(), &Tasks::new());
        let (transport, client) = build(&key, egress, &door, None, &Answers::default()).unwrap();
        Self { key, transport, _client: client }
    }

    fn proxied(proxy: &str) -> Self {
        Self::new(&Egress { proxy: Some(Proxy::new(proxy, "").unwrap()), tls: Tls::default() })
    }

    fn id(&self) -> PeerId {
        self.key.public().to_peer_id()
    }

    async fn listen(&mut self, address: &str) -> Multiaddr {
        self.transport.listen_on(ListenerId::next(), address.parse().unwrap()).unwrap();
        let listening = self.transport.next();
        finishes("it listens", listening).await.unwrap().into_new_address().unwrap()
    }

    /// Dials an address of `to`; who was there, or one line.
    async fn dial(&mut self, to: &mut Self, address: &Multiaddr) -> Result<PeerId, String> {
        let opts = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
        let dial = self.transport.dial(address.clone(), opts).map_err(|error| error.to_string())?;
        let mut upgrades = FuturesUnordered::new();
        let accepts = async {
            loop {
                tokio::select! {
                    event = to.transport.select_next_some() => {
                        if let TransportEvent::Incoming { upgrade, .. } = event {
                            upgrades.push(carried(upgrade));
                        }
                    }
                    Some(_) = upgrades.next(), if !upgrades.is_empty() => {}
                }
            }
        };
        tokio::select! {
            done = finishes("a dial", dial) => done.map(|(peer, _)| peer).map_err(|error| chain(&error)),
            () = accepts => unreachable!(),
        }
    }
}

/// Accepts a connection and carries what is said on it until it ends.
async fn carried<E>(upgrade: impl Future<Output = Result<(PeerId, StreamMuxerBox), E>>) {
    let Ok((_, mut muxer)) = upgrade.await else { return };
    while poll_fn(|cx| muxer.poll_unpin(cx)).await.is_ok() {}
}

/// A proxy on loopback that says `answer` to whoever asks, and then leads to what was asked for if that is a 200.
/// Returns its URL, and what it was asked.
async fn proxy(answer: &'static str, tasks: &Tasks) -> (String, mpsc::Receiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://user:secret@{}", listener.local_addr().unwrap());
    let (asked, requests) = mpsc::channel(16);
    let serving = tasks.clone();
    tasks.spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let asked = asked.clone();
            serving.spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(client.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                let to = request.split(' ').nth(1).unwrap().to_owned();
                asked.send(request).await.unwrap();
                client.write_all(answer.as_bytes()).await.unwrap();
                if answer.contains(" 200 ") {
                    let mut to = TcpStream::connect(to).await.unwrap();
                    let _ = copy_bidirectional(&mut client, &mut to).await;
                }
            });
        }
    });
    (url, requests)
}

/// Certificates of an authority for `localhost` and 127.0.0.1, as files.
struct Certificates {
    dir: TempDir,
    authority: rcgen::Certificate,
    authority_key: rcgen::KeyPair,
}

impl Certificates {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let made = Self { dir: tempfile::tempdir().unwrap(), authority, authority_key: key };
        made.write("ca", &made.authority.pem());
        made
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A certificate that ends in this year, and its key.
    fn signed(&self, name: &str, until: i32) -> (PathBuf, PathBuf) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.authority, &self.authority_key).unwrap();
        let files = (format!("{name}.pem"), format!("{name}.key"));
        (self.write(&files.0, &certificate.pem()), self.write(&files.1, &key.serialize_pem()))
    }

    fn showing(&self, (certificate, key): &(PathBuf, PathBuf)) -> Bare {
        Bare::new(&Egress { proxy: None, tls: Tls::load(Some((certificate, key)), &[]).unwrap() })
    }

    fn trusting(&self, proxy: Option<&str>) -> Bare {
        let proxy = proxy.map(|url| Proxy::new(url, "").unwrap());
        Bare::new(&Egress { proxy, tls: Tls::load(None, &[self.path("ca")]).unwrap() })
    }
}

fn wrapped(proxy: &str, address: &Multiaddr) -> Multiaddr {
    let proxy = proxy.rsplit('@').next().unwrap().parse::<SocketAddr>().unwrap();
    format!("/ip4/127.0.0.1/tcp/{}/http{address}", proxy.port()).parse().unwrap()
}

#[tokio::test]
async fn tcp_goes_through_a_proxy_and_the_peer_is_proven() {
    let tasks = Tasks::new();
    let (url, mut asked) = proxy("HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n", &tasks).await;
    let (mut to, mut by) = (Bare::new(&Egress::default()), Bare::proxied(&url));
    let address = to.listen("/ip4/127.0.0.1/tcp/0").await;
    assert_eq!(by.dial(&mut to, &wrapped(&url, &address)).await, Ok(to.id()));
    let request = asked.recv().await.unwrap();
    let port = socket_of(&address).unwrap().0.port();
    assert!(request.starts_with(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")), "{request}");
    // user:secret
    assert!(request.to_lowercase().contains("proxy-authorization: basic dxnlcjpzzwnyzxq="), "{request}");
    // Without the wrapping the proxy has no part in it.
    assert_eq!(by.dial(&mut to, &address).await, Ok(to.id()));
    assert!(asked.try_recv().is_err());
    tasks.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_proxy_that_leads_nowhere_is_told_on_one_line() {
    let tasks = Tasks::new();
    let mut to = Bare::new(&Egress::default());
    let address = to.listen("/ip4/127.0.0.1/tcp/0").await;
    for (answer, line) in [
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "does not lead to 127.0.0.1:"),
        ("HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "403 Forbidden"),
        ("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "give them as http://NAME:PASSWORD@127.0.0.1:"),
        ("SSH-2.0-OpenSSH_9.9\r\n\r\n", "does not speak HTTP"),
    ] {
        let (url, _asked) = proxy(answer, &tasks).await;
        let error = Bare::proxied(&url).dial(&mut to, &wrapped(&url, &address)).await.unwrap_err();
        assert!(error.contains(line) && !error.contains("secret") && !error.contains('\n'), "{error}");
    }
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://user:secret@{dead}");
    let error = Bare::proxied(&url).dial(&mut to, &wrapped(&url, &address)).await.unwrap_err();
    assert!(error.contains(&format!("cannot reach the proxy {dead}: Connection refused")), "{error}");
    tasks.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn wss_with_an_authority_of_ones_own_by_name_and_through_a_proxy() {
    let tasks = Tasks::new();
    let certificates = Certificates::new();
    let mut to = certificates.showing(&certificates.signed("good", 2100));
    let address = to.listen("/ip4/127.0.0.1/tcp/0/tls/ws").await;
    let port = socket_of(&address).unwrap().0.port();
    assert_eq!(address.to_string(), format!("/ip4/127.0.0.1/tcp/{port}/tls/ws"));
    let by_name: Multiaddr = format!("/dns4/localhost/tcp/{port}/wss").parse().unwrap();
    let (url, mut asked) = proxy("HTTP/1.1 200 OK\r\n\r\n", &tasks).await;
    let mut by = certificates.trusting(Some(&url));
    for address in [&address, &by_name] {
        assert_eq!(by.dial(&mut to, address).await, Ok(to.id()));
        assert_eq!(by.dial(&mut to, &wrapped(&url, address)).await, Ok(to.id()));
    }
    assert!(asked.recv().await.unwrap().starts_with("CONNECT 127.0.0.1:"));
    let by_its_name = format!("CONNECT localhost:{port} ");
    assert!(asked.recv().await.unwrap().starts_with(&by_its_name), "names are the proxy's to resolve");
    // Without TLS, as behind a server that has it.
    let mut plain = Bare::new(&Egress::default());
    let address = plain.listen("/ip4/127.0.0.1/tcp/0/ws").await;
    assert_eq!(by.dial(&mut plain, &address).await, Ok(plain.id()));
    tasks.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_certificate_that_is_not_in_order_is_told_on_one_line() {
    let certificates = Certificates::new();
    let mut good = certificates.showing(&certificates.signed("good", 2100));
    let mut expired = certificates.showing(&certificates.signed("expired", 2020));
    let address = expired.listen("/ip4/127.0.0.1/tcp/0/tls/ws").await;
    let error = certificates.trusting(None).dial(&mut expired, &address).await.unwrap_err();
    assert!(error.contains("certificate has expired on 2020-01-01T"), "{error}");
    let address = good.listen("/ip4/127.0.0.1/tcp/0/tls/ws").await;
    let error = Bare::new(&Egress::default()).dial(&mut good, &address).await.unwrap_err();
    assert!(error.contains("--tls-ca") && error.contains("nobody who is trusted"), "{error}");
    assert!(!error.contains('\n'), "{error}");
    let port = socket_of(&address).unwrap().0.port();
    let other: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}/tls/sni/other.example/ws").parse().unwrap();
    let error = certificates.trusting(None).dial(&mut good, &other).await.unwrap_err();
    assert!(error.contains("is for other names") && error.contains("other.example"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let certificates = Certificates::new();
    let (good, other) = (certificates.signed("good", 2100), certificates.signed("other", 2100));
    let junk = certificates.write("junk", "no PEM");
    let broken = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let broken = certificates.write("broken", broken);
    let gone = certificates.path("gone");
    let load = |certificate: &PathBuf, key: &PathBuf| chain(&Tls::load(Some((certificate, key)), &[]).unwrap_err());
    for (error, flag, file) in [
        (load(&gone, &good.1), "--tls-cert", &gone),
        (load(&junk, &good.1), "--tls-cert", &junk),
        (load(&good.0, &gone), "--tls-key", &gone),
        (load(&good.0, &junk), "--tls-key", &junk),
        (load(&good.0, &broken), "--tls-key", &broken),
        (load(&good.0, &other.1), "do they belong together", &other.1),
        (chain(&Tls::load(None, std::slice::from_ref(&junk)).unwrap_err()), "--tls-ca", &junk),
    ] {
        assert!(error.contains(flag) && error.contains(file.to_str().unwrap()) && !error.contains('\n'), "{error}");
    }
    assert!(Tls::load(Some((&good.0, &good.1)), &[certificates.path("ca")]).unwrap().shows_one());
    assert!(!Tls::load(None, &[]).unwrap().shows_one());
    // 2020-01-01
    let old = certificates.signed("old", 2020);
    let shown = Tls::load(Some((&old.0, &old.1)), &[]).unwrap().validity().unwrap();
    assert_eq!(shown.until_ms, 1_577_836_800_000);
}
