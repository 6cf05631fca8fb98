//! HTTP to the engine: keep-alive connections to the literal address that it listens on.
//!
//! No proxy variable ever applies here. Idle connections are given up before common engines close them (uvicorn:
//! after 5 s), and the pool sends a request again if its reused connection turns out to be dead.

use crate::{
    http1::{BoxError, Connect, Pool, PoolLimits, PooledBody, RequestBody, SendError},
    tasks::Tasks,
};
use http::{HeaderValue, Response, header, request};
use std::{net::SocketAddr, time::Duration};
use tokio::net::TcpStream;

/// More than any engine runs at once; what exceeds it waits here instead of in the engine's own queue.
const IN_USE_MAX: usize = 4_096;
const IDLE_MAX: usize = 64;
/// Below the 5 s after which uvicorn closes idle connections.
const IDLE_FOR: Duration = Duration::from_secs(4);
/// The engine is on this host: it accepts at once or is gone.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const QUEUE_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Tcp(SocketAddr);

impl Connect for Tcp {
    type Io = TcpStream;

    async fn connect(&self) -> Result<TcpStream, BoxError> {
        let tcp = TcpStream::connect(self.0).await?;
        tcp.set_nodelay(true)?;
        Ok(tcp)
    }
}

/// A client of one engine.
#[derive(Debug)]
pub struct Client {
    pool: Pool<Tcp>,
    host: HeaderValue,
    key: Option<HeaderValue>,
}

impl Client {
    /// A client of the engine at `endpoint`, which was told to ask for `key`. Its connections run on `tasks`.
    #[must_use]
    pub fn new(endpoint: SocketAddr, key: Option<&str>, tasks: Tasks) -> Self {
        let limits = PoolLimits {
            in_use_max: IN_USE_MAX,
            idle_max: IDLE_MAX,
            idle_for_max: IDLE_FOR,
            connect_within: CONNECT_WITHIN,
            queue_within: QUEUE_WITHIN,
            resend_delivered: true,
        };
        let host = HeaderValue::from_str(&endpoint.to_string()).unwrap_or(HeaderValue::from_static("localhost"));
        let key = key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok()).map(|mut key| {
            // Keeps it out of debug output.
            key.set_sensitive(true);
            key
        });
        Self { pool: Pool::new(Tcp(endpoint), limits, tasks), host, key }
    }

    /// Sends a request; dropping the future or the answer's body closes the engine's connection, which cancels its
    /// work.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(&self, mut head: request::Parts, body: RequestBody) -> Result<Response<PooledBody>, SendError> {
        head.headers.insert(header::HOST, self.host.clone());
        // The engine's own key or none: never what a caller sent.
        head.headers.remove(header::AUTHORIZATION);
        if let Some(key) = &self.key {
            head.headers.insert(header::AUTHORIZATION, key.clone());
        }
        self.pool.send(head, body).await
    }
}
