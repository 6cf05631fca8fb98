//! Lists on the web.

use super::form::{BYTES_MAX, List, ListError};
use crate::web;
use url::Url;

/// Redirections that are followed.
const REDIRECTIONS_MAX: usize = 5;

/// Why a list was not had.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebError {
    /// It could not be asked for, or its answer broke off.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// Nothing new begins any more.
    #[error("this process is ending")]
    Ending,
    /// The server says something else.
    #[error("it answers {0}")]
    Status(reqwest::StatusCode),
    /// What it says is of no use.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Asks for the list at `url`: through the proxy that the environment names, except on this machine, and trusting whom
/// the system trusts.
pub(super) async fn fetch(url: &Url) -> Result<List, WebError> {
    // Reading the system's roots takes a moment. They are read anew each time, which is once in an hour.
    let whom = url.clone();
    let client = tokio::task::spawn_blocking(move || web::client(&whom, REDIRECTIONS_MAX))
        .await
        .map_err(|_| WebError::Ending)??;
    let mut answer = client.get(url.clone()).send().await.map_err(reqwest::Error::without_url)?;
    if answer.status() != reqwest::StatusCode::OK {
        return Err(WebError::Status(answer.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(reqwest::Error::without_url)? {
        body.extend_from_slice(&chunk);
        if body.len() > BYTES_MAX {
            return Err(ListError::TooLong.into());
        }
    }
    Ok(List::read(&body)?)
}
