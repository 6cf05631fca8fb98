use super::{Cover, CoverWay, Verdict};
use crate::{
    catalog::Catalog,
    place::{Demand, Load, Options, Pool, Problem, USUAL_WORK, least_makespan, several::Workloads},
};
use microlp::{ComparisonOp, Error, OptimizationDirection};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

/// Whether replicas cover all demands with what there is.
fn is_cover(cover: &Cover, counts: &[Vec<u32>]) -> bool {
    let mut left: Vec<i64> = cover.stock.iter().copied().map(i64::from).collect();
    for (model, (ways, counts)) in cover.ways.iter().zip(counts).enumerate() {
        for (way, count) in ways.iter().zip(counts) {
            left[way.pool] -= i64::from(way.used * count);
        }
        for (nth, demand) in cover.demands[model].iter().enumerate() {
            let covers: f64 = ways.iter().zip(counts).map(|(way, count)| way.covers[nth] * f64::from(*count)).sum();
            if covers < demand - 1e-9 * demand {
                return false;
            }
        }
    }
    left.iter().all(|left| *left >= 0)
}

/// Whether there is any cover, by looking at all.
fn any_cover(cover: &Cover, model: usize, way: usize, left: &mut Vec<u32>, rest: &[f64]) -> bool {
    if rest.iter().all(|rest| *rest <= 1e-9) {
        return match cover.demands.get(model + 1) {
            None => true,
            Some(rest) => any_cover(cover, model + 1, 0, left, rest),
        };
    }
    let Some(of) = cover.ways[model].get(way) else { return false };
    for count in 0..=left[of.pool] / of.used {
        left[of.pool] -= of.used * count;
        let after: Vec<f64> = rest.iter().zip(&of.covers).map(|(r, c)| r - c * f64::from(count)).collect();
        let found = any_cover(cover, model, way + 1, left, &after);
        left[of.pool] += of.used * count;
        if found {
            return true;
        }
    }
    false
}

fn way(pools: usize, workloads: usize) -> impl Strategy<Value = CoverWay> {
    (0..pools, 0..3_u32, proptest::collection::vec(0..7_u32, workloads)).prop_map(|(pool, power, covers)| CoverWay {
        pool,
        used: 1 << power,
        covers: covers.into_iter().map(f64::from).collect(),
    })
}

fn covers() -> impl Strategy<Value = Cover> {
    (1..4_usize, 1..4_usize, 1..3_usize).prop_flat_map(|(pools, models, workloads)| {
        (
            proptest::collection::vec(0..7_u32, pools),
            proptest::collection::vec(proptest::collection::vec(0..14_u32, workloads), models),
            proptest::collection::vec(proptest::collection::vec(way(pools, workloads), 0..5), models),
        )
            .prop_map(|(stock, demands, ways)| Cover {
                stock,
                demands: demands.into_iter().map(|of| of.into_iter().map(f64::from).collect()).collect(),
                ways,
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_cover_is_found_exactly_if_there_is_one(cover in covers()) {
        let (verdict, _) = cover.solve(USUAL_WORK).unwrap();
        let mut left = cover.stock.clone();
        let is_there = any_cover(&cover, 0, 0, &mut left, &cover.demands[0]);
        match verdict {
            Verdict::Covered(counts) => prop_assert!(is_cover(&cover, &counts), "{counts:?}"),
            Verdict::Impossible => prop_assert!(!is_there),
            Verdict::Unknown => prop_assert!(false, "this is small"),
        }
    }

    #[test]
    fn with_little_work_nothing_is_claimed_that_is_not_so(cover in covers()) {
        let (verdict, _) = cover.solve(10).unwrap();
        let mut left = cover.stock.clone();
        let is_there = any_cover(&cover, 0, 0, &mut left, &cover.demands[0]);
        match verdict {
            Verdict::Covered(counts) => prop_assert!(is_cover(&cover, &counts)),
            Verdict::Impossible => prop_assert!(!is_there),
            Verdict::Unknown => {}
        }
    }

    #[test]
    fn the_cheapest_cover_is_the_cheapest(cover in covers(), prices in proptest::collection::vec(0..9_u32, 3)) {
        let prices: Vec<f64> = prices.into_iter().map(f64::from).take(cover.stock.len()).collect();
        let (best, bound) = cover.cheapest_cover(&prices, USUAL_WORK).unwrap();
        let mut left = cover.stock.clone();
        let cheapest = cheapest(&cover, &prices, 0, 0, &mut left, &cover.demands[0]);
        match best {
            None => prop_assert!(cheapest.is_infinite()),
            Some((cost, counts)) => {
                prop_assert!(is_cover(&cover, &counts));
                prop_assert!((cost - cheapest).abs() < 1e-9 && bound == cost, "{cost} {cheapest} {bound}");
            }
        }
    }
}

/// The price of the cheapest cover, by looking at all.
fn cheapest(cover: &Cover, prices: &[f64], model: usize, way: usize, left: &mut Vec<u32>, rest: &[f64]) -> f64 {
    if rest.iter().all(|rest| *rest <= 1e-9) {
        return match cover.demands.get(model + 1) {
            None => 0.0,
            Some(rest) => cheapest(cover, prices, model + 1, 0, left, rest),
        };
    }
    let Some(of) = cover.ways[model].get(way) else { return f64::INFINITY };
    let mut least = f64::INFINITY;
    for count in 0..=left[of.pool] / of.used {
        left[of.pool] -= of.used * count;
        let after: Vec<f64> = rest.iter().zip(&of.covers).map(|(r, c)| r - c * f64::from(count)).collect();
        let price = f64::from(of.used * count) * prices[of.pool];
        least = least.min(price + cheapest(cover, prices, model, way + 1, left, &after));
        left[of.pool] += of.used * count;
    }
    least
}

/// What another solver says: a mixed-integer one that knows nothing of what the problem is.
fn other_solver(cover: &Cover) -> Option<bool> {
    let mut problem = microlp::Problem::new(OptimizationDirection::Minimize);
    let mut taken: Vec<Vec<(microlp::Variable, f64)>> = vec![Vec::new(); cover.stock.len()];
    for (model, ways) in cover.ways.iter().enumerate() {
        let mut covered = Vec::new();
        for way in ways.iter().filter(|way| way.covers[0] > 0.0) {
            let most = cover.stock[way.pool] / way.used;
            let count = problem.add_integer_var(f64::from(way.used), (0, i32::try_from(most).unwrap()));
            covered.push((count, way.covers[0]));
            taken[way.pool].push((count, f64::from(way.used)));
        }
        if cover.demands[model][0] > 0.0 {
            problem.add_constraint(&covered, ComparisonOp::Ge, cover.demands[model][0]);
        }
    }
    for (taken, stock) in taken.iter().zip(&cover.stock) {
        problem.add_constraint(taken, ComparisonOp::Le, f64::from(*stock));
    }
    match problem.solve() {
        Ok(_) => Some(true),
        Err(Error::Infeasible) => Some(false),
        // It says of itself that it may fail.
        Err(_) => None,
    }
}

/// Two solvers that know nothing of the first one agree with it, at the least makespan and just under it.
fn agree(problems: u64) {
    let catalog = Catalog::builtin();
    let models = ["Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Llama-3.1-8B", "CodeLlama-34b"];
    let types = ["A100-40GB", "A100-80GB", "H100", "GH200", "H20"];
    let (mut solved, mut agreed) = (0, 0);
    for seed in 0..problems {
        let mut random = StdRng::seed_from_u64(seed);
        let pools: Vec<&str> = types.sample(&mut random, 2).copied().collect();
        let pools = pools.into_iter().map(|name| Pool {
            accelerator: catalog.accelerator(name).unwrap(),
            count: random.random_range(2..14),
            block: None,
        });
        let pools: Vec<Pool<'_>> = pools.collect();
        let demands: Vec<&str> = models.sample(&mut random, 3).copied().collect();
        let demands = demands.into_iter().map(|name| Demand {
            model: catalog.model(name).unwrap(),
            load: Load {
                requests: random.random_range(1..120),
                prompt: 128.0,
                answer: f64::from(random.random_range(50..900_u32)),
            },
        });
        let problem = Problem { demands: demands.collect(), pools, options: Options::default() };
        let at = |deadline: f64| Workloads::new(std::slice::from_ref(&problem)).cover(&[deadline]);
        let ours = |deadline: f64| at(deadline).solve(USUAL_WORK).unwrap().0;
        let Ok(found) = least_makespan(&problem) else {
            assert_eq!(ours(f64::INFINITY), Verdict::Impossible, "seed {seed}");
            assert_ne!(other_solver(&at(f64::INFINITY)), Some(true), "seed {seed}");
            continue;
        };
        solved += 1;
        let (above, below) = (found.makespan * (1.0 + 1e-12), found.makespan * (1.0 - 1e-9));
        let Verdict::Covered(counts) = ours(above) else { panic!("seed {seed}: {found:?}") };
        assert!(is_cover(&at(above), &counts), "seed {seed}");
        assert_eq!(ours(below), Verdict::Impossible, "seed {seed}: {found:?}");
        let (at_it, under_it) = (other_solver(&at(above)), other_solver(&at(below)));
        assert!(at_it != Some(false) && under_it != Some(true), "seed {seed}: {at_it:?} {under_it:?} {found:?}");
        agreed += u32::from(at_it == Some(true)) + u32::from(under_it == Some(false));
    }
    assert!(solved * 2 > problems && u64::from(agreed) > solved, "{agreed} of {solved}: the other solver said nothing");
}

#[test]
fn other_solvers_agree_at_two_hundred_optima_and_just_under_them() {
    agree(200);
}
