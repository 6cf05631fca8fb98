//! From the file of a problem to the problem: names become what the catalog knows.

use super::{
    blocks::{Running, blocks},
    file::{KnownStock, ProblemError, ProblemFile, RunningReplicas, Stock},
    problem::{Demand, Options, Pool, Problem},
};
use crate::catalog::Catalog;

impl ProblemFile {
    /// The problem with what the catalog knows; `file` is what it calls this.
    ///
    /// # Errors
    /// [`ProblemError`]: a name that is not known.
    pub fn problem<'a>(&self, file: &str, catalog: &'a Catalog) -> Result<Problem<'a>, ProblemError> {
        let wrong = |what: String| ProblemError { file: file.to_owned(), what };
        let demands = self.models.iter().map(|load| {
            let known = catalog.model(&load.model).map_err(|error| wrong(error.to_string()))?;
            Ok(Demand { model: known, load: load.load() })
        });
        let demands = demands.collect::<Result<_, _>>()?;
        let mut pools = Vec::new();
        for (name, stock) in &self.accelerators {
            let accelerator = catalog.accelerator(name).map_err(|error| wrong(error.to_string()))?;
            match stock {
                Stock::Known(known) if !known.nodes.is_empty() => {
                    let chain = || format!("tps {:?}: with nodes, each must divide the next", self.tps);
                    pools.extend(blocks(accelerator, &known.nodes, &self.tps).ok_or_else(|| wrong(chain()))?);
                }
                Stock::Known(KnownStock { count, .. }) | Stock::Count(count) => {
                    pools.push(Pool { accelerator, count: *count, block: None });
                }
            }
        }
        let options = Options {
            tps: self.tps.clone(),
            batch_max: self.batch_max,
            holds_kv: self.holds_kv,
            divides: self.divides,
            within_nodes: self.within_nodes,
            spare: self.spare.unwrap_or_default(),
        };
        Ok(Problem { demands, pools, options })
    }

    /// Requests of each model in a second.
    pub fn rates(&self) -> Vec<f64> {
        self.models.iter().map(|load| load.rate).collect()
    }

    /// What one accelerator of each pool of the problem costs, an hour; 0 where that is not known.
    pub fn prices(&self, problem: &Problem<'_>, catalog: &Catalog) -> Vec<f64> {
        let of = |pool: &Pool<'_>| {
            let is_it = |name: &str| catalog.accelerator(name).is_ok_and(|known| known.name == pool.accelerator.name);
            let stock = self.accelerators.iter().find(|(name, _)| is_it(name));
            stock.and_then(|(_, stock)| stock.price()).unwrap_or_default()
        };
        problem.pools.iter().map(of).collect()
    }

    /// What runs.
    ///
    /// # Errors
    /// [`ProblemError`]: a name that is not known.
    pub fn running<'a>(&self, file: &str, catalog: &'a Catalog) -> Result<Vec<Running<'a>>, ProblemError> {
        let wrong = |what: String| ProblemError { file: file.to_owned(), what };
        let of = |replicas: &RunningReplicas| {
            let model = catalog.model(&replicas.model).map_err(|error| wrong(error.to_string()))?;
            let accelerator = catalog.accelerator(&replicas.accelerator).map_err(|error| wrong(error.to_string()))?;
            Ok(Running { model, accelerator, tp: replicas.tp, count: replicas.count })
        };
        self.running.iter().map(of).collect()
    }

    /// The problem under each workload, its own first, and their names and weights.
    ///
    /// # Errors
    /// [`ProblemError`]: a workload has a model that the problem does not have.
    pub fn workloads<'a>(
        &self,
        file: &str,
        problem: &Problem<'a>,
    ) -> Result<Vec<(String, f64, Problem<'a>)>, ProblemError> {
        let mut all = vec![("models".to_owned(), 1.0, problem.clone())];
        for (name, also) in &self.also {
            let mut other = problem.clone();
            other.demands.iter_mut().for_each(|demand| demand.load.requests = 0);
            for load in &also.models {
                let Some(nth) = self.models.iter().position(|model| model.model == load.model) else {
                    let what = format!("also.{name}: name {} among the models too, with its own load", load.model);
                    return Err(ProblemError { file: file.to_owned(), what });
                };
                other.demands[nth].load = load.load();
            }
            all.push((name.clone(), also.weight, other));
        }
        Ok(all)
    }
}
