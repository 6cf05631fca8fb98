//! What is measured, in which order, and what comes of it.

use super::engine::Answer;
use otela_sched::calibrate::Measurement;
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;

/// Equal sequences that are served at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Point {
    /// Sequences.
    pub(super) batch: u32,
    /// Tokens of each prompt.
    pub(super) prompt: u32,
    /// Tokens of each answer.
    pub(super) answer: u32,
}

/// A batch that was served.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// From the prompts to the last token, in seconds.
    seconds: f64,
    /// Mean time to the first token, in seconds.
    ttft: f64,
    /// Mean time between two tokens, in seconds; 0 if there is but one.
    itl: f64,
    /// Mean tokens of a prompt, if the engine says so.
    prompt: Option<f64>,
}

/// A batch that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Useless {
    /// An answer ended too soon.
    #[error("answers end after {0} of {1} tokens, though the engine was told not to end them")]
    Short(u32, u32),
    /// Some began when others had ended.
    #[error("some answers begin when others have ended: the engine does not serve so many at once")]
    InParts,
    /// It would not fit.
    #[error("longer than the engine's {0} tokens")]
    Context(u32),
    /// There was no time for it.
    #[error("no time was left: give more with --within")]
    NoTime,
}

impl Sample {
    /// What `answers` to a batch of equal prompts, sent at `begun`, say; each was to have `asked` tokens.
    pub(super) fn of(begun: Instant, answers: &[Answer], asked: u32) -> Result<Self, Useless> {
        let since = |at: Instant| at.saturating_duration_since(begun).as_secs_f64();
        if let Some(short) = answers.iter().map(|answer| answer.tokens).filter(|tokens| *tokens < asked).min() {
            return Err(Useless::Short(short, asked));
        }
        let begins_last = answers.iter().map(|answer| answer.first).max().unwrap_or(begun);
        let ends_first = answers.iter().map(|answer| answer.last).min().unwrap_or(begun);
        if begins_last > ends_first && asked > 1 {
            return Err(Useless::InParts);
        }
        let mean = |of: &dyn Fn(&Answer) -> f64| answers.iter().map(of).sum::<f64>() / count(answers.len());
        let prompts: Option<Vec<u32>> = answers.iter().map(|answer| answer.prompt).collect();
        Ok(Self {
            seconds: answers.iter().map(|answer| since(answer.last)).fold(0.0, f64::max),
            ttft: mean(&|answer| since(answer.first)),
            itl: mean(&|answer| (since(answer.last) - since(answer.first)) / f64::from(asked.max(2) - 1)),
            prompt: prompts.map(|all| all.into_iter().map(f64::from).sum::<f64>() / count(answers.len())),
        })
    }

    /// How long it took.
    pub(super) fn took(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// In a few words.
    pub(super) fn told(&self) -> String {
        let (seconds, ttft, itl) = (self.seconds, self.ttft, self.itl * 1e3);
        format!("{seconds:.3} s, first token after {ttft:.3} s, then one every {itl:.2} ms")
    }
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
fn count(number: usize) -> f64 {
    number.max(1) as f64
}

/// What is known of a point.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Of which.
    pub(super) point: Point,
    /// The batches.
    pub(super) samples: Vec<Sample>,
    /// Why there are none.
    pub(super) useless: Option<Useless>,
}

/// A point's medians.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Medians {
    /// Of which; prompts have as many tokens as the engine counted.
    #[serde(flatten)]
    pub(super) point: Point,
    /// Seconds from the prompts to the last token.
    pub(super) seconds: f64,
    /// Seconds to the first token, on average over the batch.
    pub(super) ttft_seconds: f64,
    /// Seconds between two tokens, on average over the batch.
    pub(super) itl_seconds: f64,
    /// Batches.
    pub(super) repeats: usize,
}

impl Measured {
    /// All points for these lengths, those first that say most: both ends of the batches, then what is between.
    pub(super) fn plan(batches: &[u32], prompts: &[u32], answers: &[u32], context_max: Option<u32>) -> Vec<Self> {
        let mut batches = batches.to_vec();
        batches.sort_unstable();
        batches.dedup();
        let lengths = || prompts.iter().flat_map(|prompt| answers.iter().map(|answer| (*prompt, *answer)));
        let points = ends_first(batches.len()).into_iter().flat_map(|nth| {
            let batch = batches[nth];
            lengths().map(move |(prompt, answer)| Point { batch, prompt, answer })
        });
        let of = |point: Point| {
            let is_long = |most: &u32| point.prompt.saturating_add(point.answer) > *most;
            let useless = context_max.filter(is_long).map(Useless::Context);
            Self { point, samples: Vec::new(), useless }
        };
        points.map(of).collect()
    }

    /// How long a batch may be expected to take: as long as it did, or as the same lengths did in smaller ones.
    pub(super) fn expected(all: &[Self], point: Point) -> Duration {
        let alike = |of: &&Self| {
            (of.point.prompt, of.point.answer) == (point.prompt, point.answer) && of.point.batch <= point.batch
        };
        let known = all.iter().filter(alike).max_by_key(|of| (!of.samples.is_empty(), of.point.batch));
        known.and_then(|of| of.samples.last()).map_or(Duration::ZERO, Sample::took)
    }

    /// The medians of its batches, if there are any.
    pub(super) fn medians(&self) -> Option<Medians> {
        let of = |value: fn(&Sample) -> f64| median(self.samples.iter().map(value).collect());
        let told: Option<Vec<f64>> = self.samples.iter().map(|sample| sample.prompt).collect();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of counts")]
        let prompt = told.and_then(median).map_or(self.point.prompt, |tokens| tokens.round() as u32);
        Some(Medians {
            point: Point { prompt, ..self.point },
            seconds: of(|sample| sample.seconds)?,
            ttft_seconds: of(|sample| sample.ttft)?,
            itl_seconds: of(|sample| sample.itl)?,
            repeats: self.samples.len(),
        })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[half - 1], upper) } else { upper })
}

/// 0, the last, and then always what is in the middle of what is left.
fn ends_first(count: usize) -> Vec<usize> {
    let Some(last) = count.checked_sub(1) else { return Vec::new() };
    let mut order = if last > 0 { vec![0, last] } else { vec![0] };
    let mut gaps = std::collections::VecDeque::from([(0_usize, last)]);
    while let Some((low, high)) = gaps.pop_front().filter(|_| order.len() < count) {
        let middle = low.midpoint(high);
        if middle > low {
            order.push(middle);
            gaps.extend([(low, middle), (middle, high)]);
        }
    }
    order
}

/// On what was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Subject {
    /// The catalog's name of the accelerator.
    pub(super) accelerator: String,
    /// How many of them.
    pub(super) tp: u32,
    /// The engine.
    pub(super) engine: String,
    /// Its version; empty if it does not say.
    pub(super) version: String,
    /// The catalog's name of the model.
    pub(super) model: String,
}

/// Rows of a table: each batch, and for each length of a prompt alone its time to first token. Of several prompts at once
/// the engine chooses which are first, so their times to first token say little of what computing takes.
pub(super) fn rows(subject: &Subject, medians: &[Medians]) -> Vec<Measurement> {
    let row = |point: Point, seconds: f64| Measurement {
        line: 0,
        accelerator: subject.accelerator.clone(),
        engine: subject.engine.clone(),
        version: subject.version.clone(),
        model: subject.model.clone(),
        tp: subject.tp,
        batch: point.batch,
        prompt: point.prompt,
        answer: point.answer,
        seconds,
    };
    let mut rows: Vec<_> = medians.iter().map(|of| row(of.point, of.seconds)).collect();
    let alone = |of: &&Medians| of.point.batch == 1 && of.point.answer > 1;
    let mut prompts: Vec<u32> = medians.iter().filter(alone).map(|of| of.point.prompt).collect();
    prompts.sort_unstable();
    prompts.dedup();
    for prompt in prompts {
        let times = medians.iter().filter(alone).filter(|of| of.point.prompt == prompt).map(|of| of.ttft_seconds);
        if let Some(seconds) = median(times.collect()) {
            rows.push(row(Point { batch: 1, prompt, answer: 1 }, seconds));
        }
    }
    rows.sort_by_key(|row| (row.prompt, row.answer, row.batch));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn answer(begun: Instant, first_ms: u32, last_ms: u32, tokens: u32) -> Answer {
        Answer { first: begun + MS * first_ms, last: begun + MS * last_ms, prompt: Some(100), tokens }
    }

    #[test]
    fn a_batch_takes_until_its_last_token() {
        let begun = Instant::now();
        let sample = Sample::of(begun, &[answer(begun, 20, 410, 40), answer(begun, 30, 420, 40)], 40).unwrap();
        assert!((sample.seconds - 0.42).abs() < 1e-9 && (sample.ttft - 0.025).abs() < 1e-9, "{sample:?}");
        assert!((sample.itl - 0.01).abs() < 1e-9 && sample.prompt == Some(100.0), "{sample:?}");
        let of = |answers: &[Answer]| Sample::of(begun, answers, 40).unwrap_err();
        assert_eq!(of(&[answer(begun, 20, 410, 40), answer(begun, 20, 100, 9)]), Useless::Short(9, 40));
        assert_eq!(of(&[answer(begun, 20, 410, 40), answer(begun, 420, 800, 40)]), Useless::InParts);
    }

    #[test]
    fn ends_come_before_what_is_between_and_nothing_is_left_out() {
        assert_eq!(ends_first(7), [0, 6, 3, 1, 4, 2, 5]);
        for count in 0..40 {
            let mut order = ends_first(count);
            order.sort_unstable();
            assert_eq!(order, (0..count).collect::<Vec<_>>());
        }
        let plan = Measured::plan(&[4, 1, 2, 4], &[100, 1000], &[50], Some(500));
        let points: Vec<_> = plan.iter().map(|of| (of.point.batch, of.point.prompt)).collect();
        assert_eq!(points, [(1, 100), (1, 1000), (4, 100), (4, 1000), (2, 100), (2, 1000)]);
        assert_eq!(plan[1].useless, Some(Useless::Context(500)));
        assert_eq!(plan[0].useless, None);
    }

    #[test]
    fn rows_are_medians_and_the_first_token_is_that_of_one_alone() {
        let sample = |seconds: f64, ttft: f64| Sample { seconds, ttft, itl: 0.01, prompt: Some(99.0) };
        let of = |batch, answer, samples: Vec<Sample>| Measured {
            point: Point { batch, prompt: 100, answer },
            samples,
            useless: None,
        };
        let all = [
            of(1, 40, vec![sample(0.5, 0.02), sample(0.4, 0.01), sample(9.0, 0.9)]),
            of(1, 80, vec![sample(0.9, 0.03), sample(1.1, 0.05)]),
            of(4, 40, vec![sample(0.6, 0.1)]),
            of(8, 40, Vec::new()),
        ];
        let medians: Vec<_> = all.iter().filter_map(Measured::medians).collect();
        let subject = Subject {
            accelerator: "H100".into(),
            tp: 1,
            engine: "vLLM".into(),
            version: String::new(),
            model: "phi-4".into(),
        };
        let rows = rows(&subject, &medians);
        let told: Vec<_> = rows.iter().map(|row| (row.batch, row.prompt, row.answer, row.seconds)).collect();
        assert_eq!(told, [(1, 99, 1, 0.03), (1, 99, 40, 0.5), (4, 99, 40, 0.6), (1, 99, 80, 1.0)]);
        assert_eq!(Measured::expected(&all, all[3].point), Duration::from_millis(600));
        assert_eq!(Measured::expected(&all, Point { batch: 1, prompt: 7, answer: 7 }), Duration::ZERO);
    }
}
