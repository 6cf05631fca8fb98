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
    brute_force_of(problem, |_, _| true)
}

/// The same of placements in which a model may have only some of all sets of replicas.
fn brute_force_of(problem: &Problem<'_>, may: impl Fn(usize, &[u32]) -> bool) -> f64 {
    let sets = every(problem);
    let mut best: Vec<(Vec<u32>, f64)> = vec![(vec![0; problem.pools.len()], 0.0)];
    for (model, demand) in problem.demands.iter().enumerate() {
        let timed = sets
            .iter()
            .map(|set| (taken(&vec![set.clone()], problem.pools.len()), serve_model(problem, demand, set, Waves::One)));
        let timed: Vec<_> = timed.filter(|(used, seconds)| seconds.is_finite() && may(model, used)).collect();
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
    fn nothing_with_fewer_for_the_slowest_is_better_than_the_next_best(
        loads in loads(3), counts in prop::collection::vec(1..5u32, 1..3),
    ) {
        let catalog = Catalog::builtin();
        let options = Options { tps: vec![1, 2, 4], ..Options::default() };
        let problem = problem(&catalog, &loads, &counts, options);
        if let Ok(solution) = least_makespan(&problem) {
            let found = explain(&problem, &solution);
            let has = taken(&vec![solution.placement[found.slowest].clone()], problem.pools.len());
            let fewer = |used: &[u32]| used.iter().zip(&has).any(|(used, has)| used < has);
            let expected = brute_force_of(&problem, |model, used| model != found.slowest || fewer(used));
            match found.next_best {
                Some(next) => {
                    prop_assert!((next.solution.makespan - expected).abs() <= 1e-9 * expected, "{:?} {}", next, expected);
                    let used = taken(&vec![next.solution.placement[found.slowest].clone()], problem.pools.len());
                    prop_assert!(used[next.pool] < has[next.pool]);
                    prop_assert!(next.solution.makespan >= solution.makespan);
                }
                None => prop_assert!(expected.is_infinite(), "{}", expected),
            }
        }
    }

    #[test]
    fn no_placement_bears_a_larger_share(
        loads in loads(2), counts in prop::collection::vec(0..5u32, 1..3), rates in prop::collection::vec(0.0..9.0f64, 2),
    ) {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, &loads, &counts, Options { tps: vec![1, 2], ..Options::default() });
        let rates = &rates[..loads.len()];
        let bears = |model: usize, set: &[Replicas]| -> f64 {
            let does = set.iter().map(|replicas| Form::of(&problem, model, *replicas).map_or(0.0, |f| f.rate_max() * f64::from(replicas.count)));
            if rates[model] > 0.0 { does.sum::<f64>() / rates[model] } else { f64::INFINITY }
        };
        let sets = every(&problem);
        let fits = |placement: &Placement| {
            taken(placement, problem.pools.len()).iter().zip(&problem.pools).all(|(taken, pool)| *taken <= pool.count)
        };
        let least = |placement: &Placement| placement.iter().enumerate().map(|(m, set)| bears(m, set)).fold(f64::INFINITY, f64::min);
        let mut expected = 0.0_f64;
        for one in &sets {
            for other in if loads.len() == 2 { &sets[..] } else { &sets[..1] } {
                let placement: Placement = [one.clone(), other.clone()].into_iter().take(loads.len()).collect();
                if fits(&placement) {
                    expected = expected.max(least(&placement));
                }
            }
        }
        match largest_bearing(&problem, rates, |_, form| form.rate_max()).unwrap() {
            Some(found) => {
                prop_assert!(fits(&found.placement));
                let share = found.shares.iter().copied().fold(f64::INFINITY, f64::min);
                prop_assert!((share - expected).abs() <= 1e-9 * expected, "{:?} {}", found, expected);
                prop_assert!((least(&found.placement) - share).abs() <= 1e-9 * share);
            }
            None => prop_assert!(expected == 0.0 || rates.iter().all(|rate| *rate == 0.0), "{}", expected),
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
fn what_is_left_over_goes_where_it_is_told_to() {
    let catalog = Catalog::builtin();
    let placed = |spare| {
        let options = Options { spare, ..Options::default() };
        let found =
            least_makespan(&problem(&catalog, &[(0, 40, 500.0), (1, 8, 500.0), (2, 64, 2000.0)], &[24], options));
        found.unwrap()
    };
    let given = |found: &Solution| -> Vec<u32> {
        found.placement.iter().map(|replicas| taken(&vec![replicas.clone()], 1)[0]).collect()
    };
    let all = [Spare::Idle, Spare::Slowest, Spare::Evenly].map(placed);
    let [idle, slowest, evenly] = [0, 1, 2].map(|nth| given(&all[nth]));
    assert!(all.iter().all(|found| found.makespan == found.bound), "none is worse for it: {all:?}");
    assert!(all.windows(2).all(|pair| pair[0].makespan == pair[1].makespan));
    let more = |with: &[u32]| with.iter().zip(&idle).map(|(with, idle)| with - idle).collect::<Vec<_>>();
    assert!(idle.iter().sum::<u32>() < 24 && more(&slowest).iter().sum::<u32>() > 0, "{idle:?} {slowest:?} {evenly:?}");
    let apart = |more: &[u32]| more.iter().max().unwrap() - more.iter().min().unwrap();
    assert!(apart(&more(&evenly)) <= apart(&more(&slowest)), "{idle:?} {slowest:?} {evenly:?}");
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
fn the_simulated_example_of_the_docs_is_read() {
    let docs = include_str!("../../../docs/scheduler.md");
    let text = docs.split("```toml\n").find(|text| text.contains("judge = \"simulate\"\nengine")).unwrap();
    let text = &text[..text.find("```").unwrap()];
    let catalog = Catalog::builtin();
    let file = ProblemFile::read("docs.toml", text).unwrap();
    let problem = file.problem("docs.toml", &catalog).unwrap();
    assert_eq!((file.judge, file.rates(), problem.demands[0].load.prompt), (Judge::Simulate, vec![40.0], 700.0));
    let requests = file.requests();
    assert_eq!(requests[0].burstiness, 1.5);
    let simulation = Simulation { seconds: 5.0, seed: file.seed.unwrap() };
    let simulated = Simulated::new(&problem, requests, vec![crate::sim::Factors::IDEAL; 2], simulation).unwrap();
    let placement = vec![vec![Replicas { pool: 0, tp: 1, count: 2 }, Replicas { pool: 1, tp: 1, count: 1 }]];
    let seconds = mean_seconds(&problem, &file.rates(), &placement, &simulated);
    assert!(seconds[0] > 0.1 && seconds[0] < 60.0, "{seconds:?}");
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
    assert!(
        told("p.toml", &model("Qwen2.5-7B").replace("answer = 1", "answer = 'long'")).contains("how they are drawn")
    );
    let of = |keys: &str, load: &str| {
        format!("{keys}\n{}", model("Qwen2.5-7B").replace("requests = 1, prompt = 1", &format!("{load}, prompt = 1")))
    };
    let latency = "objective = 'latency'";
    let simulate = "objective = 'latency'\njudge = 'simulate'";
    for (keys, load, says) in [
        ("judge = 'simulate'", "requests = 1", "for the objectives latency and largest-share"),
        ("objective = 'cost'\njudge = 'simulate'\nengine = 'SGLang'", "requests = 1", "for the objectives latency and"),
        ("objective = 'latency'\nseed = 1", "rate = 1.0", "seed is for a simulation"),
        ("objective = 'latency'\nengine = 'vLLM'", "rate = 1.0", "engine is for a simulation"),
        (latency, "rate = 1.0, burstiness = 2.0", "burstiness is for a simulation"),
        (simulate, "rate = 1.0, burstiness = -1.0", "burstiness is a number from 0 on"),
        ("objective = 'largest-share'", "rate = 0.0", "no model has a rate"),
        ("objective = 'latency'\nspare = 'idle'", "rate = 1.0", "spare is for the makespan"),
        ("spare = 'all'", "requests = 1", "unknown variant"),
    ] {
        assert!(told("p.toml", &of(keys, load)).contains(says), "{keys} {load}: {}", told("p.toml", &of(keys, load)));
    }
    let drawn =
        of(simulate, "rate = 1.0").replace("answer = 1", "answer = { normal = { mean = -1.0, deviation = 1.0 } }");
    assert!(told("p.toml", &drawn).contains("a mean above 0"), "{}", told("p.toml", &drawn));
    assert!(told("p.json", "{").starts_with("p.json: EOF"));
}
