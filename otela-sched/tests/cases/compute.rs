//! What the library says to a case's input.

use crate::place;
use otela_sched::{
    catalog::Catalog,
    sim::{
        Factors, Group, LoadScope, MEMORY_RATIO, Roofline, Step, StepCosts, Variant, WEIGHTS_RATIO, operator_seconds,
        reconfiguration,
        serving::{Arrival, Batching, Limits, Member, RoundRobin, Rules, Served, serve},
        transfer_coefficient, transfer_seconds,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, error::Error};

pub(crate) type Answer = Result<Value, Box<dyn Error>>;

/// The answer, or none for a kind that nothing computes.
pub(crate) fn of(catalog: &Catalog, kind: &str, input: &Value) -> Option<Answer> {
    Some(match kind {
        "weight_bytes" => weight_bytes(catalog, input),
        "op_time" => op_time(catalog, input),
        "prefill_time" => batch(catalog, input, |r, b| r.prefill_seconds(b.batch, b.prefill)),
        "decode_step_time" => batch(catalog, input, |r, b| r.decode_step_seconds(b.batch, b.context)),
        "latency" => batch(catalog, input, |r, b| r.latency_seconds(b.batch, b.prefill, b.decode)),
        "comm_time" => batch(catalog, input, |r, b| r.all_reduce_seconds(b.batch, b.tokens)),
        "feasible" => variant(catalog, input, |v, _| json!(v.weights_fit(WEIGHTS_RATIO))),
        "max_batch" => variant(catalog, input, |v, b| json!(v.batch_max(b.tokens, MEMORY_RATIO))),
        "weight_transfer_time" => transfer(catalog, input),
        "reconfig" => reconfig(catalog, input),
        "ot_step" => ot_step(catalog, input),
        "ot_simulate" => ot_simulate(catalog, input),
        "makespan" | "serve" | "t_total" | "table1_maxmin" => place::of(catalog, kind, input),
        "ot_generate" => variant(catalog, input, |v, b| {
            let costs = StepCosts::new(v, Factors::IDEAL);
            json!(costs.prefill_seconds(b.batch, b.prefill) + costs.decode_seconds(b.batch, b.prefill, b.decode))
        }),
        _ => return None,
    })
}

/// A variant and a batch; what a kind has no use for is 0.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Batch {
    model: String,
    gpu: String,
    tp: u32,
    batch: f64,
    prefill: f64,
    decode: f64,
    context: f64,
    tokens: f64,
}

fn variant(catalog: &Catalog, input: &Value, answer: impl Fn(&Variant<'_>, &Batch) -> Value) -> Answer {
    let batch = Batch::deserialize(input)?;
    let variant = Variant::new(catalog.model(&batch.model)?, catalog.accelerator(&batch.gpu)?, batch.tp)?;
    Ok(answer(&variant, &batch))
}

fn batch(catalog: &Catalog, input: &Value, answer: impl Fn(&Roofline, &Batch) -> f64) -> Answer {
    variant(catalog, input, |variant, batch| json!(answer(&Roofline::new(variant), batch)))
}

fn weight_bytes(catalog: &Catalog, input: &Value) -> Answer {
    Ok(json!(catalog.model(&Batch::deserialize(input)?.model)?.weight_bytes_eq2()))
}

fn op_time(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Operator {
        gpu: String,
        flops: f64,
        bytes: f64,
    }
    let operator = Operator::deserialize(input)?;
    Ok(json!(operator_seconds(catalog.accelerator(&operator.gpu)?, operator.flops, operator.bytes)))
}

fn transfer(catalog: &Catalog, input: &Value) -> Answer {
    let asked = Batch::deserialize(input)?;
    let (model, accelerator) = (catalog.model(&asked.model)?, catalog.accelerator(&asked.gpu)?);
    Ok(json!({
        "coeff": transfer_coefficient(model.weight_bytes_eq2()),
        "tau": transfer_seconds(model, accelerator),
    }))
}

#[derive(Debug, Deserialize)]
struct Replicas {
    gpu: String,
    tp: u32,
    count: u32,
}

type Placement = BTreeMap<String, Vec<Replicas>>;

fn groups<'a>(catalog: &'a Catalog, placement: &Placement) -> Result<Vec<Group<'a>>, Box<dyn Error>> {
    let mut groups = Vec::new();
    for (model, replicas) in placement {
        for Replicas { gpu, tp, count } in replicas {
            let (model, accelerator) = (catalog.model(model)?, catalog.accelerator(gpu)?);
            groups.push(Group { model, accelerator, tp: *tp, count: *count });
        }
    }
    Ok(groups)
}

fn reconfig(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Change {
        old: Placement,
        new: Placement,
        literal: bool,
    }
    let change = Change::deserialize(input)?;
    let scope = if change.literal { LoadScope::All } else { LoadScope::Changed };
    let cost = reconfiguration(&groups(catalog, &change.old)?, &groups(catalog, &change.new)?, scope);
    Ok(json!({"term": cost.terminate_seconds, "load": cost.load_seconds, "total": cost.total_seconds()}))
}

fn ot_step(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Work {
        model: String,
        gpu: String,
        tp: u32,
        prefill: Vec<(f64, f64)>,
        decode: Vec<f64>,
        cal: Option<BTreeMap<String, f64>>,
    }
    let work = Work::deserialize(input)?;
    let mut factors = Factors::IDEAL;
    for (name, value) in work.cal.into_iter().flatten() {
        *match name.as_str() {
            "ec" => &mut factors.compute_ratio,
            "eb" => &mut factors.bandwidth_ratio,
            "ea" => &mut factors.attention_ratio,
            "layer" => &mut factors.layer_seconds,
            "step" => &mut factors.step_seconds,
            "seq" => &mut factors.sequence_seconds,
            "alpha" => &mut factors.all_reduce_seconds,
            "beta" => &mut factors.link_ratio,
            _ => return Err(format!("no factor is called {name}").into()),
        } = value;
    }
    let prefill = work.prefill.iter().fold(Step::default(), |step, (tokens, before)| step.prefill(*tokens, *before));
    let step = prefill.decode(work.decode.len() as f64, work.decode.iter().sum());
    let variant = Variant::new(catalog.model(&work.model)?, catalog.accelerator(&work.gpu)?, work.tp)?;
    Ok(json!(StepCosts::new(&variant, factors).step_seconds(&step)))
}

/// One replica and its requests: the paper's second stage.
fn ot_simulate(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Work {
        model: String,
        gpu: String,
        tp: u32,
        requests: Vec<(f64, u32, u32)>,
        max_seqs: Option<u32>,
        #[serde(default)]
        chunked: bool,
        max_tokens: Option<u32>,
    }
    let work = Work::deserialize(input)?;
    let variant = Variant::new(catalog.model(&work.model)?, catalog.accelerator(&work.gpu)?, work.tp)?;
    let usual = Limits::of(&variant).ok_or("the weights do not fit")?;
    let limits = Limits {
        batching: if work.chunked { Batching::Chunked } else { Batching::WholePrompts },
        sequences_max: work.max_seqs.unwrap_or(usual.sequences_max),
        step_tokens_max: work.max_tokens.unwrap_or(u32::MAX),
        ..usual
    };
    let member = Member::new(StepCosts::new(&variant, Factors::IDEAL), limits);
    let arrivals = work.requests.iter().map(|(at, prompt, answer)| Arrival::new(*at, *prompt, *answer));
    let mut served = serve(&[member], arrivals, &mut RoundRobin::default(), Rules::default()).served;
    served.sort_by_key(|served| served.request);
    let of = |value: fn(&Served) -> f64| served.iter().map(value).collect::<Vec<_>>();
    Ok(json!({"ttft": of(Served::ttft_seconds), "e2e": of(Served::latency_seconds)}))
}
