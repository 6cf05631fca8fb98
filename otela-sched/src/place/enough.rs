//! The cheapest way to give every model what it needs, where each thing that is given is whole: a node, not an accelerator.

use super::USUAL_WORK;
use super::cover::{Cover, CoverWay, TooManyTypes};

/// Things of equal kind that are given to models whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kind {
    /// How many there are.
    pub count: u32,
    /// What one costs, in any unit.
    pub cost: f64,
}

/// What one thing of a kind gives to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Gives {
    /// Of which kind, by its place.
    pub kind: usize,
    /// How much of each of the model's needs.
    pub of: Vec<f64>,
}

/// How many things of each kind every model gets, so that all have what they need and what is given costs least; none if
/// that cannot be. `needs` are by model, `gives` by model what it can use; all with as many needs each. Exact, unless the
/// combinations are more than can be gone through in about a second.
///
/// # Errors
/// [`TooManyTypes`].
pub fn least_enough(
    kinds: &[Kind],
    needs: &[Vec<f64>],
    gives: &[Vec<Gives>],
) -> Result<Option<Vec<Vec<u32>>>, TooManyTypes> {
    if kinds.is_empty() {
        let nothing = needs.iter().flatten().all(|need| *need <= 0.0);
        return Ok(nothing.then(|| vec![Vec::new(); needs.len()]));
    }
    let way = |gives: &Gives| CoverWay { pool: gives.kind, used: 1, covers: gives.of.clone() };
    let cover = Cover {
        stock: kinds.iter().map(|kind| kind.count).collect(),
        demands: needs.to_vec(),
        ways: gives.iter().map(|gives| gives.iter().map(way).collect()).collect(),
    };
    let costs: Vec<f64> = kinds.iter().map(|kind| kind.cost).collect();
    let (best, _) = cover.cheapest_cover(&costs, USUAL_WORK)?;
    Ok(best.map(|(_, counts)| {
        let of_model = |(counts, gives): (&Vec<u32>, &Vec<Gives>)| {
            let mut by_kind = vec![0; kinds.len()];
            for (count, gives) in counts.iter().zip(gives) {
                by_kind[gives.kind] += count;
            }
            by_kind
        };
        counts.iter().zip(gives).map(of_model).collect()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By trying all.
    fn least(kinds: &[Kind], needs: &[Vec<f64>], gives: &[Vec<Gives>], model: usize, left: &mut [u32]) -> Option<f64> {
        if model == needs.len() {
            return Some(0.0);
        }
        let mut best: Option<f64> = None;
        let all: Vec<u32> = left.to_vec();
        let tries = all.iter().fold(1, |tries, count| tries * (count + 1));
        for nth in 0..tries {
            let (mut rest, mut given) = (nth, Vec::new());
            for count in &all {
                given.push(rest % (count + 1));
                rest /= count + 1;
            }
            let has = |need: usize| -> f64 {
                gives[model].iter().map(|gives| f64::from(given[gives.kind]) * gives.of[need]).sum()
            };
            let usable = given.iter().enumerate().all(|(k, n)| *n == 0 || gives[model].iter().any(|g| g.kind == k));
            if !usable || (0..needs[model].len()).any(|need| has(need) < needs[model][need] - 1e-9) {
                continue;
            }
            let mut left: Vec<u32> = all.iter().zip(&given).map(|(all, given)| all - given).collect();
            let cost: f64 = given.iter().zip(kinds).map(|(given, kind)| f64::from(*given) * kind.cost).sum();
            if let Some(others) = least(kinds, needs, gives, model + 1, &mut left) {
                best = Some(best.map_or(cost + others, |best| best.min(cost + others)));
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn nothing_cheaper_is_enough(
            kinds in prop::collection::vec((1..4u32, 1..9u32), 1..3),
            needs in prop::collection::vec((0..9u32, 0..3u32), 1..4),
            gives in prop::collection::vec(prop::collection::vec(prop::option::of(1..6u32), 3), 4),
        ) {
            let kinds: Vec<Kind> =
                kinds.into_iter().map(|(count, cost)| Kind { count, cost: f64::from(cost) }).collect();
            let needs: Vec<Vec<f64>> = needs.into_iter().map(|(a, b)| vec![f64::from(a), f64::from(b)]).collect();
            let gives: Vec<Vec<Gives>> = gives[..needs.len()]
                .iter()
                .map(|of| {
                    let of_kinds = of.iter().take(kinds.len()).enumerate();
                    let some = of_kinds.filter_map(|(kind, of)| of.map(|of| (kind, of)));
                    some.map(|(kind, of)| Gives { kind, of: vec![f64::from(of), 1.0] }).collect()
                })
                .collect();
            let found = least_enough(&kinds, &needs, &gives).unwrap();
            let cost = found.map(|given| {
                let counts = (0..kinds.len()).map(|kind| given.iter().map(|of| of[kind]).sum::<u32>());
                let counts: Vec<u32> = counts.collect();
                assert!(counts.iter().zip(&kinds).all(|(count, kind)| *count <= kind.count));
                counts.iter().zip(&kinds).map(|(count, kind)| f64::from(*count) * kind.cost).sum::<f64>()
            });
            let mut left: Vec<u32> = kinds.iter().map(|kind| kind.count).collect();
            let best = least(&kinds, &needs, &gives, 0, &mut left);
            prop_assert_eq!(cost.is_some(), best.is_some());
            if let (Some(cost), Some(best)) = (cost, best) {
                prop_assert!((cost - best).abs() < 1e-6, "{cost} {best}");
            }
        }
    }
}
