//! Workloads: when requests come, and how long their prompts and answers are.

use super::{Arrival, Prefix};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use rand_distr::{Distribution, Exp1, Gamma, LogNormal, Normal};
use serde::Deserialize;

/// Lengths, in tokens. What is drawn is rounded, and cut to what there can be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Length {
    /// Always the same.
    Fixed(u32),
    /// Each whole number from the first to the second as likely as the others.
    Uniform(u32, u32),
    /// A normal distribution. What falls below one token counts as one.
    Normal {
        /// Its mean.
        mean: f64,
        /// Its standard deviation.
        deviation: f64,
    },
    /// A log-normal distribution.
    LogNormal {
        /// Its mean.
        mean: f64,
        /// Its standard deviation.
        deviation: f64,
    },
}

/// How requests come.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// Requests a second on average, by when that begins: `[[0, 2.0], [3600, 8.0]]` are 2 a second, and 8 after an hour.
    pub rates: Vec<(f64, f64)>,
    /// The deviation of the time between two of them over its mean: 1 is a Poisson process, more comes in bursts (gamma),
    /// 0 is a metronome.
    #[serde(default = "poisson")]
    pub burstiness: f64,
}

fn poisson() -> f64 {
    1.0
}

/// Heads that prompts share.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    /// Tokens of such a head. It is part of the prompt.
    pub tokens: u32,
    /// How many different ones there are; each is as likely as the others.
    pub count: u64,
    /// Of all requests, the share that begins with one.
    #[serde(default = "all")]
    pub ratio: f64,
}

fn all() -> f64 {
    1.0
}

/// A workload that is wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A distribution that there is not.
    #[error(
        "{what}: a mean above 0 and a deviation from 0 on are needed, and the mean is {mean}, the deviation {deviation}"
    )]
    Distribution {
        /// Of what.
        what: &'static str,
        /// Its mean.
        mean: f64,
        /// Its deviation.
        deviation: f64,
    },
    /// Rates that cannot be.
    #[error(
        "rates are pairs [from second, requests a second], with seconds that grow from 0 on and rates from 0 on; the {nth}. is not"
    )]
    Rate {
        /// Which one, from 1 on.
        nth: usize,
    },
    /// Another number that cannot be.
    #[error("{what} cannot be {value}")]
    Value {
        /// What.
        what: &'static str,
        /// What it is said to be.
        value: f64,
    },
}

/// What comes to one model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// How requests come.
    pub arrivals: Arrivals,
    /// Tokens of prompts.
    pub prompt: Length,
    /// Tokens of answers.
    pub answer: Length,
    /// Heads that prompts share, if they do.
    #[serde(default)]
    pub shared: Option<Shared>,
}

impl Workload {
    /// The requests of the first `seconds`, in the order of their times. The same seed has the same requests.
    ///
    /// # Errors
    /// [`WorkloadError`].
    pub fn requests(&self, seconds: f64, seed: u64) -> Result<impl Iterator<Item = Arrival> + use<>, WorkloadError> {
        let (prompt, answer) = (Draw::of("prompt", &self.prompt)?, Draw::of("answer", &self.answer)?);
        let mut times = Times::new(&self.arrivals, seconds)?;
        let shared = self.shared;
        if let Some(shared) = shared
            && !(0.0..=1.0).contains(&shared.ratio)
        {
            return Err(WorkloadError::Value { what: "shared.ratio", value: shared.ratio });
        }
        let mut random = StdRng::seed_from_u64(seed);
        Ok(std::iter::from_fn(move || {
            let at = times.next(&mut random)?;
            let mut arrival = Arrival::new(at, prompt.tokens(&mut random), answer.tokens(&mut random));
            if let Some(shared) = shared
                && shared.count > 0
                && random.random::<f64>() < shared.ratio
            {
                arrival.prefix = Some(Prefix { id: random.random_range(0..shared.count), tokens: shared.tokens });
                arrival.prompt = arrival.prompt.max(shared.tokens + 1);
            }
            Some(arrival)
        }))
    }
}

/// A length that is ready to be drawn.
#[derive(Debug, Clone)]
enum Draw {
    Fixed(u32),
    Uniform(u32, u32),
    Normal(Normal<f64>),
    LogNormal(LogNormal<f64>),
}

impl Draw {
    fn of(what: &'static str, length: &Length) -> Result<Self, WorkloadError> {
        let wrong = |mean, deviation| WorkloadError::Distribution { what, mean, deviation };
        Ok(match *length {
            Length::Fixed(tokens) => Self::Fixed(tokens.max(1)),
            Length::Uniform(low, high) if low <= high => Self::Uniform(low.max(1), high.max(1)),
            Length::Uniform(_, high) => return Err(WorkloadError::Value { what, value: f64::from(high) }),
            Length::Normal { mean, deviation } | Length::LogNormal { mean, deviation }
                if !(mean > 0.0 && deviation >= 0.0 && mean.is_finite() && deviation.is_finite()) =>
            {
                return Err(wrong(mean, deviation));
            }
            Length::Normal { mean, deviation } => {
                Self::Normal(Normal::new(mean, deviation).map_err(|_| wrong(mean, deviation))?)
            }
            Length::LogNormal { mean, deviation } => {
                // Of the logarithm: what has this mean and deviation itself.
                let variance = (1.0 + (deviation / mean).powi(2)).ln();
                let log = LogNormal::new(mean.ln() - variance / 2.0, variance.sqrt());
                Self::LogNormal(log.map_err(|_| wrong(mean, deviation))?)
            }
        })
    }

    fn tokens(&self, random: &mut impl Rng) -> u32 {
        match self {
            Self::Fixed(tokens) => *tokens,
            Self::Uniform(low, high) => random.random_range(*low..=*high),
            Self::Normal(normal) => whole(normal.sample(random)),
            Self::LogNormal(log) => whole(log.sample(random)),
        }
    }
}

/// At least one, and no more than any model reads.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within bounds")]
fn whole(tokens: f64) -> u32 {
    tokens.round().clamp(1.0, 10_000_000.0) as u32
}

/// When requests come: gaps of a process of rate 1, measured in requests expected so far.
#[derive(Debug)]
struct Times {
    rates: Vec<(f64, f64)>,
    /// Which rate holds now, and since when this far.
    nth: usize,
    now: f64,
    until: f64,
    gaps: Gaps,
}

#[derive(Debug)]
enum Gaps {
    Even,
    Poisson,
    Gamma(Gamma<f64>),
}

impl Times {
    fn new(arrivals: &Arrivals, until: f64) -> Result<Self, WorkloadError> {
        let rates = arrivals.rates.clone();
        let mut last = -1.0;
        for (nth, (from, rate)) in rates.iter().enumerate() {
            let begins = if nth == 0 { *from == 0.0 } else { *from > last && from.is_finite() };
            if !(begins && *rate >= 0.0 && rate.is_finite()) {
                return Err(WorkloadError::Rate { nth: nth + 1 });
            }
            last = *from;
        }
        let burstiness = arrivals.burstiness;
        let wrong = WorkloadError::Value { what: "burstiness", value: burstiness };
        let gaps = match burstiness {
            0.0 => Gaps::Even,
            1.0 => Gaps::Poisson,
            // A gamma distribution of mean 1 whose deviation is this.
            value if value > 0.0 => {
                let variance = value * value;
                Gaps::Gamma(Gamma::new(1.0 / variance, variance).map_err(|_| wrong)?)
            }
            _ => return Err(wrong),
        };
        Ok(Self { rates, nth: 0, now: 0.0, until, gaps })
    }

    fn next(&mut self, random: &mut impl Rng) -> Option<f64> {
        let mut expected = match &self.gaps {
            Gaps::Even => 1.0,
            Gaps::Poisson => Exp1.sample(random),
            Gaps::Gamma(gamma) => gamma.sample(random),
        };
        loop {
            let (_, rate) = *self.rates.get(self.nth)?;
            let end = self.rates.get(self.nth + 1).map_or(f64::INFINITY, |(from, _)| *from);
            let at = if rate > 0.0 { self.now + expected / rate } else { f64::INFINITY };
            if at < end {
                self.now = at;
                return (at < self.until).then_some(at);
            }
            if end >= self.until {
                return None;
            }
            expected -= rate * (end - self.now);
            self.now = end;
            self.nth += 1;
        }
    }
}
