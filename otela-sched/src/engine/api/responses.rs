//! `POST /v1/responses`, as far as one text answer goes: no stored responses, tools or reasoning.

use super::{
    Posted,
    error::ApiError,
    generate::{self, Generation, Script, Step},
    parameters::Parameters,
    template::{self, Ending, Message},
};
use crate::engine::{
    prose::{Answer, Finish},
    random_id, unix_seconds,
};
use axum::{body::Bytes, response::Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
struct Request {
    input: Input,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    background: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<Message>),
}

pub(super) async fn answer(posted: Posted) -> Result<Response, ApiError> {
    let request: Request = posted.parse()?;
    if request.previous_response_id.is_some() {
        return Err(ApiError::not_simulated("previous_response_id"));
    }
    if request.background == Some(true) {
        return Err(ApiError::not_simulated("background"));
    }
    let mut messages: Vec<Message> =
        request.instructions.iter().map(|text| Message::new("system", text.clone())).collect();
    match request.input {
        Input::Text(text) => messages.push(Message::new("user", text)),
        Input::Items(items) => messages.extend(items),
    }
    let prompt = template::render(&messages, Ending::ANSWER)?;
    let (parameters, faults) = posted.begin().await?;
    let parameters = parameters.single();
    let mut generation = parameters.start(&posted, &[prompt], None)?;
    let model = parameters.model(&posted.sim)?;
    let writer = Writer::new(model, &parameters, request.instructions, &generation);
    if parameters.streams() {
        return Ok(generation.streamed(posted, &faults, writer));
    }
    generation.finished().await;
    let answer = writer.finished();
    generate::whole(posted, &faults, &answer).await
}

/// Writes a response, whole or in events.
struct Writer {
    id: String,
    item: String,
    created: u64,
    model: String,
    instructions: Option<String>,
    max_output_tokens: Option<i64>,
    answers: Arc<[Answer]>,
    prompt_tokens: u32,
    sequence: u64,
}

impl Writer {
    fn new(model: &str, parameters: &Parameters, instructions: Option<String>, generation: &Generation) -> Self {
        Self {
            id: format!("resp_{}", random_id()),
            item: format!("msg_{}", random_id()),
            created: unix_seconds(),
            model: model.to_owned(),
            instructions,
            max_output_tokens: parameters.max_output_tokens(),
            answers: Arc::clone(&generation.answers),
            prompt_tokens: generation.prompt_tokens,
            sequence: 0,
        }
    }

    fn answer(&self) -> &Answer {
        // One prompt and a single choice make one answer.
        &self.answers[0]
    }

    fn object(&self, status: &str) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": [],
            "usage": null,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": { "otela_simulated": "true" },
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "background": false,
            "service_tier": "auto",
            "temperature": 1.0,
            "text": null,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "user": null,
        })
    }

    fn part(text: &str) -> Value {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": null })
    }

    fn message(&self, status: &str, content: &Value) -> Value {
        json!({ "id": self.item, "type": "message", "role": "assistant", "status": status, "content": content })
    }

    fn finished(&self) -> Value {
        let answer = self.answer();
        let cut = answer.finish == Finish::Length;
        let mut object = self.object(if cut { "incomplete" } else { "completed" });
        object["output"] = json!([self.message("completed", &json!([Self::part(answer.text())]))]);
        if cut {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        object["usage"] = json!({
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": answer.tokens(),
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.prompt_tokens + answer.tokens(),
        });
        object
    }

    fn event(&mut self, kind: &str, mut data: Value) -> Bytes {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Bytes::from(format!("event: {kind}\ndata: {data}\n\n"))
    }

    /// An event about the one part of the one item.
    fn part_event(&mut self, kind: &str, mut data: Value) -> Bytes {
        data["item_id"] = json!(self.item);
        data["output_index"] = json!(0);
        data["content_index"] = json!(0);
        self.event(kind, data)
    }
}

impl Script for Writer {
    fn begin(&mut self) -> Vec<Bytes> {
        let open = json!({ "response": self.object("in_progress") });
        let item = json!({ "output_index": 0, "item": self.message("in_progress", &json!([])) });
        vec![
            self.event("response.created", open.clone()),
            self.event("response.in_progress", open),
            self.event("response.output_item.added", item),
            self.part_event("response.content_part.added", json!({ "part": Self::part("") })),
        ]
    }

    fn step(&mut self, step: Step) -> Vec<Bytes> {
        match self.answer().piece(step.token) {
            "" => Vec::new(),
            text => {
                let delta = json!({ "delta": text, "logprobs": [] });
                vec![self.part_event("response.output_text.delta", delta)]
            }
        }
    }

    fn end(&mut self) -> Vec<Bytes> {
        let text = self.answer().text().to_owned();
        let part = Self::part(&text);
        let item = json!({ "output_index": 0, "item": self.message("completed", &json!([part])) });
        let whole = json!({ "response": self.finished() });
        vec![
            self.part_event("response.output_text.done", json!({ "text": text, "logprobs": [] })),
            self.part_event("response.content_part.done", json!({ "part": part })),
            self.event("response.output_item.done", item),
            self.event("response.completed", whole),
        ]
    }

    fn error(&self, error: &ApiError) -> Vec<Bytes> {
        let mut object = self.object("failed");
        object["error"] = json!({ "code": "server_error", "message": error.message() });
        let data = json!({ "type": "response.failed", "sequence_number": 0, "response": object });
        vec![Bytes::from(format!("event: response.failed\ndata: {data}\n\n"))]
    }
}
