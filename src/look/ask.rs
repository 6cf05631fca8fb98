//! Asking an otela over HTTP/1.1.

use super::plain;
use crate::cli::{Parameters, Target};
use bytes::Bytes;
use form_urlencoded::Serializer;
use futures::future::{Either, select};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{error::Error, io, pin::pin, time::Duration};
use tokio::{net::TcpStream, time::timeout};

/// Opening a connection takes a round trip or two.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// An answer comes out of memory.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// A page of a thousand nodes, each as large as nodes may be, fits.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// More pages than any registry has.
const PAGES_MAX: usize = 1_000;

/// Why there is no answer to print.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// Nobody is there.
    #[error("cannot connect to {0}: name the HTTP address of a running otela with --url or OTELA_URL")]
    Connect(Target, #[source] io::Error),
    /// Nobody answers.
    #[error("{0} did not answer within {1:?}")]
    Silent(Target, Duration),
    /// The connection broke, or the answer is too long.
    #[error("the answer of {0} broke off")]
    Broken(Target, #[source] Box<dyn Error + Send + Sync>),
    /// Somebody else is there.
    #[error(
        "{0} does not answer like an otela ({1}): name the HTTP address of a running otela with --url or OTELA_URL"
    )]
    NotOtela(Target, String),
    /// The otela does not answer this; the message is its own.
    #[error("{0} answered {1}: {2}")]
    Status(Target, StatusCode, String),
    /// The question is wrong; the message is the otela's own.
    #[error("{0}")]
    Question(String),
}

/// All elements of a list of the registry, page by page.
pub(super) async fn all_pages(
    target: &Target,
    of: &'static str,
    parameters: &Parameters,
) -> Result<Vec<Value>, AskError> {
    let mut parameters = parameters.clone();
    let mut elements = Vec::new();
    for _ in 0..PAGES_MAX {
        let mut page = question(target, of, &parameters, of).await?;
        match page[of].take() {
            Value::Array(more) => elements.extend(more),
            _ => return Err(AskError::NotOtela(target.clone(), format!("its `{of}` is no list"))),
        }
        let Some(next) = page["next"].as_str() else { return Ok(elements) };
        parameters.retain(|(name, _)| *name != "after");
        parameters.push(("after", next.to_owned()));
    }
    Err(AskError::NotOtela(target.clone(), format!("its list has more than {PAGES_MAX} pages")))
}

/// The answer to one question: a JSON object that has the `member`.
pub(super) async fn question(
    target: &Target,
    of: &str,
    parameters: &Parameters,
    member: &str,
) -> Result<Value, AskError> {
    let query = Serializer::new(String::new()).extend_pairs(parameters).finish();
    let path = format!("{}/v1/registry/{of}?{query}", target.prefix);
    let (status, body) = match timeout(ANSWER_WITHIN, get(target, path.trim_end_matches('?'))).await {
        Ok(answer) => answer?,
        Err(_) => return Err(AskError::Silent(target.clone(), ANSWER_WITHIN)),
    };
    let not_otela = |why: String| AskError::NotOtela(target.clone(), why);
    let Ok(answer) = serde_json::from_slice::<Value>(&body) else {
        return Err(not_otela(format!("{status}, and no JSON")));
    };
    if status == StatusCode::OK {
        let known = answer.get(member).is_some();
        return if known { Ok(answer) } else { Err(not_otela(format!("its JSON has no `{member}`"))) };
    }
    let Some(message) = answer["error"]["message"].as_str().map(plain::text) else {
        return Err(not_otela(status.to_string()));
    };
    let wrong = status == StatusCode::BAD_REQUEST;
    Err(if wrong { AskError::Question(message) } else { AskError::Status(target.clone(), status, message) })
}

/// The text of a path besides the registry.
pub(crate) async fn text(target: &Target, path: &str) -> Result<String, AskError> {
    let path = format!("{}{path}", target.prefix);
    let (status, body) = match timeout(ANSWER_WITHIN, get(target, &path)).await {
        Ok(answer) => answer?,
        Err(_) => return Err(AskError::Silent(target.clone(), ANSWER_WITHIN)),
    };
    if status != StatusCode::OK {
        return Err(AskError::NotOtela(target.clone(), status.to_string()));
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

async fn get(target: &Target, path: &str) -> Result<(StatusCode, Bytes), AskError> {
    let request = Request::get(path)
        .header(header::HOST, &target.authority)
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| AskError::Question(error.to_string()))?;
    let connect = TcpStream::connect((target.host.as_str(), target.port));
    let stream = match timeout(CONNECT_WITHIN, connect).await {
        Ok(stream) => stream.map_err(|error| AskError::Connect(target.clone(), error))?,
        Err(_) => return Err(AskError::Connect(target.clone(), io::ErrorKind::TimedOut.into())),
    };
    let broken = |error: Box<dyn Error + Send + Sync>| AskError::Broken(target.clone(), error);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| broken(error.into()))?;
    let exchange = pin!(async move {
        let response = sender.send_request(request).await.map_err(|error| {
            let alien = error.is_parse();
            if alien { AskError::NotOtela(target.clone(), "no HTTP/1.1".to_owned()) } else { broken(error.into()) }
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(broken)?;
        Ok((status, body.to_bytes()))
    });
    match select(exchange, pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The connection may close before its last answer is taken out of it.
        Either::Right((_closed, exchange)) => exchange.await,
    }
}
