//! `otela sched profile`: measures a running engine, and makes the table that `calibrate` and `validate` read.
//!
//! Batches of equal requests are sent at once: prompts of known length that nobody has seen before, answers that the engine
//! is told not to end. Every point is measured once before any is measured again, and both ends of the batches before what
//! is between, so that whatever time there is has been used well when it is over.

mod engine;
mod points;
mod prompt;

pub(crate) use engine::EngineError;

use super::{SchedError, catalog};
use crate::{
    cli::ProfileArgs,
    exit::{CommandError, say},
    look::{columns, print, put},
};
use engine::{Card, Engine};
use futures::future::try_join_all;
use otela_sched::{
    calibrate::Measurement,
    catalog::{Catalog, Model, Unknown},
};
use points::{Measured, Medians, Point, Sample, Subject, Useless, rows};
use prompt::Prompts;
use serde_json::{Value, json};
use std::{fs, process::ExitCode, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Batches of each point, if there is time.
const REPEATS: usize = 3;
/// Tokens of a first answer, which is not measured.
const WARM_TOKENS: u32 = 8;

pub(super) async fn run(args: &ProfileArgs) -> Result<ExitCode, CommandError> {
    let begun = Instant::now();
    let catalog = catalog(&args.known)?;
    let accelerator = catalog.accelerator(&args.accelerator).map_err(SchedError::from)?.name.clone();
    let engine = Engine::new(&args.url, args.api_key.as_deref()).map_err(SchedError::from)?;
    let card = engine.card(args.model.as_deref()).await.map_err(SchedError::from)?;
    let version = match &args.engine_version {
        Some(version) => version.clone(),
        None => engine.version().await.map_err(SchedError::from)?.unwrap_or_default(),
    };
    let subject = Subject {
        accelerator,
        tp: args.tp,
        engine: args.engine.clone().unwrap_or_else(|| engine_name(&card.owned_by)),
        version,
        model: model(&catalog, &card).map_err(SchedError::from)?.name.clone(),
    };
    let Subject { model, tp, accelerator, .. } = &subject;
    let with = format!("{} {}", subject.engine, subject.version);
    let within = humantime::format_duration(args.within);
    say(&format!("otela: measuring {model} on {tp} x {accelerator} with {} for at most {within}", with.trim_end()));
    let plan = Measured::plan(&args.batches, &args.prompts, &args.answers, card.max_model_len);
    let mut run = Run { engine: &engine, model: &card.id, deadline: begun + args.within, heeds: true };
    let measured = run.all(plan).await.map_err(SchedError::from)?;
    answer(args, &subject, &measured, begun.elapsed())
}

/// The model's name in the catalog: as it is served, or as what was loaded is called.
fn model<'a>(catalog: &'a Catalog, card: &Card) -> Result<&'a Model, Unknown> {
    catalog.model(&card.id).or_else(|unknown| match &card.root {
        Some(root) => catalog.model(root),
        None => Err(unknown),
    })
}

/// What an engine is called, from what it says of its models.
fn engine_name(owned_by: &str) -> String {
    let known = ["vLLM", "SGLang", "TensorRT-LLM"];
    let plain = |name: &str| name.to_lowercase().replace(['-', '_'], "");
    let name = known.into_iter().find(|name| plain(name) == plain(owned_by)).unwrap_or(owned_by);
    if name.is_empty() { "unknown".to_owned() } else { name.to_owned() }
}

/// Prints and writes what came of it.
fn answer(
    args: &ProfileArgs,
    subject: &Subject,
    measured: &[Measured],
    took: Duration,
) -> Result<ExitCode, CommandError> {
    let medians: Vec<Medians> = measured.iter().filter_map(Measured::medians).collect();
    let left_out = || measured.iter().filter(|of| of.samples.is_empty()).map(|of| (of.point, why(of)));
    let table = Measurement::table(&rows(subject, &medians));
    if medians.is_empty() {
        let why = left_out().next().map_or_else(|| "nothing was asked for".to_owned(), |(_, why)| why.to_string());
        return Err(SchedError::from(EngineError::Nothing { url: engine::named(&args.url), why }).into());
    }
    if let Some(path) = &args.out {
        fs::write(path, &table).map_err(|source| SchedError::Write { path: path.clone(), source })?;
    }
    for (point, why) in left_out() {
        say(&format!("otela: left out: {}: {why}", told(point)));
    }
    if args.out.is_none() && !args.json {
        return put(&table);
    }
    let lost = left_out().map(|(point, why)| {
        let Point { batch, prompt, answer } = point;
        json!({"batch": batch, "prompt": prompt, "answer": answer, "reason": why.to_string()})
    });
    let mut told = json!(subject);
    told["seconds"] = json!(took.as_secs_f64());
    told["points"] = json!(medians);
    told["left_out"] = lost.collect();
    print(args.json, &told, |_| people(&medians))
}

fn why(of: &Measured) -> Useless {
    of.useless.unwrap_or(Useless::NoTime)
}

fn told(point: Point) -> String {
    format!("{} x {} + {} tokens", point.batch, point.prompt, point.answer)
}

fn people(medians: &[Medians]) -> String {
    let mut sorted: Vec<&Medians> = medians.iter().collect();
    sorted.sort_by_key(|of| (of.point.prompt, of.point.answer, of.point.batch));
    let rows = sorted.into_iter().map(|of| {
        let per_second = f64::from(of.point.batch) * f64::from(of.point.answer) / of.seconds;
        [
            of.point.prompt.to_string(),
            of.point.answer.to_string(),
            of.point.batch.to_string(),
            format!("{:.3} s", of.seconds),
            format!("{:.3} s", of.ttft_seconds),
            format!("{:.2} ms", of.itl_seconds * 1e3),
            format!("{per_second:.0}"),
            of.repeats.to_string(),
        ]
    });
    columns(["PROMPT", "ANSWER", "BATCH", "TAKES", "FIRST TOKEN", "EACH TOKEN", "TOKENS/S", "TIMES"], rows)
}

/// A measurement that is under way.
struct Run<'a> {
    engine: &'a Engine,
    /// The model's name in requests.
    model: &'a str,
    deadline: Instant,
    /// Whether the engine knows the fields that keep answers from ending.
    heeds: bool,
}

impl Run<'_> {
    /// Measures all points as often as the time allows.
    async fn all(&mut self, mut plan: Vec<Measured>) -> Result<Vec<Measured>, EngineError> {
        let deadline = self.deadline;
        let Ok(prompts) = timeout_at(deadline, self.warm(&plan)).await else { return Ok(plan) };
        let mut prompts = prompts?;
        for round in 1..=REPEATS {
            for nth in 0..plan.len() {
                let Measured { point, useless, .. } = plan[nth];
                let is_late = Instant::now() + Measured::expected(&plan, point) > deadline;
                if useless.is_some() || is_late {
                    continue;
                }
                let Ok(sample) = timeout_at(deadline, self.batch(&mut prompts, point)).await else {
                    return Ok(plan);
                };
                match sample? {
                    Ok(sample) => {
                        say(&format!("otela: {round} of {REPEATS}: {}: {}", told(point), sample.told()));
                        plan[nth].samples.push(sample);
                    }
                    Err(useless) => plan[nth].useless = Some(useless),
                }
            }
        }
        Ok(plan)
    }

    /// Learns how to ask, and has the largest batch served once: connections are opened, kernels chosen, graphs captured.
    async fn warm(&mut self, plan: &[Measured]) -> Result<Prompts, EngineError> {
        self.heeds = self.does_heed().await?;
        let mut prompts = Prompts::of(self.engine, self.model, |prompt| self.ask(&prompt, 1)).await?;
        let largest = plan.iter().filter(|of| of.useless.is_none()).map(|of| of.point).max_by_key(|point| point.batch);
        if let Some(point) = largest {
            // Whether it is of use does not matter yet.
            let _ = self.batch(&mut prompts, Point { answer: WARM_TOKENS.min(point.answer), ..point }).await?;
        }
        Ok(prompts)
    }

    /// Whether the engine takes the fields that keep answers from ending; some refuse what they do not know.
    async fn does_heed(&self) -> Result<bool, EngineError> {
        match self.engine.complete(&self.ask(&json!("warm"), WARM_TOKENS)).await {
            Ok(_) => Ok(true),
            Err(EngineError::Status { status, .. }) if matches!(status.as_u16(), 400 | 422) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Serves a batch. Its connections are all polled here, so that nobody's clock waits for another thread.
    async fn batch(&self, prompts: &mut Prompts, point: Point) -> Result<Result<Sample, Useless>, EngineError> {
        let asks: Vec<Value> = (0..point.batch).map(|_| self.ask(&prompts.draw(point.prompt), point.answer)).collect();
        let begun = Instant::now();
        let answers = try_join_all(asks.iter().map(|ask| self.engine.complete(ask))).await?;
        Ok(Sample::of(begun, &answers, point.answer))
    }

    fn ask(&self, prompt: &Value, tokens: u32) -> Value {
        let mut ask = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if self.heeds {
            ask["min_tokens"] = json!(tokens);
            ask["ignore_eos"] = json!(true);
        }
        ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_called_as_the_table_of_factors_calls_them() {
        for (owned_by, name) in [
            ("vllm", "vLLM"),
            ("sglang", "SGLang"),
            ("tensorrt_llm", "TensorRT-LLM"),
            ("otela-simulated", "otela-simulated"),
            ("", "unknown"),
        ] {
            assert_eq!(engine_name(owned_by), name);
        }
    }
}
