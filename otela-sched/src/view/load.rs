//! How much of each model is asked for: from what ingresses have counted since they started, by looking twice.

use crate::plan::Measured;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Rates are means over this time: shorter ones follow chance, longer ones miss the morning.
const WINDOW: Duration = Duration::from_mins(5);
/// A rate over less than this says nothing.
const WINDOW_MIN: Duration = Duration::from_secs(10);
/// Lengths of fewer answers are not taken for usual.
const ANSWERS_MIN: f64 = 20.0;

/// What an ingress has counted of one model.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    /// Requests.
    pub requests: f64,
    /// Answers whose tokens the engine has told.
    pub answers: f64,
    /// Tokens of their prompts.
    pub prompt: f64,
    /// Tokens of theirs.
    pub completion: f64,
}

/// No ingress counts as far.
const COUNT_MAX: f64 = 1e18;

/// What one ingress had counted at some time, by model.
type Look = (Duration, BTreeMap<String, Counted>);

/// What ingresses have counted lately.
#[derive(Debug, Default)]
pub struct Loads {
    /// By ingress.
    seen: BTreeMap<String, VecDeque<Look>>,
}

impl Loads {
    /// Takes what an ingress has counted until `now`. One that has started again counts from nothing.
    pub fn take(&mut self, ingress: &str, now: Duration, counted: BTreeMap<String, Counted>) {
        let seen = self.seen.entry(ingress.to_owned()).or_default();
        let went_back = |before: &BTreeMap<String, Counted>| {
            before.iter().any(|(model, was)| counted.get(model).is_none_or(|is| is.requests < was.requests))
        };
        if seen.back().is_some_and(|(_, before)| went_back(before)) {
            seen.clear();
        }
        seen.push_back((now, counted));
        while seen.len() > 2 && seen.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= WINDOW) {
            seen.pop_front();
        }
    }

    /// The load of each model over all ingresses.
    pub fn measured(&self) -> BTreeMap<String, Measured> {
        let mut all: BTreeMap<String, (f64, Counted)> = BTreeMap::new();
        for seen in self.seen.values() {
            let (Some((from, first)), Some((to, last))) = (seen.front(), seen.back()) else { continue };
            let seconds = to.saturating_sub(*from);
            if seconds < WINDOW_MIN {
                continue;
            }
            for (model, is) in last {
                let was = first.get(model).copied().unwrap_or_default();
                let (rate, sum) = all.entry(model.clone()).or_default();
                *rate += (is.requests - was.requests) / seconds.as_secs_f64();
                sum.answers += is.answers - was.answers;
                sum.prompt += is.prompt - was.prompt;
                sum.completion += is.completion - was.completion;
            }
        }
        let measured = |(rate, sum): (f64, Counted)| Measured {
            rate,
            tokens: (sum.answers >= ANSWERS_MIN)
                .then(|| ((sum.prompt / sum.answers).max(1.0), (sum.completion / sum.answers).max(1.0))),
        };
        all.into_iter().map(|(model, of)| (model, measured(of))).collect()
    }
}

/// What stands in an ingress' `/metrics` of each model. Everything else is passed over.
pub fn read_counters(text: &str) -> BTreeMap<String, Counted> {
    let mut all: BTreeMap<String, Counted> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.split_once('{') else { continue };
        let Some((labels, value)) = rest.rsplit_once("} ") else { continue };
        let Some(value) = value.trim().parse::<f64>().ok().filter(|value| (0.0..COUNT_MAX).contains(value)) else {
            continue;
        };
        let Some(model) = label(labels, "model") else { continue };
        let counted = all.entry(model).or_default();
        match (name, label(labels, "kind").as_deref()) {
            ("otela_ingress_model_requests_total", _) => counted.requests += value,
            ("otela_ingress_model_answers_total", _) => counted.answers += value,
            ("otela_ingress_tokens_total", Some("prompt")) => counted.prompt += value,
            ("otela_ingress_tokens_total", Some("completion")) => counted.completion += value,
            _ => {}
        }
    }
    all.retain(|_, counted| *counted != Counted::default());
    all
}

/// The value of a label, as OpenMetrics escapes it.
fn label(labels: &str, name: &str) -> Option<String> {
    let mut rest = labels;
    loop {
        let (key, after) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next()? {
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (at, '"') => break at,
                (_, other) => value.push(other),
            }
        };
        if key.trim_start_matches(',') == name {
            return Some(value);
        }
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(requests: f64) -> BTreeMap<String, Counted> {
        let of = Counted { requests, answers: requests, prompt: 100.0 * requests, completion: 10.0 * requests };
        BTreeMap::from([("m".to_owned(), of)])
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rates_are_of_the_last_minutes_and_add_up_over_ingresses() {
        let mut loads = Loads::default();
        for n in 0..100 {
            // A request a second, and later three.
            let requests = if n < 50 { 10.0 * f64::from(n) } else { 500.0 + 30.0 * f64::from(n - 50) };
            loads.take("a", seconds(u64::try_from(n * 10).unwrap()), counted(requests));
        }
        assert_eq!(loads.measured()["m"], Measured { rate: 3.0, tokens: Some((100.0, 10.0)) });
        loads.take("b", seconds(0), BTreeMap::new());
        assert_eq!(loads.measured()["m"].rate, 3.0, "one look says nothing");
        loads.take("b", seconds(20), counted(10.0));
        assert_eq!(loads.measured()["m"].rate, 3.5);
        // It has started again.
        loads.take("b", seconds(30), counted(1.0));
        assert_eq!(loads.measured()["m"].rate, 3.0);
    }

    #[test]
    fn few_answers_say_nothing_of_lengths() {
        let mut loads = Loads::default();
        loads.take("a", seconds(0), BTreeMap::new());
        loads.take("a", seconds(10), counted(5.0));
        assert_eq!(loads.measured()["m"], Measured { rate: 0.5, tokens: None });
    }

    #[test]
    fn counters_are_read_by_model_whatever_its_name() {
        let text = "# HELP x y\n\
            otela_ingress_model_requests_total{model=\"a\\\"} b\\\\{\"} 7\n\
            otela_ingress_model_answers_total{model=\"m\"} 5\n\
            otela_ingress_tokens_total{model=\"m\",kind=\"prompt\"} 500\n\
            otela_ingress_tokens_total{kind=\"completion\",model=\"m\"} 50\n\
            otela_ingress_requests_total{end=\"complete\"} 9\n\
            broken{model=\"x\n\
            otela_ingress_model_requests_total{model=\"inf\"} +Inf\n\
            otela_ingress_model_requests_total{model=\"nan\"} NaN\n\
            otela_ingress_model_requests_total{model=\"less\"} -1\n\
            otela_ingress_in_flight 3\n";
        let read = read_counters(text);
        assert_eq!(read["a\"} b\\{"], Counted { requests: 7.0, ..Counted::default() });
        assert_eq!(read["m"], Counted { requests: 0.0, answers: 5.0, prompt: 500.0, completion: 50.0 });
        assert_eq!(read.len(), 2);
    }
}
