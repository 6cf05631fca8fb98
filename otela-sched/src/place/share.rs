//! The placement with the largest share of its load that every model can bear: what OpenTela's published Table 1 optimises.

use super::{
    combine::{Capacities, cells, fit},
    cover::TooManyTypes,
    knapsack,
    latency::Form,
    problem::{Placement, Problem, Replicas},
};

/// Grids with more cells than this are too large to be gone through.
const CELLS_MAX: usize = 1 << 20;

/// What one replica of a model on one pool is, and can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Instance {
    /// Accelerators.
    pub accelerators: u32,
    /// Of the model's whole load, the share that one can bear.
    pub share: f64,
}

/// A placement of replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// Accelerators by model and pool.
    pub accelerators: Vec<Vec<u32>>,
    /// Of its load, what each model can bear.
    pub shares: Vec<f64>,
}

/// The placement in which the smallest share is the largest; none if there is nothing to place, or far too much. `instances`
/// are by model and pool, `counts` the accelerators of each pool.
pub fn largest_share(instances: &[Vec<Instance>], counts: &[u32]) -> Option<Shares> {
    let of_pool = |instance: &Instance, count: u32| -> Vec<f64> {
        let whole = |k: u32| k / instance.accelerators.max(1);
        (0..=count).map(|k| f64::from(whole(k)) * instance.share).collect()
    };
    let capacities: Capacities = instances
        .iter()
        .map(|of_model| of_model.iter().zip(counts).map(|(instance, count)| of_pool(instance, *count)).collect())
        .collect();
    let best = largest(&capacities, counts)?;
    let narrow = |k: &usize| u32::try_from(*k).unwrap_or(u32::MAX);
    let accelerators = best.iter().map(|given| given.iter().map(narrow).collect()).collect();
    Some(Shares { accelerators, shares: shares(&capacities, &best) })
}

/// A placement of a problem's models by what they can bear.
#[derive(Debug, Clone, PartialEq)]
pub struct Bearing {
    /// What is placed. What would help none of those that bear least is left.
    pub placement: Placement,
    /// Of its load, what each model can bear; infinite for one without any.
    pub shares: Vec<f64>,
}

/// The placement in which the model that bears the smallest share of its load bears the largest; `rates` are the loads, in
/// requests a second, and `rate_max` says what a replica of a model does. None if there is no load, or if a model with a
/// load has no place at all.
///
/// # Errors
/// [`TooManyTypes`].
pub fn largest_bearing(
    problem: &Problem<'_>,
    rates: &[f64],
    rate_max: impl Fn(usize, &Form) -> f64,
) -> Result<Option<Bearing>, TooManyTypes> {
    let counts: Vec<u32> = problem.pools.iter().map(|pool| pool.count).collect();
    if cells(&counts.iter().map(|count| *count as usize).collect::<Vec<_>>()) > CELLS_MAX {
        return Err(TooManyTypes);
    }
    let loaded: Vec<usize> = (0..rates.len()).filter(|model| rates[*model] > 0.0).collect();
    let forms = |model: &usize| -> Vec<Vec<(u32, f64)>> {
        let share = |form: &Form| (form.tp(), rate_max(*model, form) / rates[*model]);
        let all = Form::all(problem, *model);
        let of_pool = |pool| all.iter().filter(|form| form.pool() == pool).map(share).collect();
        (0..counts.len()).map(of_pool).collect()
    };
    let forms: Vec<Vec<Vec<(u32, f64)>>> = loaded.iter().map(forms).collect();
    let capacities: Capacities = forms
        .iter()
        .map(|of_model| {
            of_model.iter().zip(&counts).map(|(forms, count)| knapsack::capacities(forms, *count)).collect()
        })
        .collect();
    let Some(best) = largest(&capacities, &counts) else { return Ok(None) };
    let borne = shares(&capacities, &best);
    if borne.iter().any(|share| *share <= 0.0) {
        return Ok(None);
    }
    let mut bearing = Bearing { placement: vec![Vec::new(); rates.len()], shares: vec![f64::INFINITY; rates.len()] };
    for (((model, share), given), of_model) in loaded.into_iter().zip(borne).zip(&best).zip(&forms) {
        bearing.shares[model] = share;
        for (pool, (k, forms)) in given.iter().zip(of_model).enumerate() {
            let replicas = knapsack::replicas(forms, u32::try_from(*k).unwrap_or(u32::MAX));
            bearing.placement[model].extend(replicas.into_iter().map(|(tp, count)| Replicas { pool, tp, count }));
        }
    }
    Ok(Some(bearing))
}

/// What each model can bear with what it is given.
fn shares(capacities: &Capacities, given: &[Vec<usize>]) -> Vec<f64> {
    let models = given.iter().zip(capacities);
    models.map(|(given, of_model)| given.iter().zip(of_model).map(|(k, of_pool)| of_pool[*k]).sum()).collect()
}

/// Accelerators by model and pool, such that the smallest share is the largest.
fn largest(capacities: &Capacities, counts: &[u32]) -> Option<Vec<Vec<usize>>> {
    let counts: Vec<usize> = counts.iter().map(|count| *count as usize).collect();
    if capacities.is_empty() || cells(&counts) > CELLS_MAX {
        return None;
    }
    let least = |given: &[Vec<usize>]| shares(capacities, given).into_iter().fold(f64::INFINITY, f64::min);
    let mut best = fit(capacities, &vec![0.0; capacities.len()], &counts)?;
    let most = |of_model: &Vec<Vec<f64>>| of_model.iter().filter_map(|of_pool| of_pool.last()).sum::<f64>();
    let (mut low, mut high) = (0.0, capacities.iter().map(most).fold(f64::INFINITY, f64::min));
    // Until no share lies between.
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        match fit(capacities, &vec![middle; capacities.len()], &counts) {
            Some(given) => {
                low = least(&given).max(middle);
                best = given;
            }
            None => high = middle,
        }
    }
    Some(best)
}
