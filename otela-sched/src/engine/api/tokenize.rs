//! `POST /tokenize` and `POST /detokenize`.

use super::{
    Posted,
    error::ApiError,
    parameters::known_model,
    template::{self, Ending, Message},
};
use crate::engine::tokens;
use axum::{
    Json,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::json;

#[derive(Debug, Deserialize)]
struct Tokenize {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    #[serde(flatten)]
    ending: Ending,
    return_token_strs: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Detokenize {
    model: Option<String>,
    tokens: Vec<u64>,
}

pub(super) async fn tokenize(posted: Posted) -> Result<Response, ApiError> {
    let request: Tokenize = posted.parse()?;
    known_model(&posted.sim, request.model.as_deref())?;
    let text = match (request.prompt, request.messages) {
        (Some(prompt), None) => prompt,
        (None, Some(messages)) => template::render(&messages, request.ending)?.text(),
        _ => return Err(ApiError::validation("give either prompt or messages", Some("prompt"))),
    };
    let pieces: Vec<&str> = tokens::pieces(&text).collect();
    posted.received.done();
    Ok(Json(json!({
        "count": pieces.len(),
        "max_model_len": posted.sim.config.model.max_model_len,
        "tokens": pieces.iter().map(|piece| tokens::id(piece)).collect::<Vec<_>>(),
        "token_strs": request.return_token_strs.unwrap_or(false).then_some(&pieces),
    }))
    .into_response())
}

pub(super) async fn detokenize(posted: Posted) -> Result<Response, ApiError> {
    let request: Detokenize = posted.parse()?;
    known_model(&posted.sim, request.model.as_deref())?;
    let text = tokens::text(&request.tokens).map_err(|error| ApiError::bad(error.to_string(), Some("tokens")))?;
    posted.received.done();
    Ok(Json(json!({ "prompt": text })).into_response())
}
