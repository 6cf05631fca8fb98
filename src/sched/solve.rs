//! `otela sched solve`: where models should run, for the least makespan; `objectives.rs` and `judged.rs` have the others.

use super::{SchedError, catalog, judged, objectives, simulate::text};
use crate::{
    cli::SolveArgs,
    exit::CommandError,
    look::{columns, print},
};
use otela_sched::{
    calibrate::Table,
    place::{Explanation, Objective, Problem, ProblemFile, Solution, Spare, explain, least_makespan},
};
use serde_json::{Value, json};
use std::process::ExitCode;

pub(super) fn run(args: &SolveArgs) -> Result<ExitCode, CommandError> {
    let catalog = catalog(&args.known)?;
    let name = args.problem.display().to_string();
    let file = ProblemFile::read(&name, &text(&args.problem)?).map_err(SchedError::from)?;
    let problem = file.problem(&name, &catalog).map_err(SchedError::from)?;
    let table = match &args.factors {
        Some(path) => Table::read(&path.display().to_string(), &text(path)?).map_err(SchedError::from)?,
        None => Table::builtin(),
    };
    let of = objectives::Asked {
        path: &args.problem,
        file: &file,
        problem: &problem,
        catalog: &catalog,
        plot: args.plot.as_deref(),
        json: args.json,
    };
    match file.objective {
        Objective::Latency => return judged::latency(&of, &table),
        Objective::LargestShare => return judged::largest_share(&of, &table),
        Objective::Cost => return objectives::cost(&of),
        Objective::Makespan if !file.running.is_empty() => return objectives::beside(&of),
        Objective::Makespan if !file.also.is_empty() => return objectives::several(&of),
        Objective::Makespan => {}
    }
    let solution = least_makespan(&problem).map_err(|error| of.not_placed(error))?;
    of.draw(&solution.placement, &format!("all is done in {:.3} s", solution.makespan))?;
    let explanation = explain(&problem, &solution);
    print(args.json, &answer(&problem, &solution, &explanation), |_| tables(&problem, &solution, &explanation))
}

fn answer(problem: &Problem<'_>, solution: &Solution, explanation: &Explanation) -> Value {
    let name = |pool: usize| &problem.pools[pool].accelerator.name;
    let models = problem.demands.iter().zip(&solution.placement).zip(&solution.seconds);
    let models = models.map(|((demand, replicas), seconds)| {
        json!({"model": demand.model.name, "seconds": seconds, "replicas": objectives::replicas(problem, replicas)})
    });
    let more = explanation.more.iter();
    let more = more.map(|more| json!({"accelerator": name(more.pool), "count": more.count, "makespan": more.makespan}));
    let unused = explanation.unused.iter().enumerate();
    json!({
        "makespan": solution.makespan,
        "bound": solution.bound,
        "models": models.collect::<Vec<_>>(),
        "slowest": problem.demands[explanation.slowest].model.name,
        "unused": unused.map(|(pool, count)| (name(pool).clone(), json!(count))).collect::<serde_json::Map<_, _>>(),
        "more": more.collect::<Vec<_>>(),
        "next_best": explanation.next_best.as_ref().map(|next| json!({
            "fewer": name(next.pool),
            "makespan": next.solution.makespan,
            "bound": next.solution.bound,
            "models": problem.demands.iter().zip(&next.solution.placement).map(|(demand, of)| {
                json!({"model": demand.model.name, "replicas": objectives::replicas(problem, of)})
            }).collect::<Vec<_>>(),
        })),
    })
}

fn tables(problem: &Problem<'_>, solution: &Solution, explanation: &Explanation) -> String {
    let name = |pool: usize| problem.pools[pool].accelerator.name.as_str();
    let models = problem.demands.iter().zip(&solution.placement).zip(&solution.seconds);
    let rows = models.map(|((demand, replicas), seconds)| {
        [demand.model.name.clone(), objectives::told(problem, replicas), format!("{seconds:.3} s")]
    });
    let mut text = columns(["MODEL", "REPLICAS", "TAKES"], rows);
    let slowest = &problem.demands[explanation.slowest].model.name;
    text += &format!("makespan {:.3} s, which {slowest} takes: ", solution.makespan);
    text += &if solution.bound < solution.makespan {
        let above = (solution.makespan / solution.bound - 1.0) * 100.0;
        format!("no placement takes less than {:.3} s, {above:.2} % less\n", solution.bound)
    } else {
        "no placement takes less\n".to_owned()
    };
    for (pool, count) in explanation.unused.iter().enumerate().filter(|(_, count)| **count > 0) {
        let why = if problem.options.spare == Spare::Idle { "are spare" } else { "would make nobody faster" };
        text += &format!("{count} {} {why}\n", name(pool));
    }
    if let Some(next) = &explanation.next_best {
        let above = (next.solution.makespan / solution.makespan - 1.0) * 100.0;
        let (seconds, replicas) = (next.solution.makespan, &next.solution.placement[explanation.slowest]);
        text += &format!(
            "next best, with fewer {} for {slowest}: {seconds:.3} s, {above:.1} % more, with {}\n",
            name(next.pool),
            objectives::told(problem, replicas)
        );
    }
    for more in &explanation.more {
        let less = (1.0 - more.makespan / solution.makespan) * 100.0;
        text += &format!("{} {} more: {:.3} s, {less:.1} % less\n", more.count, name(more.pool), more.makespan);
    }
    text
}
