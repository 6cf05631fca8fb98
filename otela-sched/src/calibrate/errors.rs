//! Statistics of errors.

use serde::Serialize;

/// How far foretold times are from measured ones, as shares: 0.05 is 5 % too long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Errors {
    /// Of how many.
    pub count: usize,
    /// Mean of the absolute errors.
    pub mean_ratio: f64,
    /// Their median.
    pub median_ratio: f64,
    /// Nine in ten are at most this.
    pub p90_ratio: f64,
    /// Mean with signs: below 0 if the model is too fast.
    pub bias: f64,
}

impl Errors {
    /// Statistics of pairs of foretold and measured; none of none.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let errors: Vec<f64> = pairs.into_iter().map(|(foretold, measured)| foretold / measured - 1.0).collect();
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let count = errors.len();
        (count > 0).then(|| Self {
            count,
            mean_ratio: sizes.iter().sum::<f64>() / count as f64,
            median_ratio: quantile(&sizes, 0.5),
            p90_ratio: quantile(&sizes, 0.9),
            bias: errors.iter().sum::<f64>() / count as f64,
        })
    }
}

/// The value at a share of a sorted list, between its neighbours.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// Errors of how much faster one accelerator is than another, over all pairs of measurements that differ in nothing
/// else. Items are what else there is, the accelerator, foretold and measured seconds.
pub fn relative_speed<K: PartialEq>(items: &[(K, &str, f64, f64)]) -> Option<Errors> {
    let mut pairs = Vec::new();
    for (i, (key, accelerator, foretold, measured)) in items.iter().enumerate() {
        for (other_key, other, other_foretold, other_measured) in &items[i + 1..] {
            if key == other_key && accelerator != other {
                pairs.push((foretold / other_foretold, measured / other_measured));
            }
        }
    }
    Errors::of(pairs)
}
