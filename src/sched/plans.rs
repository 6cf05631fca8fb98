//! Plans for people and for programs.

use super::SchedError;
use crate::{
    cli::ExplainArgs,
    exit::CommandError,
    look::{columns, print},
};
use otela_sched::{
    controller,
    plan::{Decision, IdleNode, ModelPlan, Step, Submit},
};
use serde_json::{Value, json};
use std::{
    process::ExitCode,
    time::{Duration, UNIX_EPOCH},
};

/// Shows a plan of the past.
pub(super) fn explain(args: &ExplainArgs) -> Result<ExitCode, CommandError> {
    let plan = controller::read(&args.plan).map_err(SchedError::from)?;
    let answer = serde_json::to_value(&plan).unwrap_or(Value::Null);
    print(args.json, &answer, |_| {
        let made_at = UNIX_EPOCH + Duration::from_millis(plan.made_at_ms);
        format!(
            "plan {} of mesh {}, generation {}, made {} by {}\n\n",
            plan.number,
            plan.mesh,
            plan.generation,
            humantime::format_rfc3339_seconds(made_at),
            plan.scheduler,
        ) + &tables(&plan.models, &plan.steps, &plan.idle, &plan.submit)
    })
}

/// Shows what would be done. `unknown` is why Slurm's queue is not known, if it was asked.
pub(super) fn print_decision(
    is_json: bool,
    decision: &Decision,
    unknown: Option<&str>,
) -> Result<ExitCode, CommandError> {
    let Decision { models, steps, idle, submit } = decision;
    let answer = json!({"models": models, "steps": steps, "idle": idle, "submit": submit, "queue_unknown": unknown});
    print(is_json, &answer, |_| {
        let unknown = unknown.map(|why| format!("\nSlurm's queue is not known: {why}\n")).unwrap_or_default();
        tables(models, steps, idle, submit) + &unknown
    })
}

fn tables(models: &[ModelPlan], steps: &[Step], idle: &[IdleNode], submit: &[Submit]) -> String {
    let of_model = models.iter().map(|of| {
        let source = if of.is_measured { "measured" } else { "policy" };
        let nodes =
            if of.nodes_added > 0 { format!("{} (+{})", of.nodes, of.nodes_added) } else { of.nodes.to_string() };
        let tokens = format!("{:.0} + {:.0}", of.prompt, of.answer);
        [of.model.clone(), format!("{:.3}", of.rate), source.to_owned(), tokens, nodes, format!("{:.3}", of.bears)]
    });
    let mut text = columns(["MODEL", "REQUESTS/S", "FROM", "TOKENS", "NODES", "BEARS"], of_model);
    for (model, lacks) in models.iter().filter_map(|of| Some((&of.model, of.lacks.as_ref()?))) {
        text += &format!("{model} lacks: {lacks}\n");
    }
    text += "\n";
    if steps.is_empty() && submit.is_empty() {
        text += "nothing is to be changed\n";
    }
    if !steps.is_empty() {
        let of_step = steps.iter().map(|step| {
            let serve = step.serve.as_ref().map_or_else(
                || ["nothing".to_owned(), String::new()],
                |serve| {
                    let copies = format!("{} x tp {}", serve.data_parallel, serve.tensor_parallel);
                    [serve.model.clone(), format!("{copies} by {}", serve.template)]
                },
            );
            let [model, how] = serve;
            [node(&step.host, &step.node), step.accelerators.clone(), model, how]
        });
        text += &columns(["NODE", "HAS", "SERVES", "HOW"], of_step);
        text += &reasons(steps.iter().map(|step| (node(&step.host, &step.node), step.why.as_str())));
    }
    if !submit.is_empty() {
        text += if steps.is_empty() { "" } else { "\n" };
        text += &columns(["SUBMITS", "JOBS"], submit.iter().map(|of| [of.kind.clone(), of.count.to_string()]));
        text += &reasons(submit.iter().map(|of| (of.kind.clone(), of.why.as_str())));
    }
    if !idle.is_empty() {
        text += "\n";
        text += &columns(["IDLE", "HAS"], idle.iter().map(|of| [node(&of.host, &of.node), of.accelerators.clone()]));
        text += &reasons(idle.iter().map(|of| (node(&of.host, &of.node), of.why.as_str())));
    }
    text
}

/// Reasons in whole: no column is wide enough for them.
fn reasons<'a>(of: impl Iterator<Item = (String, &'a str)>) -> String {
    of.map(|(node, why)| format!("  {node}: {why}\n")).collect()
}

/// A machine and the end of the id, which tells nodes on one machine apart.
fn node(host: &str, id: &str) -> String {
    format!("{host} …{}", &id[id.len().saturating_sub(6)..])
}
