//! One small request to a literal address, the whole answer in memory.
//!
//! For questions to our own engine: no names, no proxies whatever the environment says, no redirects, no pool.

use bytes::Bytes;
use futures::future::{Either, select};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use std::{io, net::SocketAddr, pin::pin, time::Duration};
use tokio::{net::TcpStream, time::timeout};

/// A model list of thousands of adapters fits.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Once the head is there, the rest of a small answer.
const BODY_LIMIT: Duration = Duration::from_secs(60);

/// How long to wait for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connect: Duration,
    pub(super) head: Duration,
}

/// What to ask.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) path: &'a str,
    /// `None` asks with GET.
    pub(super) body: Option<&'a serde_json::Value>,
    pub(super) api_key: Option<&'a str>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Why nothing useful came back.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no answer within {0:?}")]
    HeadTimeout(Duration),
    #[error("the answer did not end within {0:?}")]
    BodyTimeout(Duration),
    #[error("does not speak HTTP/1.1 in clear")]
    Protocol(#[source] hyper::Error),
    #[error("broke off")]
    Broken(#[source] hyper::Error),
    #[error("the answer is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    #[error("cannot be asked")]
    Request(#[source] http::Error),
}

/// Asks once, on a connection of its own.
pub(super) async fn ask(address: SocketAddr, question: Question<'_>, limits: Limits) -> Result<Answer, AskError> {
    let request = request(address, question).map_err(AskError::Request)?;
    let stream = timeout(limits.connect, TcpStream::connect(address))
        .await
        .map_err(|_| AskError::ConnectTimeout(limits.connect))?
        .map_err(AskError::Connect)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(AskError::Protocol)?;
    let exchange = pin!(async move {
        let head = timeout(limits.head, sender.send_request(request)).await;
        let response = head
            .map_err(|_| AskError::HeadTimeout(limits.head))?
            .map_err(|error| if error.is_parse() { AskError::Protocol(error) } else { AskError::Broken(error) })?;
        let status = response.status();
        let body = timeout(BODY_LIMIT, Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect())
            .await
            .map_err(|_| AskError::BodyTimeout(BODY_LIMIT))?
            .map_err(body_error)?;
        Ok(Answer { status, body: body.to_bytes() })
    });
    match select(exchange, pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The connection may close before its last answer is taken out of it.
        Either::Right((_closed, exchange)) => exchange.await,
    }
}

fn request(address: SocketAddr, question: Question<'_>) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut request = Request::builder()
        .method(if question.body.is_some() { "POST" } else { "GET" })
        .uri(question.path)
        .header(header::HOST, address.to_string())
        .header(header::CONNECTION, "close")
        .header(header::ACCEPT, "application/json");
    if let Some(key) = question.api_key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    match question.body {
        Some(body) => {
            request.header(header::CONTENT_TYPE, "application/json").body(Full::from(body.to_string().into_bytes()))
        }
        None => request.body(Full::default()),
    }
}

fn body_error(error: Box<dyn std::error::Error + Send + Sync>) -> AskError {
    match error.downcast::<hyper::Error>() {
        Ok(error) => AskError::Broken(*error),
        // The only other one there is: `LengthLimitError`.
        Err(_) => AskError::TooLong,
    }
}
