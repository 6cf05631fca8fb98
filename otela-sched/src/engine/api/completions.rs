//! `POST /v1/completions`.

use super::{
    Posted,
    error::ApiError,
    generate::{self, DONE, Generation, Script, Step, event},
    listing::answer_id,
    parameters::{StreamOptions, Usage},
    template::Prompt,
};
use crate::engine::{FINGERPRINT, prose::Answer, tokens, unix_seconds};
use axum::{body::Bytes, response::Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The API's own default, which keeps a forgotten bound cheap.
const MAX_TOKENS: u32 = 16;

#[derive(Debug, Deserialize)]
struct Completion {
    prompt: Input,
    echo: Option<bool>,
    suffix: Option<String>,
}

/// Text or tokens, one or several of them; also what embeddings take.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Input {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One list of token ids.
    Tokens(Vec<u64>),
    /// Several of them.
    TokenLists(Vec<Vec<u64>>),
}

impl Input {
    /// The texts, of which there is at least one and none is empty.
    pub(super) fn texts(self, param: &'static str) -> Result<Vec<String>, ApiError> {
        let decode = |ids: Vec<u64>| tokens::text(&ids).map_err(|error| ApiError::bad(error.to_string(), Some(param)));
        let texts = match self {
            Self::Text(text) => vec![text],
            Self::Texts(texts) => texts,
            Self::Tokens(ids) => vec![decode(ids)?],
            Self::TokenLists(lists) => lists.into_iter().map(decode).collect::<Result<_, _>>()?,
        };
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            return Err(ApiError::bad(format!("{param} must not be empty"), Some(param)));
        }
        Ok(texts)
    }
}

pub(super) async fn answer(posted: Posted) -> Result<Response, ApiError> {
    let completion: Completion = posted.parse()?;
    if completion.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::not_simulated("suffix"));
    }
    let texts = completion.prompt.texts("prompt")?;
    let prompts: Vec<Prompt> = texts.into_iter().map(|open| Prompt { context: String::new(), open }).collect();
    let (parameters, faults) = posted.begin().await?;
    let mut generation = parameters.start(&posted, &prompts, Some(MAX_TOKENS))?;
    let mut writer = Writer::new(&posted, parameters.model(&posted.sim)?, &generation, parameters.stream_options());
    if completion.echo == Some(true) {
        writer.echo = prompts.into_iter().map(|prompt| prompt.open).collect();
    }
    if parameters.streams() {
        return Ok(generation.streamed(posted, &faults, writer));
    }
    generation.finished().await;
    let answer = writer.whole(&generation);
    generate::whole(posted, &faults, &answer).await
}

/// Writes a text completion, whole or in chunks.
struct Writer {
    id: String,
    created: u64,
    model: String,
    answers: Arc<[Answer]>,
    /// Answers per prompt.
    choices: usize,
    /// The prompts, if they are to be said again.
    echo: Vec<String>,
    options: StreamOptions,
    prompt_tokens: u32,
    said_tokens: u32,
}

impl Writer {
    fn new(posted: &Posted, model: &str, generation: &Generation, options: StreamOptions) -> Self {
        Self {
            id: answer_id("cmpl", &posted.call),
            created: unix_seconds(),
            model: model.to_owned(),
            answers: Arc::clone(&generation.answers),
            choices: generation.choices,
            echo: Vec::new(),
            options,
            prompt_tokens: generation.prompt_tokens,
            said_tokens: 0,
        }
    }

    /// The prompt in front of an answer, where it was asked for.
    fn echo(&self, index: usize) -> &str {
        self.echo.get(index / self.choices).map_or("", String::as_str)
    }

    fn object(&self, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
        })
    }

    fn whole(&self, generation: &Generation) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            json!({
                "index": index,
                "text": format!("{}{}", self.echo(index), answer.text()),
                "logprobs": null,
                "finish_reason": answer.finish.as_str(),
                "stop_reason": answer.stop_reason,
                "token_ids": null,
                "prompt_logprobs": null,
                "prompt_token_ids": null,
            })
        };
        let mut object = self.object(&self.answers.iter().enumerate().map(choice).collect());
        object["usage"] = json!(generation.usage());
        object["service_tier"] = Value::Null;
        object["kv_transfer_params"] = Value::Null;
        object
    }

    fn usage(&self) -> Usage {
        Usage::new(self.prompt_tokens, self.said_tokens)
    }
}

impl Script for Writer {
    fn step(&mut self, step: Step) -> Vec<Bytes> {
        self.said_tokens += 1;
        let answer = &self.answers[step.index];
        let echo = if step.token == 0 { self.echo(step.index) } else { "" };
        let last = step.token + 1 == answer.tokens();
        let mut chunk = self.object(&json!([{
            "index": step.index,
            "text": format!("{echo}{}", answer.piece(step.token)),
            "logprobs": null,
            "finish_reason": last.then(|| answer.finish.as_str()),
            "stop_reason": last.then_some(answer.stop_reason.as_ref()).flatten(),
            "prompt_token_ids": null,
            "token_ids": null,
        }]));
        if self.options.always() {
            chunk["usage"] = json!(self.usage());
        }
        vec![event(&chunk)]
    }

    fn end(&mut self) -> Vec<Bytes> {
        let mut events = Vec::new();
        if self.options.at_end() {
            let mut chunk = self.object(&json!([]));
            chunk["usage"] = json!(self.usage());
            events.push(event(&chunk));
        }
        events.push(DONE);
        events
    }
}
