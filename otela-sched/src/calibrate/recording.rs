//! A recorded run of an engine: when each request was scheduled, had its first token, and its last.
//!
//! How many steps an engine took is not recorded, but each request tells it for the time between its first and its last
//! token: one step for each token after the first. What each step worked on is known from all requests together. So a
//! request's error is that of the number of steps that the cost model fits into its time. Prompts add to the steps that
//! they share with decoding sequences what they make them longer.
//!
//! An engine that runs out of room for keys and values puts back the sequences that it took up last, and computes them
//! again later. That is not recorded. No step has more keys than there was room for; the requests that were put back
//! themselves have errors of 20 % and more, and a robust fit lets go of them.

use super::fit::Evidence;
use crate::sim::{Factors, Step, StepCosts, Variant};
use serde::Deserialize;
use std::ops::Range;

/// Requests with shorter answers say more about rounding than about steps.
const STEPS_MIN: f64 = 32.0;

/// Why a recording cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// A line of the requests.
    #[error("{file}: line {line}: {what}")]
    Request {
        /// The file.
        file: String,
        /// Where.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The description.
    #[error("{file}: {what}")]
    Description {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// The model.
    pub model: String,
    /// The accelerator as the driver calls it, if it was recorded.
    pub accelerator: Option<String>,
    /// The engine.
    pub engine: String,
    /// The engine's version.
    pub version: String,
    /// Accelerators.
    pub tp: u32,
    /// How many tokens' keys and values there was room for, if it was recorded.
    pub kv_tokens: Option<u32>,
    /// Tokens in a block of them, if it was recorded.
    pub block_tokens: Option<u32>,
    /// Sequences at once, if it was recorded.
    pub sequences_max: Option<u32>,
    /// Tokens in one step, if it was recorded.
    pub step_tokens_max: Option<u32>,
    /// In the order of their first tokens.
    pub requests: Vec<Request>,
}

/// A request of a run. Times are in seconds of the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Request {
    /// Tokens of its prompt.
    #[serde(rename = "input_toks")]
    pub prompt: u32,
    /// Tokens of its answer.
    #[serde(rename = "output_toks")]
    pub answer: u32,
    /// When it came into the engine's queue.
    #[serde(rename = "queued_ts")]
    pub queued: f64,
    /// When it left it.
    #[serde(rename = "scheduled_ts")]
    pub scheduled: f64,
    /// When its first token was there.
    #[serde(rename = "first_token_ts")]
    pub first: f64,
    /// When its last token was there.
    #[serde(rename = "last_token_ts")]
    pub last: f64,
}

#[derive(Deserialize)]
struct Description {
    model: String,
    vllm_version: String,
    engine_kwargs: Arguments,
    hardware: Option<Hardware>,
    kv_cache: Option<KvCache>,
}

#[derive(Deserialize)]
struct KvCache {
    num_kv_tokens: u32,
    block_size: Option<u32>,
}

#[derive(Deserialize)]
struct Arguments {
    tensor_parallel_size: u32,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Hardware {
    device_name: String,
}

impl Recording {
    /// Reads a run of vLLM: what `meta.json` (its text, and what to call it) and `requests.jsonl` say.
    pub fn read(meta: (&str, &str), requests: (&str, &str)) -> Result<Self, RecordingError> {
        let description: Description = serde_json::from_str(meta.1)
            .map_err(|error| RecordingError::Description { file: meta.0.to_owned(), what: error.to_string() })?;
        let mut read = Vec::new();
        for (text, line) in requests.1.lines().zip(1..).filter(|(text, _)| !text.trim().is_empty()) {
            let wrong = |what: String| RecordingError::Request { file: requests.0.to_owned(), line, what };
            let request: Request = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
            let times = [request.queued, request.scheduled, request.first, request.last];
            if !times.is_sorted() || request.prompt == 0 || request.answer == 0 {
                return Err(wrong("its times are not in order, or it has no tokens".to_owned()));
            }
            read.push(request);
        }
        read.sort_by(|a, b| a.first.total_cmp(&b.first));
        Ok(Self {
            model: description.model,
            accelerator: description.hardware.map(|hardware| hardware.device_name),
            engine: "vLLM".to_owned(),
            version: description.vllm_version,
            tp: description.engine_kwargs.tensor_parallel_size,
            kv_tokens: description.kv_cache.as_ref().map(|cache| cache.num_kv_tokens),
            block_tokens: description.kv_cache.and_then(|cache| cache.block_size),
            sequences_max: description.engine_kwargs.max_num_seqs,
            step_tokens_max: description.engine_kwargs.max_num_batched_tokens,
            requests: read,
        })
    }
}

/// What was going on between two moments of a run.
#[derive(Debug, Clone, Copy)]
struct Span {
    seconds: f64,
    /// Decoding sequences, and the keys that they have together.
    decoding: Step,
    /// Prompts of which a part was worked on: first in the list of parts, and one after the last.
    parts: (usize, usize),
}

/// A run laid out in time, to hold factors against.
#[derive(Debug, Clone)]
pub struct Timeline<'a> {
    variant: Variant<'a>,
    spans: Vec<Span>,
    /// Prompts and which share of each is in the span.
    parts: Vec<(f64, f64)>,
    /// For each request that is used: the spans in which it was decoding, and its steps.
    subjects: Vec<(Range<usize>, f64)>,
}

impl<'a> Timeline<'a> {
    /// Lays out a run that was on `variant`; of the requests, those whose index `pick` picks are held against.
    pub fn new(variant: Variant<'a>, recording: &Recording, pick: impl Fn(usize) -> bool) -> Self {
        let requests = &recording.requests;
        let mut moments: Vec<f64> = requests.iter().flat_map(|r| [r.scheduled, r.first, r.last]).collect();
        moments.sort_by(f64::total_cmp);
        moments.dedup();
        let room = recording.kv_tokens.map_or(f64::INFINITY, f64::from);
        let (mut spans, mut parts) = (Vec::new(), Vec::new());
        for pair in moments.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let first_part = parts.len();
            let mut decoding = Step::default();
            for r in requests {
                if r.first <= from && to <= r.last {
                    decoding = decoding.decode(1.0, r.keys_at(f64::midpoint(from, to)));
                } else if r.scheduled <= from && to <= r.first {
                    parts.push((f64::from(r.prompt), (to - from) / (r.first - r.scheduled)));
                }
            }
            if decoding.keys > room {
                decoding = Step::default().decode(decoding.sequences * room / decoding.keys, room);
            }
            spans.push(Span { seconds: to - from, decoding, parts: (first_part, parts.len()) });
        }
        let at = |moment: f64| moments.partition_point(|m| *m < moment);
        let used = requests.iter().enumerate().filter(|(i, r)| f64::from(r.answer) > STEPS_MIN && pick(*i));
        let subjects = used.map(|(_, r)| (at(r.first)..at(r.last), f64::from(r.answer - 1))).collect();
        Self { variant, spans, parts, subjects }
    }

    /// How many requests are held against.
    pub fn count(&self) -> usize {
        self.subjects.len()
    }

    /// How many steps fit into a span.
    fn steps(&self, span: &Span, costs: &StepCosts) -> f64 {
        if span.decoding.tokens <= 0.0 {
            return 0.0;
        }
        let alone = costs.step_seconds(&span.decoding);
        let parts = &self.parts[span.parts.0..span.parts.1];
        let longer =
            |(prompt, share): &(f64, f64)| share * (costs.step_seconds(&span.decoding.prefill(*prompt, 0.0)) - alone);
        (span.seconds - parts.iter().map(longer).sum::<f64>()) / alone
    }
}

impl Request {
    /// Keys that it has at a moment between its first and its last token.
    fn keys_at(&self, moment: f64) -> f64 {
        let share = (moment - self.first) / (self.last - self.first);
        f64::from(self.prompt) + 1.0 + share * f64::from(self.answer - 1)
    }
}

impl Evidence for Timeline<'_> {
    fn log_errors(&self, factors: &Factors) -> Vec<f64> {
        let costs = StepCosts::new(&self.variant, *factors);
        let steps: Vec<f64> = self.spans.iter().map(|span| self.steps(span, &costs)).collect();
        let of_subject = |(spans, taken): &(Range<usize>, f64)| {
            let fitting: f64 = steps[spans.clone()].iter().sum();
            // More steps fit in than there were: the model is too fast.
            (taken / fitting.max(1e-3)).ln()
        };
        self.subjects.iter().map(of_subject).collect()
    }

    fn is_trusted(&self, _: usize) -> bool {
        false
    }
}
