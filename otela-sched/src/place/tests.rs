use super::*;
use crate::catalog::Catalog;
use proptest::prelude::*;
use serve::{Waves, serve_model};

const MODELS: [&str; 4] = ["Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B"];
const TYPES: [&str; 5] = ["A100-80GB", "H100", "A100-40GB", "H200", "H20"];

fn problem<'a>(catalog: &'a Catalog, loads: &[(usize, u64, f64)], counts: &[u32], options: Options) -> Problem<'a> {
    let demand = |(model, requests, answer): &(usize, u64, f64)| Demand {
        model: catalog.model(MODELS[*model]).unwrap(),
        load: Load { requests: *requests, prompt: 256.0, answer: *answer },
    };
    let pool = |(name, count): (&&str, &u32)| Pool {
        accelerator: catalog.accelerator(name).unwrap(),
        count: *count,
        block: None,
    };
    Problem {
        demands: loads.iter().map(demand).collect(),
        pools: TYPES.iter().zip(counts).map(pool).collect(),
        options,
    }
}

/// Every set of replicas that one model can have.
fn every(problem: &Problem<'_>) -> Vec<Vec<Replicas>> {
    let mut sets = vec![Vec::new()];
    for (pool, of) in problem.pools.iter().enumerate() {
        for tp in &problem.options.tps {
            let more = sets.iter().flat_map(|set: &Vec<Replicas>| {
                (1..=of.count / tp).map(move |count| [set.clone(), vec![Replicas { pool, tp: *tp, count }]].concat())
            });
            let more: Vec<_> = more.collect();
            sets.extend(more);
        }
    }
    let fits = |set: &Vec<Replicas>| {
        taken(&vec![set.clone()], problem.pools.len())
            .iter()
            .zip(&problem.pools)
            .all(|(taken, pool)| *taken <= pool.count)
    };
    sets.into_iter().filter(fits).collect()
}

/// The least makespan, by trying everything.
fn brute_force(problem: &Problem<'_>) -> f64 {
    let sets = every(problem);
    let mut best: Vec<(Vec<u32>, f64)> = vec![(vec![0; problem.pools.len()], 0.0)];
    for demand in &problem.demands {
        let timed = sets
            .iter()
            .map(|set| (taken(&vec![set.clone()], problem.pools.len()), serve_model(problem, demand, set, Waves::One)));
        let timed: Vec<_> = timed.filter(|(_, seconds)| seconds.is_finite()).collect();
        let mut next: Vec<(Vec<u32>, f64)> = Vec::new();
        for (used, so_far) in &best {
            for (more, seconds) in &timed {
                let all: Vec<u32> = used.iter().zip(more).map(|(used, more)| used + more).collect();
                if all.iter().zip(&problem.pools).any(|(all, pool)| *all > pool.count) {
                    continue;
                }
                let worst = so_far.max(*seconds);
                match next.iter_mut().find(|(used, _)| *used == all) {
                    Some((_, best)) => *best = best.min(worst),
                    None => next.push((all, worst)),
                }
            }
        }
        best = next;
    }
    best.into_iter().map(|(_, seconds)| seconds).fold(f64::INFINITY, f64::min)
}

fn loads(models: usize) -> impl Strategy<Value = Vec<(usize, u64, f64)>> {
    prop::collection::vec((0..MODELS.len(), 1..400u64, 64.0..4096.0f64), 1..=models)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_better_than_the_least_makespan(
        loads in loads(3), counts in prop::collection::vec(0..5u32, 1..3), cap in prop::option::of(1..64u64), divides: bool,
    ) {
        let catalog = Catalog::builtin();
        let options = Options { tps: vec![1, 2, 4], batch_max: cap, divides, ..Options::default() };
        let problem = problem(&catalog, &loads, &counts, options);
        let expected = brute_force(&problem);
        match least_makespan(&problem) {
            Ok(found) => {
                prop_assert!((found.makespan - expected).abs() <= 1e-9 * expected, "{:?} {}", found, expected);
                prop_assert_eq!(found.bound, found.makespan);
            }
            Err(error) => prop_assert!(expected.is_infinite(), "{} {}", error, expected),
        }
    }

    #[test]
    fn placements_keep_to_what_there_is(
        loads in loads(6), counts in prop::collection::vec(0..24u32, 1..4), holds_kv: bool, within_nodes: bool,
    ) {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, &loads, &counts, Options { holds_kv, within_nodes, ..Options::default() });
        if let Ok(found) = least_makespan(&problem) {
            let taken = taken(&found.placement, problem.pools.len());
            prop_assert!(taken.iter().zip(&problem.pools).all(|(taken, pool)| *taken <= pool.count));
            for (demand, replicas) in problem.demands.iter().zip(&found.placement) {
                for group in replicas {
                    let variant = crate::sim::Variant::new(demand.model, problem.pools[group.pool].accelerator, group.tp).unwrap();
                    prop_assert!(variant.weights_fit(crate::sim::WEIGHTS_RATIO) && variant.divides());
                    prop_assert!(!within_nodes || variant.within_node());
                }
            }
            let seconds = serve_seconds(&problem, &found.placement);
            prop_assert_eq!(&seconds, &found.seconds, "nobody needs waves");
            prop_assert!(found.bound <= found.makespan);
            // What prices show is never more than what there is.
            let choices: Vec<_> = problem.demands.iter().map(|demand| choice::Choice::all(&problem, demand)).collect();
            prop_assert!(bound::lower_bound(&problem, &choices, found.makespan) <= found.makespan * (1.0 + 1e-9));
        }
    }

    #[test]
    fn more_accelerators_are_never_worse(loads in loads(4), counts in prop::collection::vec(1..12u32, 2..3), more in 0..2usize) {
        let catalog = Catalog::builtin();
        let smaller = problem(&catalog, &loads, &counts, Options::default());
        let mut counts = counts;
        counts[more] += 3;
        let larger = problem(&catalog, &loads, &counts, Options::default());
        if let Ok(small) = least_makespan(&smaller) {
            let large = least_makespan(&larger).unwrap();
            prop_assert!(large.makespan <= small.makespan * (1.0 + 1e-12));
        }
    }
}

#[test]
fn what_is_left_over_goes_where_it_helps() {
    let catalog = Catalog::builtin();
    let found =
        least_makespan(&problem(&catalog, &[(0, 40, 500.0), (2, 64, 2000.0)], &[24], Options::default())).unwrap();
    let used: u32 = taken(&found.placement, 1).iter().sum();
    assert!(used >= 20, "{found:?}");
    // The small model is not left with the one accelerator that the makespan asks for.
    assert!(taken(&vec![found.placement[0].clone()], 1)[0] > 1, "{found:?}");
}

#[test]
fn what_cannot_be_placed_is_told() {
    let catalog = Catalog::builtin();
    let told = |loads: &[(usize, u64, f64)], counts: &[u32]| {
        least_makespan(&problem(&catalog, loads, counts, Options::default())).unwrap_err().to_string()
    };
    assert!(told(&[(3, 1, 100.0)], &[0]).starts_with("Qwen2.5-32B: its load cannot be served at once"));
    assert!(told(&[(1, 100_000, 4000.0)], &[2]).contains("keys and values do not fit at once"));
    assert!(told(&[(2, 8, 100.0), (3, 8, 100.0), (2, 8, 100.0)], &[2]).contains("not enough accelerators for all"));
}

#[test]
fn where_there_is_too_much_to_go_through_a_bound_says_how_good_it_is() {
    let catalog = Catalog::builtin();
    let loads = [(1, 2000, 500.0), (2, 3000, 2000.0)];
    let found = least_makespan(&problem(&catalog, &loads, &[32; 5], Options::default())).unwrap();
    assert!(found.bound < found.makespan && found.makespan <= 1.05 * found.bound, "{} {}", found.makespan, found.bound);
}

#[test]
fn replicas_without_room_take_waves_and_none_take_for_ever() {
    let catalog = Catalog::builtin();
    let problem = problem(&catalog, &[(1, 10_000, 4000.0)], &[2], Options::default());
    let one = vec![vec![Replicas { pool: 0, tp: 1, count: 2 }]];
    let half = vec![vec![Replicas { pool: 0, tp: 1, count: 1 }]];
    let seconds = |placement| serve_seconds(&problem, &placement)[0];
    assert!(seconds(one.clone()).is_finite() && seconds(half) > 1.8 * seconds(one));
    assert!(seconds(vec![vec![]]).is_infinite());
}

#[test]
fn the_example_of_the_docs_is_solved_and_explained() {
    let docs = include_str!("../../../docs/scheduler.md");
    let begin = docs.find("```toml\n").unwrap() + 8;
    let text = &docs[begin..begin + docs[begin..].find("```").unwrap()];
    let catalog = Catalog::builtin();
    let problem = ProblemFile::read("docs.toml", text).unwrap().problem("docs.toml", &catalog).unwrap();
    let solution = least_makespan(&problem).unwrap();
    let explanation = explain(&problem, &solution);
    assert_eq!(solution.seconds[explanation.slowest], solution.makespan);
    assert!(explanation.more.len() == 4 && explanation.more.iter().all(|more| more.makespan <= solution.makespan));
    assert!(explanation.more.iter().any(|more| more.makespan < solution.makespan), "{explanation:?}");
}

#[test]
fn problems_that_cannot_be_read_are_told() {
    let told = |name: &str, text: &str| {
        let read = ProblemFile::read(name, text);
        read.and_then(|file| file.problem(name, &Catalog::builtin()).map(drop)).unwrap_err().to_string()
    };
    let model = |name: &str| {
        format!(
            "accelerators = {{ H100 = 8 }}\nmodels = [{{ model = '{name}', requests = 1, prompt = 1, answer = 1 }}]\n"
        )
    };
    assert!(told("p.toml", &model("Qwen2.5-8B")).starts_with("p.toml: the catalog has no model"));
    assert!(told("p.toml", &model("Qwen2.5-7B").replace("H100", "H101")).contains("H100"));
    assert!(told("p.toml", &format!("{}tps = [0]", model("Qwen2.5-7B"))).contains("tps are numbers from 1 on"));
    assert!(told("p.toml", &model("Qwen2.5-7B").replace("prompt = 1", "prompt = 0")).contains("one token at least"));
    assert!(told("p.toml", "accelerators = {}\nmodels = []").contains("one of each at least"));
    assert!(told("p.toml", "accelerator = 1").starts_with("p.toml: line 1: unknown field"));
    assert!(told("p.json", "{").starts_with("p.json: EOF"));
}
