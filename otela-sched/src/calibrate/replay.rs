//! A recorded run served once more, by the simulator: the same requests at the same times.

use super::{Recording, Request};
use crate::sim::{
    Factors, StepCosts, Variant,
    serving::{Arrival, Limits, Member, Outcome, RoundRobin, Rules, serve},
};

/// Means over a run, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Means {
    /// Time to first token.
    pub ttft_seconds: f64,
    /// Mean time between two tokens of a request.
    pub itl_seconds: f64,
    /// From request to last token.
    pub latency_seconds: f64,
}

impl Recording {
    /// What the simulator makes of the run's requests with these factors; none if the model does not fit. Heads that
    /// prompts had in common are not recorded.
    pub fn replay(&self, variant: &Variant<'_>, factors: Factors) -> Option<Outcome> {
        let usual = Limits::of(variant)?;
        let block_tokens = self.block_tokens.unwrap_or(usual.block_tokens);
        let limits = Limits {
            sequences_max: self.sequences_max.unwrap_or(usual.sequences_max),
            step_tokens_max: self.step_tokens_max.unwrap_or(usual.step_tokens_max),
            blocks: self.kv_tokens.map_or(usual.blocks, |tokens| u64::from(tokens / block_tokens)),
            block_tokens,
            ..usual
        };
        let mut requests = self.requests.clone();
        requests.sort_by(|one, other| one.queued.total_cmp(&other.queued));
        let arrivals = requests.iter().map(|r| Arrival::new(r.queued, r.prompt, r.answer));
        let member = Member::new(StepCosts::new(variant, factors), limits);
        Some(serve(&[member], arrivals, &mut RoundRobin::default(), Rules::default()))
    }

    /// What was measured.
    pub fn means(&self) -> Means {
        let mean = |of: &dyn Fn(&Request) -> Option<f64>| {
            let values: Vec<f64> = self.requests.iter().filter_map(of).collect();
            #[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
            let count = values.len().max(1) as f64;
            values.iter().sum::<f64>() / count
        };
        Means {
            ttft_seconds: mean(&|r| Some(r.first - r.queued)),
            itl_seconds: mean(&|r| (r.answer > 1).then(|| (r.last - r.first) / f64::from(r.answer - 1))),
            latency_seconds: mean(&|r| Some(r.last - r.queued)),
        }
    }
}
