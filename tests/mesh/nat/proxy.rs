//! The HTTP proxy of a site: leads to port 443 only, wants a name and a password, and resolves names by its own list.

use super::lab::Lab;
use std::{
    future::pending,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

/// A name, and where it leads.
pub(super) const NAME: (&str, &str) = ("relay.test", "10.77.0.11");
/// What is put into the environment of those behind it.
pub(super) const VARIABLE: &str = "https_proxy=http://site:se%40cret@192.168.10.1:3128";
/// site:se@cret
const AUTHORIZATION: &str = "proxy-authorization: basic c2l0ztpzzubjcmv0";

/// The proxy on the gateway of site `a`. Dropping it ends it, and all that goes through it.
pub(super) struct Proxy {
    asked: Arc<Mutex<Vec<String>>>,
    cuts: mpsc::Sender<()>,
}

impl Proxy {
    /// Returns when it listens.
    pub(super) async fn start(lab: &Lab) -> Self {
        let (cuts, cut) = mpsc::channel(1);
        let (ready, listening) = oneshot::channel();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        lab.begin("ga", async move || {
            let listener = TcpListener::bind("192.168.10.1:3128").await.unwrap();
            ready.send(()).unwrap();
            serve(listener, cut, log).await;
        });
        listening.await.unwrap();
        Self { asked, cuts }
    }

    /// Cuts all that goes through it.
    pub(super) async fn cut(&self) {
        self.cuts.send(()).await.unwrap();
    }

    /// Where it was asked to lead to, allowed or not.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(listener: TcpListener, mut cut: mpsc::Receiver<()>, asked: Arc<Mutex<Vec<String>>>) {
    let mut tunnels = JoinSet::new();
    loop {
        tokio::select! {
            client = listener.accept() => {
                tunnels.spawn(lead(client.unwrap().0, Arc::clone(&asked)));
            }
            cut = cut.recv() => match cut {
                Some(()) => tunnels.abort_all(),
                None => return,
            },
        }
    }
}

async fn lead(mut client: TcpStream, asked: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(byte) = client.read_u8().await else { return };
        request.push(byte);
    }
    let request = String::from_utf8(request).unwrap();
    let to = request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    asked.lock().unwrap().push(to.clone());
    let refusal = if !request.to_lowercase().contains(AUTHORIZATION) {
        "407 Proxy Authentication Required"
    } else if !to.ends_with(":443") {
        "403 Forbidden"
    } else {
        ""
    };
    if !refusal.is_empty() {
        let _ = client.write_all(format!("HTTP/1.1 {refusal}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
        return;
    }
    let Ok(socket) = to.replace(NAME.0, NAME.1).parse::<SocketAddr>() else {
        return pending().await;
    };
    let Ok(mut server) = TcpStream::connect(socket).await else {
        let _ = client.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n").await;
        return;
    };
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
