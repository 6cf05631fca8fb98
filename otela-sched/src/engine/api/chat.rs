//! `POST /v1/chat/completions`.

use super::{
    Posted,
    error::ApiError,
    generate::{self, DONE, Generation, Script, Step, event},
    listing::answer_id,
    parameters::{StreamOptions, Usage},
    template::{self, Ending, Message},
};
use crate::engine::{FINGERPRINT, prose::Answer, unix_seconds};
use axum::{body::Bytes, response::Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
struct Chat {
    messages: Vec<Message>,
    #[serde(flatten)]
    ending: Ending,
    echo: Option<bool>,
    top_logprobs: Option<u32>,
}

pub(super) async fn answer(posted: Posted) -> Result<Response, ApiError> {
    let chat: Chat = posted.parse()?;
    if chat.top_logprobs.is_some_and(|count| count > 0) {
        return Err(ApiError::not_simulated("top_logprobs"));
    }
    let prompt = template::render(&chat.messages, chat.ending)?;
    let (parameters, faults) = posted.begin().await?;
    let mut generation = parameters.start(&posted, &[prompt], None)?;
    let mut writer = Writer::new(&posted, parameters.model(&posted.sim)?, &generation, parameters.stream_options());
    if chat.echo == Some(true)
        && let Some(last) = chat.messages.last().filter(|last| last.role == "assistant")
    {
        writer.echo = last.text();
    }
    if parameters.streams() {
        return Ok(generation.streamed(posted, &faults, writer));
    }
    generation.finished().await;
    let answer = writer.whole(&generation);
    generate::whole(posted, &faults, &answer).await
}

/// Writes a chat completion, whole or in chunks.
struct Writer {
    id: String,
    created: u64,
    model: String,
    answers: Arc<[Answer]>,
    echo: String,
    options: StreamOptions,
    prompt_tokens: u32,
    said_tokens: u32,
    begun: bool,
}

impl Writer {
    fn new(posted: &Posted, model: &str, generation: &Generation, options: StreamOptions) -> Self {
        Self {
            id: answer_id("chatcmpl", &posted.call),
            created: unix_seconds(),
            model: model.to_owned(),
            answers: Arc::clone(&generation.answers),
            echo: String::new(),
            options,
            prompt_tokens: generation.prompt_tokens,
            said_tokens: 0,
            begun: false,
        }
    }

    fn whole(&self, generation: &Generation) -> Value {
        let choice = |(index, answer): (usize, &Answer)| {
            json!({
                "index": index,
                "message": {
                    "role": "assistant", "content": format!("{}{}", self.echo, answer.text()), "refusal": null,
                    "annotations": null, "audio": null, "function_call": null, "reasoning": null,
                },
                "logprobs": null,
                "finish_reason": answer.finish.as_str(),
                "stop_reason": answer.stop_reason,
                "token_ids": null,
            })
        };
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": self.answers.iter().enumerate().map(choice).collect::<Vec<_>>(),
            "service_tier": null,
            "system_fingerprint": FINGERPRINT,
            "usage": generation.usage(),
            "prompt_logprobs": null,
            "prompt_token_ids": null,
            "kv_transfer_params": null,
        })
    }

    fn chunk(&self, choices: &Value, usage: Option<Usage>) -> Bytes {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
        });
        if let Some(usage) = usage {
            chunk["usage"] = json!(usage);
        }
        event(&chunk)
    }

    fn usage(&self) -> Usage {
        Usage::new(self.prompt_tokens, self.said_tokens)
    }

    fn usage_so_far(&self) -> Option<Usage> {
        self.options.always().then(|| self.usage())
    }
}

impl Script for Writer {
    fn step(&mut self, step: Step) -> Vec<Bytes> {
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.begun, true) {
            // As in vLLM, all roles come with the first token of any choice.
            for index in 0..self.answers.len() {
                let delta = json!({ "role": "assistant", "content": self.echo });
                let choice = json!([{ "index": index, "delta": delta, "logprobs": null, "finish_reason": null }]);
                events.push(self.chunk(&choice, self.usage_so_far()));
            }
        }
        self.said_tokens += 1;
        let answer = &self.answers[step.index];
        let mut choice = json!({
            "index": step.index,
            "delta": { "content": answer.piece(step.token) },
            "logprobs": null,
            "finish_reason": null,
            "token_ids": null,
        });
        if step.token + 1 == answer.tokens() {
            choice["finish_reason"] = json!(answer.finish.as_str());
            choice["stop_reason"] = json!(answer.stop_reason);
        }
        events.push(self.chunk(&json!([choice]), self.usage_so_far()));
        events
    }

    fn end(&mut self) -> Vec<Bytes> {
        let mut events = Vec::new();
        if self.options.at_end() {
            events.push(self.chunk(&json!([]), Some(self.usage())));
        }
        events.push(DONE);
        events
    }
}
