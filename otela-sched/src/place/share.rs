//! The placement with the largest share of its load that every model can bear: what OpenTela's published Table 1 optimises.

use super::combine::{cells, fit};

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
    let counts: Vec<usize> = counts.iter().map(|count| *count as usize).collect();
    if instances.is_empty() || cells(&counts) > CELLS_MAX {
        return None;
    }
    let of_pool = |instance: &Instance, count: usize| -> Vec<f64> {
        let whole = |k: usize| k / (instance.accelerators.max(1) as usize);
        #[expect(clippy::cast_precision_loss, reason = "counts of accelerators")]
        (0..=count).map(|k| whole(k) as f64 * instance.share).collect()
    };
    let capacities: Vec<Vec<Vec<f64>>> = instances
        .iter()
        .map(|of_model| of_model.iter().zip(&counts).map(|(instance, count)| of_pool(instance, *count)).collect())
        .collect();
    let shares = |given: &[Vec<usize>]| -> Vec<f64> {
        let models = given.iter().zip(&capacities);
        models.map(|(given, of_model)| given.iter().zip(of_model).map(|(k, of_pool)| of_pool[*k]).sum()).collect()
    };
    let least = |given: &[Vec<usize>]| shares(given).into_iter().fold(f64::INFINITY, f64::min);
    let mut best = fit(&capacities, &vec![0.0; instances.len()], &counts)?;
    let most = |of_model: &Vec<Vec<f64>>| of_model.iter().filter_map(|of_pool| of_pool.last()).sum::<f64>();
    let (mut low, mut high) = (0.0, capacities.iter().map(most).fold(f64::INFINITY, f64::min));
    // Until no share lies between.
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        match fit(&capacities, &vec![middle; instances.len()], &counts) {
            Some(given) => {
                low = least(&given).max(middle);
                best = given;
            }
            None => high = middle,
        }
    }
    let shares = shares(&best);
    let narrow = |k: &usize| u32::try_from(*k).unwrap_or(u32::MAX);
    Some(Shares { accelerators: best.iter().map(|given| given.iter().map(narrow).collect()).collect(), shares })
}
