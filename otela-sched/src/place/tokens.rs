//! Lengths in a problem's file: a number of tokens, or how they are drawn.

use crate::sim::serving::{Arrivals, Length, Workload};
use serde::Deserialize;

/// Tokens of prompts or of answers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of tokens, or how they are drawn: { log_normal = { mean = 700, deviation = 600 } }"
)]
pub enum Tokens {
    /// Always so many.
    Number(u32),
    /// Drawn. Where there is no simulation, their mean counts.
    Drawn(Length),
}

impl Tokens {
    /// Their distribution.
    pub fn length(&self) -> Length {
        match self {
            Self::Number(tokens) => Length::Fixed(*tokens),
            Self::Drawn(length) => length.clone(),
        }
    }

    /// Their mean; what is drawn below one token counts as one.
    pub fn mean(&self) -> f64 {
        match self.length() {
            Length::Fixed(tokens) => f64::from(tokens.max(1)),
            Length::Uniform(low, high) => f64::midpoint(f64::from(low.max(1)), f64::from(high.max(1))),
            Length::LogNormal { mean, .. } => mean.max(1.0),
            Length::Normal { mean, deviation } => cut_mean(mean, deviation),
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if matches!(self, Self::Number(0)) {
            return Err("prompts and answers have one token at least".to_owned());
        }
        let arrivals = Arrivals { rates: Vec::new(), burstiness: 1.0 };
        let workload = Workload { arrivals, prompt: self.length(), answer: Length::Fixed(1), shared: None };
        workload.requests(0.0, 0).map(drop).map_err(|error| format!("tokens: {error}"))
    }
}

/// The mean of a normal distribution of which what is below 1 counts as 1, added up over small steps.
fn cut_mean(mean: f64, deviation: f64) -> f64 {
    let steps = (-8000..=8000).map(|step| f64::from(step) / 1000.0);
    let sums = steps.fold((0.0, 0.0), |(sum, weights), at| {
        let weight = (-at * at / 2.0).exp();
        (sum + weight * (mean + deviation * at).max(1.0), weights + weight)
    });
    sums.0 / sums.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_that_of_what_is_drawn() {
        for length in [
            Length::Normal { mean: 74.0, deviation: 211.0 },
            Length::Normal { mean: 900.0, deviation: 100.0 },
            Length::LogNormal { mean: 700.0, deviation: 600.0 },
            Length::Uniform(1, 900),
            Length::Fixed(12),
        ] {
            let arrivals = Arrivals { rates: vec![(0.0, 100_000.0)], burstiness: 0.0 };
            let workload = Workload { arrivals, prompt: length.clone(), answer: Length::Fixed(1), shared: None };
            let (mut sum, mut count) = (0.0, 0.0);
            for arrival in workload.requests(1.0, 1).unwrap() {
                sum += f64::from(arrival.prompt);
                count += 1.0;
            }
            let mean = Tokens::Drawn(length).mean();
            assert!((sum / count / mean - 1.0).abs() < 0.02, "{mean} {}", sum / count);
        }
    }
}
