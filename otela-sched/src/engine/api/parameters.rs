//! What a generating request asks for, and whether it can have it.

use super::{
    Posted,
    error::ApiError,
    generate::{Generation, before_headers},
    template::Prompt,
};
use crate::engine::{
    Sim,
    faults::{Faults, RequestedFaults},
    prose::{self, Answer, Bounds},
    runner::Job,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Answers to one request: prompts times choices.
const CHOICES_MAX: usize = 128;
const STOP_STRINGS_MAX: usize = 4;

/// The fields that all generating endpoints share.
#[derive(Debug, Deserialize)]
pub(super) struct Parameters {
    model: Option<String>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    min_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    stop: Option<Stop>,
    include_stop_str_in_output: Option<bool>,
    n: Option<i64>,
    seed: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<Value>,
    prompt_logprobs: Option<Value>,
    use_beam_search: Option<bool>,
    response_format: Option<ResponseFormat>,
    structured_outputs: Option<Value>,
    otela_sim: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
}

/// What a stream says of usage.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// Whether one more chunk with the usage ends the stream.
    pub(super) fn at_end(self) -> bool {
        self.include_usage.unwrap_or(false)
    }

    /// Whether every chunk carries the usage so far.
    pub(super) fn always(self) -> bool {
        self.at_end() && self.continuous_usage_stats.unwrap_or(false)
    }
}

/// Tokens used, in the names of chat and completions.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Usage {
    prompt_tokens: u32,
    total_tokens: u32,
    completion_tokens: u32,
    prompt_tokens_details: Option<()>,
}

impl Usage {
    pub(super) fn new(prompt_tokens: u32, completion_tokens: u32) -> Self {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        Self { prompt_tokens, total_tokens, completion_tokens, prompt_tokens_details: None }
    }
}

impl Parameters {
    /// The name that the answer carries: the one asked for.
    pub(super) fn model<'a>(&'a self, sim: &'a Sim) -> Result<&'a str, ApiError> {
        known_model(sim, self.model.as_deref())
    }

    /// For endpoints that have one answer and no field `n`.
    pub(super) fn single(self) -> Self {
        Self { n: None, ..self }
    }

    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(super) fn stream_options(&self) -> StreamOptions {
        self.stream_options.unwrap_or_default()
    }

    pub(super) fn max_output_tokens(&self) -> Option<i64> {
        self.max_output_tokens
    }

    /// What this engine cannot do is refused, not passed over.
    fn check(&self) -> Result<(), ApiError> {
        let asked = |value: &Option<Value>| !matches!(value, None | Some(Value::Null | Value::Bool(false)));
        if asked(&self.logprobs) {
            return Err(ApiError::not_simulated("logprobs"));
        }
        if asked(&self.prompt_logprobs) {
            return Err(ApiError::not_simulated("prompt_logprobs"));
        }
        if self.use_beam_search == Some(true) {
            return Err(ApiError::not_simulated("use_beam_search"));
        }
        if asked(&self.structured_outputs) {
            return Err(ApiError::not_simulated("structured_outputs"));
        }
        if self.response_format.as_ref().is_some_and(|format| format.kind != "text") {
            return Err(ApiError::not_simulated("response_format"));
        }
        if self.stream_options.is_some() && !self.streams() {
            let message = "stream_options make sense only with stream set to true";
            return Err(ApiError::bad(message, Some("stream_options")));
        }
        Ok(())
    }

    fn stop(&self) -> Result<Vec<String>, ApiError> {
        let stop = match &self.stop {
            None => Vec::new(),
            Some(Stop::One(one)) => vec![one.clone()],
            Some(Stop::Many(many)) => many.clone(),
        };
        if stop.len() > STOP_STRINGS_MAX {
            let message = format!("stop takes at most {STOP_STRINGS_MAX} strings, got {}", stop.len());
            return Err(ApiError::validation(message, Some("stop")));
        }
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::bad("stop must not hold an empty string", Some("stop")));
        }
        Ok(stop)
    }

    /// The bounds of one answer to a prompt of so many tokens.
    fn bounds(&self, sim: &Sim, prompt: u32, default: Option<u32>) -> Result<Bounds, ApiError> {
        let limit = sim.config.model.max_model_len;
        if prompt >= limit {
            let message = format!(
                "the prompt of {prompt} tokens leaves no room for an answer: this model's maximum context length is \
                 {limit} tokens; shorten the prompt"
            );
            return Err(ApiError::bad(message, Some("input_tokens")));
        }
        let room = limit - prompt;
        let (param, asked) = match (self.max_output_tokens, self.max_completion_tokens, self.max_tokens) {
            (Some(asked), ..) => ("max_output_tokens", Some(asked)),
            (None, Some(asked), _) => ("max_completion_tokens", Some(asked)),
            (None, None, asked) => ("max_tokens", asked),
        };
        let max_tokens = match asked {
            None => default.unwrap_or(room).min(room),
            Some(asked) if asked < 1 => {
                return Err(ApiError::bad(format!("{param} must be at least 1, got {asked}"), Some(param)));
            }
            Some(asked) => u32::try_from(asked).ok().filter(|asked| *asked <= room).ok_or_else(|| {
                let message = format!(
                    "{param}={asked} and a prompt of {prompt} tokens are more than this model's maximum context \
                     length of {limit} tokens; ask for fewer"
                );
                ApiError::bad(message, Some(param))
            })?,
        };
        let min_tokens = self.min_tokens.unwrap_or(0);
        let min_tokens = u32::try_from(min_tokens).ok().filter(|min| *min <= max_tokens).ok_or_else(|| {
            let message = format!("min_tokens must be from 0 to max_tokens={max_tokens}, got {min_tokens}");
            ApiError::bad(message, Some("min_tokens"))
        })?;
        let keep_stop = self.include_stop_str_in_output.unwrap_or(false);
        Ok(Bounds {
            max_tokens,
            min_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop()?,
            keep_stop,
        })
    }

    fn choices(&self, prompts: usize) -> Result<usize, ApiError> {
        let n = self.n.unwrap_or(1);
        match usize::try_from(n) {
            Ok(0) | Err(_) => Err(ApiError::bad(format!("n must be at least 1, got {n}"), Some("n"))),
            Ok(n) if n.saturating_mul(prompts) > CHOICES_MAX => {
                let message =
                    format!("{prompts} prompts with n={n} are more than {CHOICES_MAX} answers to one request");
                Err(ApiError::bad(message, Some("n")))
            }
            Ok(n) => Ok(n),
        }
    }

    /// What goes wrong with this request.
    fn faults(&self, sim: &Sim) -> Result<Faults, ApiError> {
        requested_faults(sim, self.otela_sim.as_ref())
    }

    /// Queues one sequence per prompt and choice. `default` bounds answers for which no bound is asked.
    pub(super) fn start(
        &self,
        posted: &Posted,
        prompts: &[Prompt],
        default: Option<u32>,
    ) -> Result<Generation, ApiError> {
        let sim = &posted.sim;
        self.check()?;
        let choices = self.choices(prompts.len())?;
        let mut sequences = Vec::with_capacity(choices * prompts.len());
        let mut usage = 0u32;
        for prompt in prompts {
            let tokens = prompt.tokens();
            let bounds = self.bounds(sim, tokens, default)?;
            usage = usage.saturating_add(tokens);
            for choice in 0..choices {
                // The first choice is what n=1 gives, so that asking for more never changes it.
                let seed = sim.config.model.seed ^ self.seed.map_or(0, |seed| prose::stir(seed.cast_unsigned()));
                let seed = seed.wrapping_add(choice as u64);
                let answer = Answer::new(seed, &prompt.context, &prompt.open, &bounds);
                let job = Job { prompt: tokens, output: answer.tokens(), finish: Some(answer.finish) };
                sequences.push((answer, job));
            }
        }
        let mut answers = Vec::with_capacity(sequences.len());
        let mut tickets = Vec::with_capacity(sequences.len());
        for (answer, job) in sequences {
            tickets.push(sim.runner.submit(job)?);
            answers.push(answer);
        }
        Ok(Generation { answers: answers.into(), tickets, prompt_tokens: usage, choices })
    }
}

/// The name to answer under, if the engine serves it. Without a name, its main one.
pub(super) fn known_model<'a>(sim: &'a Sim, asked: Option<&'a str>) -> Result<&'a str, ApiError> {
    let names = sim.config.names();
    match asked {
        None => Ok(&names[0]),
        Some(asked) if names.iter().any(|name| name == asked) => Ok(asked),
        Some(asked) => Err(ApiError::no_model(asked, names)),
    }
}

/// The faults of the engine, or those that the request asks for where that is allowed.
pub(super) fn requested_faults(sim: &Sim, asked: Option<&Value>) -> Result<Faults, ApiError> {
    let Some(asked) = asked.filter(|asked| !asked.is_null()) else { return Ok(sim.config.faults) };
    if !sim.config.allow_faults {
        return Err(ApiError::bad("otela_sim is refused: this engine runs without --allow-faults", Some("otela_sim")));
    }
    RequestedFaults::deserialize(asked)
        .map_err(|error| error.to_string())
        .and_then(|faults| faults.faults())
        .map_err(|error| ApiError::bad(format!("otela_sim: {error}"), Some("otela_sim")))
}

impl Posted {
    /// Parameters, and what goes wrong with the request, once everything that needs no prompt is checked.
    pub(super) async fn begin(&self) -> Result<(Parameters, Faults), ApiError> {
        let parameters: Parameters = self.parse()?;
        parameters.model(&self.sim)?;
        let faults = parameters.faults(&self.sim)?;
        before_headers(self, &faults).await?;
        Ok((parameters, faults))
    }
}
