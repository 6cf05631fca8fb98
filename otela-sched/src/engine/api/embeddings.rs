//! `POST /v1/embeddings`: vectors that are the same for the same text, and mean nothing.

use super::{
    Posted,
    completions::Input,
    error::ApiError,
    generate::{self, before_headers},
    listing::answer_id,
    parameters::{Usage, known_model, requested_faults},
};
use crate::engine::{prose, runner::Job, tokens, unix_seconds};
use axum::response::Response;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

/// As many as the API itself takes in one request.
const INPUTS_MAX: usize = 2048;

#[derive(Debug, Deserialize)]
struct Request {
    model: Option<String>,
    input: Input,
    encoding_format: Option<Encoding>,
    dimensions: Option<u32>,
    otela_sim: Option<Value>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    Base64,
}

pub(super) async fn answer(posted: Posted) -> Result<Response, ApiError> {
    let request: Request = posted.parse()?;
    let sim = posted.sim.clone();
    let model = known_model(&sim, request.model.as_deref())?;
    let faults = requested_faults(&sim, request.otela_sim.as_ref())?;
    let size = sim.config.model.embedding_dim;
    let dimensions = request.dimensions.unwrap_or(size);
    if dimensions == 0 || dimensions > size {
        let message = format!("dimensions must be from 1 to {size}, got {dimensions}");
        return Err(ApiError::bad(message, Some("dimensions")));
    }
    let texts = request.input.texts("input")?;
    if texts.len() > INPUTS_MAX {
        let message = format!("input takes at most {INPUTS_MAX} texts, got {}", texts.len());
        return Err(ApiError::bad(message, Some("input")));
    }
    let limit = sim.config.model.max_model_len;
    let counts: Vec<u32> = texts.iter().map(|text| tokens::count(text)).collect();
    if let Some(count) = counts.iter().find(|count| **count >= limit) {
        let message = format!("an input of {count} tokens exceeds this model's maximum context length of {limit}");
        return Err(ApiError::bad(message, Some("input_tokens")));
    }
    before_headers(&posted, &faults).await?;
    let tickets = counts
        .iter()
        .map(|&prompt| sim.runner.submit(Job { prompt, output: 1, finish: None }))
        .collect::<Result<Vec<_>, _>>()?;
    for ticket in tickets {
        ticket.all().await;
    }
    let encoding = request.encoding_format.unwrap_or(Encoding::Float);
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let vector = vector(sim.config.model.seed, text, size, dimensions);
            let embedding = match encoding {
                Encoding::Float => json!(vector),
                Encoding::Base64 => {
                    json!(STANDARD.encode(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>()))
                }
            };
            json!({ "index": index, "object": "embedding", "embedding": embedding })
        })
        .collect();
    let answer = json!({
        "id": answer_id("embd", &posted.call),
        "object": "list",
        "created": unix_seconds(),
        "model": model,
        "data": data,
        "usage": Usage::new(counts.iter().sum(), 0),
    });
    generate::whole(posted, &faults, &answer).await
}

/// The first `dimensions` of a vector of `size`, of length one.
fn vector(seed: u64, text: &str, size: u32, dimensions: u32) -> Vec<f32> {
    let origin = prose::fingerprint(seed, text);
    let number = |at: u32| {
        let draw = prose::stir(origin.wrapping_add(u64::from(at)));
        // 24 bits are what an f32 holds exactly.
        (draw >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let raw: Vec<f32> = (0..dimensions.min(size)).map(number).collect();
    let length = raw.iter().map(|number| number * number).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    raw.into_iter().map(|number| number / length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_stable_of_length_one_and_differ_by_text() {
        let one = vector(0, "one", 384, 384);
        assert_eq!(one, vector(0, "one", 384, 384));
        assert_ne!(one, vector(0, "two", 384, 384));
        for dimensions in [1, 5, 384] {
            let length: f32 = vector(0, "one", 384, dimensions).iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-4, "{length}");
        }
        assert!((vector(0, "one", 384, 2)[0] / vector(0, "one", 384, 2)[1] - one[0] / one[1]).abs() < 1e-3);
    }
}
