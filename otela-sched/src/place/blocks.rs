//! Nodes as they are: how many accelerators of each can be used.
//!
//! A node of eight that may hold replicas over 1, 2, 4 and 8 is one block of eight; one of seven is a block of four, one of
//! two and one of one. Where each size divides the next, replicas fit into nodes exactly if they fit into such blocks, and
//! of blocks of one size only the number counts. So each size of blocks is a pool of its own, and nothing else needs to know
//! of nodes.

use super::problem::{Placement, Pool, Problem, Replicas};
use crate::catalog::{Accelerator, Model};

/// The pools of one accelerator in nodes; none if a size does not divide the next. `tps` are sizes of replicas.
pub fn blocks<'a>(accelerator: &'a Accelerator, nodes: &[u32], tps: &[u32]) -> Option<Vec<Pool<'a>>> {
    let mut tps = tps.to_vec();
    tps.sort_unstable();
    tps.dedup();
    if tps.first() == Some(&0) || !tps.windows(2).all(|pair| pair[1].is_multiple_of(pair[0])) {
        return None;
    }
    let mut left = nodes.to_vec();
    let mut pools = Vec::new();
    for &block in tps.iter().rev() {
        let count = left.iter().map(|node| node / block * block).sum();
        left.iter_mut().for_each(|node| *node %= block);
        pools.extend((count > 0).then_some(Pool { accelerator, count, block: Some(block) }));
    }
    Some(pools)
}

/// Replicas that run, and not in which pool they are counted.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    /// The model.
    pub model: &'a Model,
    /// The accelerator.
    pub accelerator: &'a Accelerator,
    /// Accelerators of each.
    pub tp: u32,
    /// How many.
    pub count: u32,
}

/// What runs and does not keep to the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// A model that the problem does not have.
    #[error("{0} runs, and the problem does not have it: add it, with no requests if there are none")]
    Model(String),
    /// There is no place for some of them.
    #[error("{missing} replicas of {model} over {tp} {accelerator} run, and there is no room for them")]
    Replicas {
        /// The model.
        model: String,
        /// The accelerator.
        accelerator: String,
        /// Accelerators of each.
        tp: u32,
        /// Those without room.
        missing: u32,
    },
}

/// Where running replicas are in the problem's pools: large ones first, each in the smallest blocks that it fits into. What
/// is left is then the most that can be; where they are spread over nodes otherwise, it may be less.
///
/// # Errors
/// [`NoRoom`].
pub fn settle(problem: &Problem<'_>, running: &[Running<'_>]) -> Result<Placement, NoRoom> {
    let mut placement: Placement = vec![Vec::new(); problem.demands.len()];
    let mut left: Vec<u32> = problem.pools.iter().map(|pool| pool.count).collect();
    let mut groups: Vec<&Running<'_>> = running.iter().filter(|group| group.count > 0).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.tp));
    for group in groups {
        let is_it = |model: &Model| model.name == group.model.name;
        let Some(model) = problem.demands.iter().position(|demand| is_it(demand.model)) else {
            return Err(NoRoom::Model(group.model.name.clone()));
        };
        let block = |pool: &usize| problem.pools[*pool].block.unwrap_or(u32::MAX);
        let is_one = |pool: &usize| problem.pools[*pool].accelerator.name == group.accelerator.name;
        let mut pools: Vec<usize> = (0..left.len()).filter(is_one).filter(|pool| block(pool) >= group.tp).collect();
        pools.sort_by_key(block);
        let mut missing = group.count;
        for pool in pools {
            let count = missing.min(left[pool] / group.tp.max(1));
            left[pool] -= count * group.tp;
            missing -= count;
            if count > 0 {
                placement[model].push(Replicas { pool, tp: group.tp, count });
            }
        }
        if missing > 0 {
            let (model, accelerator) = (group.model.name.clone(), group.accelerator.name.clone());
            return Err(NoRoom::Replicas { model, accelerator, tp: group.tp, missing });
        }
    }
    placement.iter_mut().for_each(|replicas| replicas.sort_unstable());
    Ok(placement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::Catalog,
        place::{Demand, Load, Options, least_makespan},
    };
    use proptest::prelude::*;

    const TPS: [u32; 4] = [1, 2, 4, 8];

    fn problem<'a>(catalog: &'a Catalog, model: &str, nodes: &[u32]) -> Problem<'a> {
        let load = Load { requests: 4, prompt: 100.0, answer: 100.0 };
        Problem {
            demands: vec![Demand { model: catalog.model(model).unwrap(), load }],
            pools: blocks(catalog.accelerator("A100-40GB").unwrap(), nodes, &TPS).unwrap(),
            options: Options::default(),
        }
    }

    /// Whether replicas fit into nodes, by trying all.
    fn packs(nodes: &mut [u32], replicas: &[u32]) -> bool {
        let Some((first, rest)) = replicas.split_first() else { return true };
        (0..nodes.len()).any(|nth| {
            if nodes[nth] < *first {
                return false;
            }
            nodes[nth] -= first;
            let fits = packs(nodes, rest);
            nodes[nth] += first;
            fits
        })
    }

    proptest! {
        #[test]
        fn replicas_fit_into_blocks_exactly_if_they_fit_into_nodes(
            nodes in prop::collection::vec(1..12u32, 1..4), counts in [0..4u32, 0..4u32, 0..3u32, 0..3u32],
        ) {
            let catalog = Catalog::builtin();
            let problem = problem(&catalog, "Qwen2.5-14B", &nodes);
            let (model, accelerator) = (problem.demands[0].model, catalog.accelerator("A100-40GB").unwrap());
            let running = TPS.into_iter().zip(counts).map(|(tp, count)| Running { model, accelerator, tp, count });
            let running: Vec<_> = running.collect();
            let all = running.iter().rev().flat_map(|group| vec![group.tp; group.count as usize]);
            let fits = packs(&mut nodes.clone(), &all.collect::<Vec<_>>());
            prop_assert_eq!(settle(&problem, &running).is_ok(), fits);
        }
    }

    #[test]
    fn what_runs_leaves_the_largest_blocks() {
        let catalog = Catalog::builtin();
        let problem = problem(&catalog, "Qwen2.5-14B", &[7]);
        let (model, accelerator) = (problem.demands[0].model, catalog.accelerator("A100-40GB").unwrap());
        let settled = settle(&problem, &[Running { model, accelerator, tp: 1, count: 3 }]).unwrap();
        // The pools are blocks of four, of two and of one.
        let one = |pool, count| Replicas { pool, tp: 1, count };
        assert_eq!(settled, [[one(1, 2), one(2, 1)]]);
    }

    #[test]
    fn a_replica_is_not_over_several_nodes() {
        let catalog = Catalog::builtin();
        // It needs eight, and there are nine.
        assert!(least_makespan(&problem(&catalog, "Qwen2.5-72B", &[3, 3, 3])).is_err());
        let found = least_makespan(&problem(&catalog, "Qwen2.5-72B", &[3, 8])).unwrap();
        let tps: Vec<u32> = found.placement[0].iter().map(|replicas| replicas.tp).collect();
        assert_eq!(tps, [8]);
    }

    #[test]
    fn sizes_that_leave_holes_are_no_blocks() {
        let catalog = Catalog::builtin();
        let accelerator = catalog.accelerator("H100").unwrap();
        assert!(blocks(accelerator, &[8], &[2, 3]).is_none() && blocks(accelerator, &[8], &[0, 1]).is_none());
        let pools = blocks(accelerator, &[8, 7, 16], &[4, 1, 2, 8]).unwrap();
        let sizes: Vec<_> = pools.iter().map(|pool| (pool.block, pool.count)).collect();
        assert_eq!(sizes, [(Some(8), 24), (Some(4), 4), (Some(2), 2), (Some(1), 1)]);
    }
}
