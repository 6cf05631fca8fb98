//! Prices of accelerators under which a demand that is too much shows itself: the dual of the linear relaxation.
//!
//! If, at some prices, what each model needs costs in sum more than everything that is there, no placement covers all
//! demands. That is a proof, whatever the prices are; looking for good ones is the only part that is by approximation.

use super::Cover;

/// Turns of looking for prices.
const TURNS: u32 = 120;

/// What one accelerator of each pool costs, so that all together cost 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prices(pub(super) Vec<f64>);

impl Cover {
    /// The least that a model's demand, or what is `rest` of it, can cost with pools from `first` on, in fractions of
    /// replicas: never more than in whole ones.
    pub(super) fn least_price(&self, model: usize, rest: &[f64], first: usize, prices: &Prices) -> f64 {
        let mut least: f64 = 0.0;
        for (nth, rest) in rest.iter().enumerate().filter(|(_, rest)| **rest > 0.0) {
            let of_one = |pool: usize, used: u32, covers: f64| prices.0[pool] * f64::from(used) / covers;
            let ways = self.ways[model].iter().filter(|way| way.pool >= first && way.covers[nth] > 0.0);
            let best = ways.map(|way| of_one(way.pool, way.used, way.covers[nth])).fold(f64::INFINITY, f64::min);
            least = least.max(rest * best);
        }
        least
    }

    /// What the models take of each pool at these prices, if each takes what is cheapest for it.
    fn taken(&self, prices: &Prices) -> (f64, Vec<f64>) {
        let (mut taken, mut sum) = (vec![0.0; self.stock.len()], 0.0);
        for (ways, demand) in self.ways.iter().zip(&self.demands) {
            let mut dearest: (f64, Option<(usize, f64)>) = (0.0, None);
            for (nth, demand) in demand.iter().enumerate().filter(|(_, demand)| **demand > 0.0) {
                let mut cheapest: (f64, Option<(usize, f64)>) = (f64::INFINITY, None);
                for way in ways.iter().filter(|way| way.covers[nth] > 0.0) {
                    let used = f64::from(way.used) * demand / way.covers[nth];
                    let price = prices.0[way.pool] * used;
                    if price < cheapest.0 {
                        cheapest = (price, Some((way.pool, used)));
                    }
                }
                if cheapest.0 > dearest.0 {
                    dearest = cheapest;
                }
            }
            sum += dearest.0;
            if let Some((pool, used)) = dearest.1 {
                taken[pool] += used;
            }
        }
        (sum, taken)
    }

    /// Prices at which the demands cost as much as they can be made to, and how much that is; above 1 there is no cover.
    pub(super) fn prices(&self) -> (f64, Prices) {
        let total: f64 = self.stock.iter().copied().map(f64::from).sum();
        let mut now = Prices(vec![1.0 / total.max(1.0); self.stock.len()]);
        let mut best = (f64::NEG_INFINITY, now.clone());
        for turn in 0..TURNS {
            let (sum, taken) = self.taken(&now);
            if sum > best.0 {
                best = (sum, now.clone());
            }
            if sum > 1.0 + 1e-6 {
                break;
            }
            // What is asked for too much becomes dearer.
            let step = 0.5 / (1.0 + f64::from(turn) * 0.15);
            let mut all = 0.0;
            for (pool, price) in now.0.iter_mut().enumerate() {
                let stock = f64::from(self.stock[pool]);
                let excess = if stock > 0.0 { taken[pool] / stock - 1.0 } else { 0.0 };
                *price = (*price * (step * excess.clamp(-2.0, 2.0)).exp()).max(1e-12);
                all += *price * stock;
            }
            now.0.iter_mut().for_each(|price| *price /= all.max(f64::MIN_POSITIVE));
        }
        best
    }
}
