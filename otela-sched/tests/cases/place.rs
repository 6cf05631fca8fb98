//! What the placement solver says to a case's input.

use crate::compute::Answer;
use otela_sched::{
    catalog::Catalog,
    place::{
        Demand, Instance, Load, Options, Placement, Pool, Problem, Replicas, Slot, largest_share, least_makespan,
        serve_seconds, total,
    },
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, error::Error};

#[derive(Debug, Deserialize)]
struct Work {
    requests: u64,
    prefill: f64,
    decode: f64,
}

type Works = BTreeMap<String, Work>;
type Cluster = BTreeMap<String, u32>;
type Plan = BTreeMap<String, Vec<Placed>>;

#[derive(Debug, Deserialize)]
struct Placed {
    gpu: String,
    tp: u32,
    count: u32,
}

/// What a case says of replicas.
#[derive(Debug, Default, Deserialize)]
struct Allowed {
    tps: Option<Vec<u32>>,
    #[serde(default)]
    cap: Option<u64>,
    kv: Option<bool>,
    #[serde(default)]
    div: bool,
}

pub(crate) fn of(catalog: &Catalog, kind: &str, input: &Value) -> Answer {
    match kind {
        "makespan" => makespan(catalog, input),
        "serve" => serve(catalog, input),
        "t_total" => t_total(catalog, input),
        _ => table1(input),
    }
}

fn problem<'a>(
    catalog: &'a Catalog,
    works: &Works,
    cluster: &Cluster,
    allowed: &Allowed,
) -> Result<Problem<'a>, Box<dyn Error>> {
    let mut demands = Vec::new();
    for (model, work) in works {
        let load = Load { requests: work.requests, prompt: work.prefill, answer: work.decode };
        demands.push(Demand { model: catalog.model(model)?, load });
    }
    let mut pools = Vec::new();
    for (accelerator, count) in cluster {
        pools.push(Pool { accelerator: catalog.accelerator(accelerator)?, count: *count, block: None });
    }
    let options = Options {
        tps: allowed.tps.clone().unwrap_or_else(|| vec![1, 2, 4, 8]),
        batch_max: allowed.cap,
        holds_kv: allowed.kv.unwrap_or(true),
        divides: allowed.div,
        within_nodes: false,
        ..Options::default()
    };
    Ok(Problem { demands, pools, options })
}

fn placement(works: &Works, cluster: &Cluster, plan: &Plan) -> Placement {
    let pool = |gpu: &str| cluster.keys().position(|name| name == gpu).unwrap_or(usize::MAX);
    let of_model = |model: &String| {
        let placed = plan.get(model).into_iter().flatten();
        placed.map(|placed| Replicas { pool: pool(&placed.gpu), tp: placed.tp, count: placed.count }).collect()
    };
    works.keys().map(of_model).collect()
}

fn makespan(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Case {
        work: Works,
        cluster: Cluster,
    }
    let (case, allowed) = (Case::deserialize(input)?, Allowed::deserialize(input)?);
    let problem = problem(catalog, &case.work, &case.cluster, &allowed)?;
    let solution = least_makespan(&problem)?;
    if solution.bound < solution.makespan {
        return Err(format!("not proved: {} at least", solution.bound).into());
    }
    Ok(json!({"makespan": solution.makespan}))
}

fn serve(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Case {
        plan: Plan,
        work: Works,
        cluster: Cluster,
    }
    let (case, allowed) = (Case::deserialize(input)?, Allowed::deserialize(input)?);
    let problem = problem(catalog, &case.work, &case.cluster, &allowed)?;
    let seconds = serve_seconds(&problem, &placement(&case.work, &case.cluster, &case.plan));
    let per_model: BTreeMap<_, _> = case.work.keys().zip(&seconds).collect();
    Ok(json!({"makespan": seconds.iter().copied().fold(0.0, f64::max), "per_model": per_model}))
}

fn t_total(catalog: &Catalog, input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Moment {
        work: Works,
        cluster: Cluster,
    }
    #[derive(Deserialize)]
    struct Case {
        trace: Vec<Moment>,
        plans: Vec<Option<Plan>>,
        sched_s: f64,
    }
    let (case, allowed) = (Case::deserialize(input)?, Allowed::deserialize(input)?);
    let mut slots = Vec::new();
    for (moment, plan) in case.trace.iter().zip(&case.plans) {
        let problem = problem(catalog, &moment.work, &moment.cluster, &allowed)?;
        let placement = plan.as_ref().map(|plan| placement(&moment.work, &moment.cluster, plan));
        slots.push(Slot { problem, placement });
    }
    let sum = total(&slots, case.sched_s);
    Ok(json!({
        "N": sum.reschedules,
        "stale": sum.stale_seconds,
        "reconfig": sum.reconfiguration_seconds,
        "serve": sum.serve_seconds,
        "total": sum.seconds(),
        "throughput": sum.throughput(),
    }))
}

/// OpenTela's Table 1, from measured times of one instance for all requests.
fn table1(input: &Value) -> Answer {
    #[derive(Deserialize)]
    struct Measured {
        gpu: String,
        model: String,
        seconds: f64,
    }
    #[derive(Deserialize)]
    struct Case {
        instance_seconds: Vec<Measured>,
        duration: f64,
        gpus_per_instance: BTreeMap<String, u32>,
        cluster: Cluster,
    }
    let case = Case::deserialize(input)?;
    let instance = |model: &String, gpu: &String| {
        let measured = case.instance_seconds.iter().find(|measured| (&measured.gpu, &measured.model) == (gpu, model));
        let share = measured.map_or(0.0, |measured| case.duration / measured.seconds);
        Instance { accelerators: case.gpus_per_instance[model], share }
    };
    let of_model = |model| case.cluster.keys().map(|gpu| instance(model, gpu)).collect();
    let instances: Vec<Vec<Instance>> = case.gpus_per_instance.keys().map(of_model).collect();
    let counts: Vec<u32> = case.cluster.values().copied().collect();
    let shares = largest_share(&instances, &counts).ok_or("too many combinations")?;
    let given = shares.accelerators.iter().map(|given| case.cluster.keys().zip(given).collect::<BTreeMap<_, _>>());
    Ok(json!(case.gpus_per_instance.keys().zip(given).collect::<BTreeMap<_, _>>()))
}
