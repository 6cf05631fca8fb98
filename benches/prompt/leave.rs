//! Clients that leave, and when their engine notes it.

use crate::{
    EVENT,
    support::{Mesh, ScriptedLog, Way, post_bytes, raw, read_until, stream_of},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A mesh with one scripted engine.
pub(crate) struct Leavers {
    mesh: Mesh,
    engine: SocketAddr,
    log: ScriptedLog,
    left: usize,
}

impl Leavers {
    pub(crate) async fn new(way: Way) -> Self {
        // Nothing is written to a client that is silent: a failed write is no way to find out that it has gone.
        let mut mesh = Mesh::by(way, &["--keep-alive", "10h"]).await;
        let log = mesh.scripted("m").await;
        let port = mesh.nodes[0].says("scripted engine on port ").await.parse().unwrap();
        Self { mesh, engine: SocketAddr::from(([127, 0, 0, 1], port)), log, left: 0 }
    }

    pub(crate) async fn leaves_the_engine(&mut self) -> Duration {
        self.leaves(self.engine, true).await
    }

    pub(crate) async fn leaves_a_stream(&mut self) -> Duration {
        self.leaves(self.mesh.http, true).await
    }

    pub(crate) async fn leaves_while_it_waits(&mut self) -> Duration {
        self.leaves(self.mesh.http, false).await
    }

    async fn leaves(&mut self, at: SocketAddr, begins: bool) -> Duration {
        let asked = self.log.events("request").len();
        let mut client = raw(at, &post_bytes("/v1/completions", &request(begins))).await;
        if begins {
            read_until(&mut client, "data: {").await;
        }
        self.log.nth("request", asked + 1).await;
        let at = now();
        drop(client);
        self.noted(at).await
    }

    /// One stream of a connection that stays.
    #[expect(clippy::disallowed_methods, reason = "the connection's task ends with the connection")]
    pub(crate) async fn resets_a_stream(&mut self) -> Duration {
        let tcp = raw(self.mesh.http, b"").await;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
        let connection = tokio::spawn(connection);
        let url = format!("http://{}/v1/completions", self.mesh.http);
        let body = Full::new(Bytes::from(request(true).to_string()));
        let request = http::Request::post(url).header("content-type", "application/json").body(body).unwrap();
        let mut answer = sender.send_request(request).await.unwrap().into_body();
        answer.frame().await.unwrap().unwrap();
        let at = now();
        drop(answer);
        let took = self.noted(at).await;
        connection.abort();
        took
    }

    /// From `at` until the engine has noted that its caller is gone.
    async fn noted(&mut self, at: f64) -> Duration {
        self.left += 1;
        let gone = self.log.nth("gone", self.left).await["at"].as_f64().unwrap();
        Duration::from_secs_f64((gone - at).max(0.0))
    }
}

/// A request whose engine waits until its caller is gone, with the beginning of a stream or without.
fn request(begins: bool) -> Value {
    let stream = if begins { stream_of(&[EVENT]) } else { Vec::new() };
    let script = [stream, vec![json!(["gone"])]].concat();
    json!({"model": "m", "stream": true, "prompt": "x", "script": script})
}

/// Now, as scripted engines note it.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
