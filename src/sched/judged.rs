//! `otela sched solve` for requests that come one by one: the least mean time, and the largest share that all can bear, by a
//! formula or by simulating.

use super::{SchedError, objectives::Asked};
use crate::{exit::CommandError, look::print};
use otela_sched::{
    calibrate::{Basis, Table},
    place::{
        Curves, Fastest, Infeasible, Judge, Judged, ProblemError, Queueing, Simulated, Simulation, largest_bearing,
        least_judged, least_latency,
    },
};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Sets of replicas that are simulated for one answer, at most.
const JUDGED_MAX: usize = 300;

pub(super) fn latency(of: &Asked<'_>, table: &Table) -> Result<ExitCode, CommandError> {
    let rates = of.file.rates();
    match of.file.judge {
        Judge::Formula => {
            let queueing = Queueing { seconds: of.file.load_seconds };
            let found = least_latency(of.problem, &rates, &queueing).map_err(|error| of.not_placed(error))?;
            let found = found.ok_or_else(|| of.not_placed(Infeasible::Together))?;
            let how =
                if found.is_least { "no placement has less, by this formula" } else { "there may be better ones" };
            tell(of, &found, json!({"is_least": found.is_least}), how)
        }
        Judge::Simulate => {
            let (simulated, guessed) = simulated(of, table)?;
            let curves = Curves::new(&simulated);
            let found = least_judged(of.problem, &rates, (&curves, &simulated), JUDGED_MAX);
            let found = found.map_err(|error| of.not_placed(error))?;
            let found = found.ok_or_else(|| of.not_placed(Infeasible::Together))?;
            let rest = json!({
                "is_settled": found.fastest.is_least,
                "judged": found.judged,
                "doubt_ratio": found.doubt_ratio,
                "underrated_ratio": found.underrated_ratio,
                "overrated_ratio": found.overrated_ratio,
                "guessed": guessed,
            });
            tell(of, &found.fastest, rest, &(how_judged(&found) + &guesses(&guessed)))
        }
    }
}

fn tell(of: &Asked<'_>, found: &Fastest, rest: Value, how: &str) -> Result<ExitCode, CommandError> {
    of.draw(&found.placement, &format!("a request takes {:.3} s on average", found.mean_seconds))?;
    let mut answer = json!({
        "mean_seconds": found.mean_seconds,
        "seconds": found.seconds,
        "models": of.models(&found.placement),
    });
    if let (Value::Object(answer), Value::Object(rest)) = (&mut answer, rest) {
        answer.extend(rest);
    }
    print(of.json, &answer, |_| {
        of.rows(&found.placement, "TAKES", |model| format!("{:.3} s", found.seconds[model]))
            + &format!("mean time of a request {:.3} s: {how}\n", found.mean_seconds)
    })
}

fn how_judged(found: &Judged) -> String {
    let (judged, doubt) = (found.judged, found.doubt_ratio * 100.0);
    if found.fastest.is_least {
        format!("simulated, sets of replicas: {judged}; none is better unless it ranks more than {doubt:.1} % too high")
    } else {
        format!("simulated, sets of replicas: {judged}; there may be better ones")
    }
}

fn guesses(guessed: &[String]) -> String {
    let of = |name: &String| format!("\nnobody has measured {name} with this engine: its factors are those of others");
    guessed.iter().map(of).collect()
}

pub(super) fn largest_share(of: &Asked<'_>, table: &Table) -> Result<ExitCode, CommandError> {
    let rates = of.file.rates();
    let (found, guessed) = match of.file.judge {
        Judge::Formula => (largest_bearing(of.problem, &rates, |_, form| form.rate_max()), Vec::new()),
        Judge::Simulate => {
            let (simulated, guessed) = simulated(of, table)?;
            (largest_bearing(of.problem, &rates, |model, form| simulated.rate_max(model, form)), guessed)
        }
    };
    let found = found.map_err(|error| of.not_placed(error))?;
    let found = found.ok_or_else(|| of.not_placed(Infeasible::Together))?;
    let share = found.shares.iter().copied().fold(f64::INFINITY, f64::min);
    of.draw(&found.placement, &format!("each model bears {share:.3} of its load"))?;
    // A model without a load bears any.
    let shares: Vec<Option<f64>> = found.shares.iter().map(|share| share.is_finite().then_some(*share)).collect();
    let answer = json!({
        "share": share,
        "shares": shares,
        "models": of.models(&found.placement),
        "guessed": guessed,
    });
    print(of.json, &answer, |_| {
        let value = |model: usize| shares[model].map_or_else(|| "no load".to_owned(), |share| format!("{share:.3}"));
        of.rows(&found.placement, "SHARE", value)
            + &format!("each model bears {share:.3} of its load: no placement has more, by what one replica does")
            + &guesses(&guessed)
            + "\n"
    })
}

/// The simulation that the file asks for, and accelerators of which the factors are guessed.
fn simulated<'p>(of: &'p Asked<'_>, table: &Table) -> Result<(Simulated<'p, 'p>, Vec<String>), SchedError> {
    let engine = of.file.engine.as_deref().unwrap_or("vLLM");
    let (mut factors, mut guessed) = (Vec::new(), Vec::new());
    for pool in &of.problem.pools {
        let (found, basis) = table.factors(pool.accelerator, engine, "");
        factors.push(found);
        if matches!(basis, Basis::OtherAccelerators | Basis::OtherEngines) {
            guessed.push(pool.accelerator.name.clone());
        }
    }
    guessed.dedup();
    let simulation = Simulation { seconds: of.file.load_seconds, seed: of.file.seed.unwrap_or_default() };
    let simulated = Simulated::new(of.problem, of.file.requests(), factors, simulation);
    let wrong = |what: String| ProblemError { file: of.path.display().to_string(), what };
    Ok((simulated.map_err(|error| wrong(error.to_string()))?, guessed))
}
