//! Whether accelerators suffice: each model's demand is to be covered by whole replicas, and no pool gives more than it has.
//!
//! 1. Prices ([`prices`]) prove most of what is too much.
//! 2. For each model and pool, [`Steps`] say what so many accelerators cover at most; [`options`](Cover::options) are what
//!    a model may take of all pools together, as little of the last one as will do, and cheap enough that the others find
//!    what they need.
//! 3. Options are combined over the models ([`sums`]): demands are covered if the least that they take of the last
//!    pool is there.
//!
//! This is exact unless the work that may be done is not enough; then a cover may be missed, and the verdict says so.

mod prices;
mod steps;
mod sums;

pub(super) use steps::CoverWay;
pub use sums::TooManyTypes;
pub(super) use sums::{Breadth, Choice, Combined, Room};

use prices::Prices;
use steps::Steps;

/// Prices are computed with rounding.
const PRICE_ROUNDING: f64 = 1e-9;

/// A covering problem: pools of accelerators, and what each model needs of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cover {
    /// How many accelerators each pool has.
    pub(super) stock: Vec<u32>,
    /// What each model needs, for each workload.
    pub(super) demands: Vec<Vec<f64>>,
    /// How each model can be served.
    pub(super) ways: Vec<Vec<CoverWay>>,
}

/// Replicas by model and way.
pub(super) type Counts = Vec<Vec<u32>>;

/// Whether there is a cover.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// This is one.
    Covered(Counts),
    /// There is none.
    Impossible,
    /// None was found with the work that was allowed.
    Unknown,
}

/// What a model takes of all pools.
#[derive(Debug, Clone)]
struct Taken {
    /// By pool.
    used: Vec<u32>,
    /// Which step, by pool.
    steps: Vec<u32>,
    price: f64,
}

/// Options of one model under construction.
struct Search<'a> {
    cover: &'a Cover,
    model: usize,
    steps: &'a [Steps],
    prices: &'a Prices,
    price_max: f64,
    /// Only the cheapest counts: each that is found lowers `price_max`.
    cheapest: bool,
    found: Vec<Taken>,
    /// Options that may still be looked at.
    left: u64,
}

impl Cover {
    /// Looks for a cover with about so much work (a hundred million is about a second), and how much of it was done.
    ///
    /// # Errors
    /// [`TooManyTypes`].
    pub(super) fn solve(&self, work: u64) -> Result<(Verdict, u64), TooManyTypes> {
        let (bound, prices) = self.prices();
        if bound > 1.0 + PRICE_ROUNDING {
            return Ok((Verdict::Impossible, 0));
        }
        self.search(&prices, work)
    }

    fn search(&self, prices: &Prices, work: u64) -> Result<(Verdict, u64), TooManyTypes> {
        // Pools in the order of their size: little is kept of the last one.
        let mut order: Vec<usize> = (0..self.stock.len()).collect();
        order.sort_by_key(|&pool| self.stock[pool]);
        let sorted = self.reordered(&order);
        let prices = Prices(order.iter().map(|&pool| prices.0[pool]).collect());
        let steps: Vec<Vec<Steps>> = (0..sorted.ways.len()).map(|model| sorted.steps(model)).collect();
        let mut least = Vec::new();
        for (model, steps) in steps.iter().enumerate() {
            let Some(price) = sorted.cheapest(model, steps, &prices) else { return Ok((Verdict::Impossible, 0)) };
            least.push(price);
        }
        let slack = 1.0 - least.iter().sum::<f64>();
        if slack < -PRICE_ROUNDING {
            return Ok((Verdict::Impossible, 0));
        }
        let mut done = 0;
        // Most covers are found among few options; the last turn leaves nothing out.
        for (options_max, states_max) in [(40, 200), (400, 5_000), (usize::MAX, usize::MAX)] {
            let left = work.saturating_sub(done);
            let last = options_max == usize::MAX;
            let limits = |model: usize| least[model] + slack + PRICE_ROUNDING;
            let mut complete = true;
            let mut options = Vec::new();
            for (model, steps) in steps.iter().enumerate() {
                let (mut found, all) = sorted.options(model, steps, &prices, limits(model), left / 64);
                complete &= all;
                if found.len() > options_max {
                    found.select_nth_unstable_by(options_max, |one, other| one.price.total_cmp(&other.price));
                    found.truncate(options_max);
                    complete = false;
                }
                options.push(found);
            }
            let states_max = states_max.min(1 << 21);
            let (counts, all, spent) = sorted.combined(&options, &steps, Breadth { states_max, work: left })?;
            done += spent;
            match counts {
                Some(counts) => return Ok((Verdict::Covered(counts), done)),
                None if complete && all => return Ok((Verdict::Impossible, done)),
                None if last || done >= work.max(1) => break,
                None => {}
            }
        }
        Ok((Verdict::Unknown, done))
    }

    /// The cover that costs least, where one accelerator of each pool costs so much; and what none can cost less than.
    ///
    /// # Errors
    /// [`TooManyTypes`].
    pub(super) fn cheapest_cover(
        &self,
        costs: &[f64],
        work: u64,
    ) -> Result<(Option<(f64, Counts)>, f64), TooManyTypes> {
        let room = Room::new(&self.stock)?;
        let costs = Prices(costs.to_vec());
        let steps: Vec<Vec<Steps>> = (0..self.ways.len()).map(|model| self.steps(model)).collect();
        let (mut complete, mut bound, mut options) = (true, 0.0, Vec::new());
        for (model, steps) in steps.iter().enumerate() {
            let (found, all) = self.options(model, steps, &costs, f64::INFINITY, work / 64);
            complete &= all;
            bound += if all {
                found.iter().map(|taken| taken.price).fold(f64::INFINITY, f64::min)
            } else {
                self.least_price(model, &self.demands[model], 0, &costs)
            };
            options.push(found);
        }
        let choice = |taken: &Taken| {
            room.choice(taken.used.iter().copied(), taken.price, taken.price).expect("no step takes more than there is")
        };
        let choices: Vec<Vec<Choice>> = options.iter().map(|options| options.iter().map(choice).collect()).collect();
        let combined = room.combine(&choices, f64::INFINITY, Breadth { states_max: 1 << 20, work });
        complete &= combined.complete;
        let best = combined.best.map(|(cost, chosen)| {
            let mut counts: Counts = self.ways.iter().map(|ways| vec![0; ways.len()]).collect();
            for (model, &option) in chosen.iter().enumerate() {
                for (steps, &step) in steps[model].iter().zip(&options[model][option].steps) {
                    steps.count(step as usize, &mut counts[model]);
                }
            }
            (cost, counts)
        });
        let bound = match &best {
            Some((cost, _)) if complete => *cost,
            Some((cost, _)) => bound.min(*cost),
            None if complete => f64::INFINITY,
            None => bound,
        };
        Ok((best, bound))
    }

    fn reordered(&self, order: &[usize]) -> Self {
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new);
        let moved = |way: &CoverWay| CoverWay { pool: place[way.pool], ..way.clone() };
        Self {
            stock: order.iter().map(|&pool| self.stock[pool]).collect(),
            demands: self.demands.clone(),
            ways: self.ways.iter().map(|ways| ways.iter().map(moved).collect()).collect(),
        }
    }

    fn steps(&self, model: usize) -> Vec<Steps> {
        let of = |(pool, stock): (usize, &u32)| Steps::new(&self.ways[model], pool, *stock, &self.demands[model]);
        self.stock.iter().enumerate().map(of).collect()
    }

    /// The least price of a model's demand in whole replicas; none if it cannot be covered at all.
    fn cheapest(&self, model: usize, steps: &[Steps], prices: &Prices) -> Option<f64> {
        let mut search = Search {
            cover: self,
            model,
            steps,
            prices,
            price_max: f64::INFINITY,
            cheapest: true,
            found: Vec::new(),
            left: 200_000,
        };
        search.go();
        match search.found.last() {
            Some(taken) if search.left > 0 => Some(taken.price),
            // Not all was looked at: what fractions cost is less.
            Some(_) => Some(self.least_price(model, &self.demands[model], 0, prices)),
            None if search.left > 0 => None,
            None => Some(0.0),
        }
    }

    /// What a model may take, up to a price; and whether that is all.
    fn options(&self, model: usize, steps: &[Steps], prices: &Prices, price_max: f64, left: u64) -> (Vec<Taken>, bool) {
        let left = left.max(1000);
        let mut search =
            Search { cover: self, model, steps, prices, price_max, cheapest: false, found: Vec::new(), left };
        search.go();
        (search.found, search.left > 0)
    }

    fn combined(
        &self,
        options: &[Vec<Taken>],
        steps: &[Vec<Steps>],
        breadth: Breadth,
    ) -> Result<(Option<Counts>, bool, u64), TooManyTypes> {
        let Some((last_stock, stock)) = self.stock.split_last() else { return Ok((None, true, 0)) };
        let room = Room::new(stock)?;
        // Few choices first: states are kept few.
        let mut order: Vec<usize> = (0..options.len()).collect();
        order.sort_by_key(|&model| options[model].len());
        let choice = |taken: &Taken| -> Choice {
            let (last, used) = taken.used.split_last().expect("as many as pools");
            let choice = room.choice(used.iter().copied(), f64::from(*last), taken.price);
            choice.expect("no step takes more than there is")
        };
        let choices: Vec<Vec<Choice>> =
            order.iter().map(|&model| options[model].iter().map(choice).collect()).collect();
        let combined = room.combine(&choices, 1.0 + PRICE_ROUNDING, breadth);
        let Some((_, chosen)) = combined.best.filter(|(last, _)| *last <= f64::from(*last_stock)) else {
            return Ok((None, combined.complete, combined.work));
        };
        let mut counts: Counts = self.ways.iter().map(|ways| vec![0; ways.len()]).collect();
        for (&model, &option) in order.iter().zip(&chosen) {
            for (steps, &step) in steps[model].iter().zip(&options[model][option].steps) {
                steps.count(step as usize, &mut counts[model]);
            }
        }
        Ok((Some(counts), combined.complete, combined.work))
    }
}

impl Search<'_> {
    fn go(&mut self) {
        let rest = self.cover.demands[self.model].clone();
        let pools = self.steps.len();
        let mut taken = Taken { used: vec![0; pools], steps: vec![0; pools], price: 0.0 };
        self.pool(0, &rest, &mut taken);
    }

    /// All that may be taken from this pool and those after it; the least of the last one so far, if any was found.
    fn pool(&mut self, pool: usize, rest: &[f64], taken: &mut Taken) -> Option<u32> {
        let demand = &self.cover.demands[self.model];
        if pool + 1 == self.steps.len() {
            let step = self.steps[pool].first_above(rest, demand)?;
            let used = self.steps[pool].get(step).used;
            let price = taken.price + self.prices.0[pool] * f64::from(used);
            self.left = self.left.saturating_sub(1);
            if price > self.price_max {
                return None;
            }
            taken.used[pool] = used;
            taken.steps[pool] = u32::try_from(step).expect("steps are few");
            if self.cheapest {
                self.price_max = price;
                self.found.clear();
            }
            self.found.push(Taken { price, ..taken.clone() });
            return Some(used);
        }
        let (before, mut least) = (taken.price, None::<u32>);
        for step in 0..self.steps[pool].len() {
            if self.left == 0 {
                break;
            }
            let of = self.steps[pool].get(step);
            let price = before + self.prices.0[pool] * f64::from(of.used);
            let left: Vec<f64> = rest.iter().zip(&of.covers).map(|(rest, covers)| (rest - covers).max(0.0)).collect();
            if price > self.price_max {
                break;
            }
            if price + self.cover.least_price(self.model, &left, pool + 1, self.prices) > self.price_max {
                continue;
            }
            taken.used[pool] = of.used;
            taken.steps[pool] = u32::try_from(step).expect("steps are few");
            taken.price = price;
            let found = self.pool(pool + 1, &left, taken);
            // One more here that saves nothing there is of no use, in the innermost turn at least.
            if let (Some(now), Some(then)) = (found, least)
                && pool + 2 == self.steps.len()
                && now >= then
                && !self.cheapest
            {
                self.found.pop();
            } else if found.is_some() {
                least = found;
            }
            if found == Some(0) && pool + 2 == self.steps.len() {
                break;
            }
        }
        taken.price = before;
        taken.used[pool] = 0;
        taken.steps[pool] = 0;
        least
    }
}

#[cfg(test)]
mod tests;
