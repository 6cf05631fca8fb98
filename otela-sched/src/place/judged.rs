//! The least mean time as something dear to ask says, such as a simulation: what is cheap to ask ranks placements, and only
//! those that come first are judged.
//!
//! What is judged takes its judgement in place of its rank, and the best combination is looked for anew, until all of it has
//! been judged. What has not been judged counts as a little better than its rank, or as much better as any of the same model
//! has turned out to be. So a better placement can only be one with replicas that are underrated by more than that.

use super::{
    candidates::Candidates,
    cover::TooManyTypes,
    latency::{Evaluate, Fastest},
    problem::Problem,
};

/// What a judgement is expected to be below a rank at most, before any is known.
const DOUBT_RATIO: f64 = 0.02;

/// A placement, and how it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The placement, with its times as judged. `is_least` says that it is the least, but for `doubt_ratio`.
    pub fastest: Fastest,
    /// Sets of replicas of a model that were judged.
    pub judged: usize,
    /// A better placement has replicas of which the rank is too high by more than this: 0.02 is a rank that is 2 % above the
    /// judgement.
    pub doubt_ratio: f64,
    /// By how much a rank was too high at most, of those that were judged.
    pub underrated_ratio: f64,
    /// By how much one was too low.
    pub overrated_ratio: f64,
}

/// The placement with the least mean time as `judge` says, of those that `rank` puts first. At most `judged_max` sets of a
/// model's replicas are judged, and one for each model in any case; where that does not suffice, the result is the best that
/// was judged as a whole. None if a model to which requests come cannot be served.
///
/// # Errors
/// [`TooManyTypes`].
pub fn least_judged(
    problem: &Problem<'_>,
    rates: &[f64],
    (rank, judge): (&dyn Evaluate, &dyn Evaluate),
    judged_max: usize,
) -> Result<Option<Judged>, TooManyTypes> {
    let mut candidates = Candidates::new(problem, rates, rank)?;
    let trusted = 1.0 / (1.0 + DOUBT_RATIO);
    candidates.by_model.iter_mut().flatten().for_each(|candidate| candidate.value *= trusted);
    let is_judged = candidates.by_model.iter().zip(rates);
    let is_judged = is_judged.map(|(of_model, rate)| vec![*rate <= 0.0; of_model.len()]).collect();
    let mut search = Search { candidates, is_judged, trust: vec![trusted; rates.len()], judged: 0, ratios: (1.0, 1.0) };
    let mut best: Option<Fastest> = None;
    loop {
        let combined = search.candidates.combine();
        let Some((_, chosen)) = combined.best else { break };
        let settled = chosen.iter().zip(&search.is_judged).all(|(nth, of_model)| of_model[*nth]);
        let unjudged: Vec<usize> =
            (0..chosen.len()).filter(|model| !search.is_judged[*model][chosen[*model]]).collect();
        let all_can_be = unjudged.into_iter().fold(true, |all, model| {
            let seconds =
                judge.seconds(model, rates[model], &search.candidates.by_model[model][chosen[model]].replicas);
            search.book(model, chosen[model], rates[model] * seconds) && all
        });
        if all_can_be {
            let found = search.candidates.fastest(rates, &chosen, combined.complete && settled);
            if settled || best.as_ref().is_none_or(|best| found.mean_seconds < best.mean_seconds) {
                best = Some(found);
            }
        }
        search.drop_those_that_cannot_be();
        if settled || search.judged >= judged_max {
            break;
        }
    }
    let (lowest, highest) = search.ratios;
    Ok(best.map(|fastest| Judged {
        fastest,
        judged: search.judged,
        doubt_ratio: 1.0 / search.trust.iter().copied().fold(0.0, f64::max) - 1.0,
        underrated_ratio: 1.0 / lowest - 1.0,
        overrated_ratio: 1.0 - 1.0 / highest,
    }))
}

struct Search {
    candidates: Candidates,
    is_judged: Vec<Vec<bool>>,
    /// By model: what a rank is multiplied with, below 1.
    trust: Vec<f64>,
    judged: usize,
    /// The lowest and the highest of judgements over ranks.
    ratios: (f64, f64),
}

impl Search {
    /// Books a judgement; whether it can be at all.
    fn book(&mut self, model: usize, nth: usize, value: f64) -> bool {
        let candidate = &mut self.candidates.by_model[model][nth];
        let ratio = value / (candidate.value / self.trust[model]);
        candidate.value = value;
        self.is_judged[model][nth] = true;
        self.judged += 1;
        if !value.is_finite() {
            return false;
        }
        self.ratios = (self.ratios.0.min(ratio), self.ratios.1.max(ratio));
        if ratio < self.trust[model] {
            let less = ratio / self.trust[model];
            self.trust[model] = ratio;
            let of_model = self.candidates.by_model[model].iter_mut().zip(&self.is_judged[model]);
            for (candidate, _) in of_model.filter(|(_, is_judged)| !**is_judged) {
                candidate.value *= less;
            }
        }
        true
    }

    fn drop_those_that_cannot_be(&mut self) {
        for (of_model, is_judged) in self.candidates.by_model.iter_mut().zip(&mut self.is_judged) {
            let mut can_be =
                of_model.iter().map(|candidate| candidate.value.is_finite()).collect::<Vec<_>>().into_iter();
            is_judged.retain(|_| can_be.next().expect("one for each"));
            of_model.retain(|candidate| candidate.value.is_finite());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::Catalog,
        place::{Curves, Form, Requests, Simulated, Simulation, latency, least_latency, taken},
        sim::{Factors, serving::Length},
    };

    fn problem<'a>(catalog: &'a Catalog, pools: &[(&str, u32)]) -> Problem<'a> {
        let mut problem = latency::tests::problem(catalog, pools, &[1, 2]);
        problem.demands.iter_mut().for_each(|demand| demand.load.answer = 100.0);
        problem
    }

    fn simulated<'p, 'a>(problem: &'p Problem<'a>, prompt: Length, burstiness: f64) -> Simulated<'p, 'a> {
        let answer = Length::LogNormal { mean: 100.0, deviation: 80.0 };
        let requests = vec![Requests { prompt, answer, burstiness }; 2];
        let factors = vec![Factors::IDEAL; problem.pools.len()];
        Simulated::new(problem, requests, factors, Simulation { seconds: 20.0, seed: 3 }).unwrap()
    }

    #[test]
    fn of_all_placements_none_is_better_as_simulated() {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, &[("A100-80GB", 3), ("H100", 2)]);
        let prompt = Length::Normal { mean: 500.0, deviation: 200.0 };
        for (rates, burstiness) in [([2.0, 1.0], 1.0), ([30.0, 9.0], 1.0), ([60.0, 30.0], 3.0), ([1.0, 0.0], 1.0)] {
            let simulated = simulated(&problem, prompt.clone(), burstiness);
            let curves = Curves::new(&simulated);
            let found = least_judged(&problem, &rates, (&curves, &simulated), 100).unwrap().unwrap();
            let all = least_latency(&problem, &rates, &simulated).unwrap().unwrap();
            assert!(found.fastest.is_least && taken(&found.fastest.placement, 2) <= vec![3, 2]);
            assert_eq!(found.fastest.mean_seconds, all.mean_seconds, "{found:?}");
            assert!(found.judged < 40, "{found:?}");
            // The same once more, and with as little as can be judged.
            assert_eq!(least_judged(&problem, &rates, (&curves, &simulated), 100).unwrap().unwrap(), found);
            let early = least_judged(&problem, &rates, (&curves, &simulated), 0).unwrap().unwrap();
            assert!(early.judged <= 2 && early.fastest.mean_seconds >= found.fastest.mean_seconds);
        }
    }

    #[test]
    fn what_cannot_be_served_is_no_placement() {
        let catalog = Catalog::builtin();
        let small = problem(&catalog, &[("A100-40GB", 1), ("H100", 1)]);
        // The larger model leaves an A100 with 40 GB room for a mean request, and not for one of 80,000 tokens.
        let simulated = simulated(&small, Length::Fixed(80_000), 1.0);
        let curves = Curves::new(&simulated);
        let found = least_judged(&small, &[0.01, 0.01], (&curves, &simulated), 100).unwrap().unwrap();
        assert_eq!(found.fastest.placement[1].iter().map(|replicas| replicas.pool).collect::<Vec<_>>(), [1]);
        let smaller = problem(&catalog, &[("A100-40GB", 2)]);
        let simulated = self::simulated(&smaller, Length::Fixed(200_000), 1.0);
        let curves = Curves::new(&simulated);
        assert_eq!(least_judged(&smaller, &[0.01, 0.01], (&curves, &simulated), 100).unwrap(), None);
    }

    /// Seconds by pool, of single replicas; several are no use.
    struct OfPool([f64; 3]);

    impl Evaluate for OfPool {
        fn seconds(&self, _: usize, _: f64, replicas: &[(Form, u32)]) -> f64 {
            if replicas.len() != 1 { f64::INFINITY } else { self.0[replicas[0].0.pool()] }
        }
    }

    #[test]
    fn what_may_be_underrated_is_looked_at() {
        let catalog = Catalog::builtin();
        let mut problem = problem(&catalog, &[("A100-80GB", 1), ("H100", 1), ("H200", 1)]);
        problem.demands.truncate(1);
        problem.options.tps = vec![1];
        let (rank, judge) = (OfPool([1.0, 1.01, 1.2]), OfPool([1.0, 0.9, 0.5]));
        let found = least_judged(&problem, &[1.0], (&rank, &judge), 100).unwrap().unwrap();
        assert!(found.fastest.is_least && found.judged == 2, "{found:?}");
        assert_eq!((found.fastest.mean_seconds, found.fastest.placement[0][0].pool), (0.9, 1));
        assert!((found.underrated_ratio - 0.11 / 0.9).abs() < 1e-9 && found.doubt_ratio == found.underrated_ratio);
    }
}
