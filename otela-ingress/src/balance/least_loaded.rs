//! The candidate with the least to do; one of them at random if there are several.

use super::{Balancer, Hints};
use crate::candidate::Candidate;
use rand::RngExt;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct LeastLoaded;

impl Balancer for LeastLoaded {
    fn pick(&self, candidates: &[Arc<Candidate>], _request: Hints<'_>) -> usize {
        let (mut least, mut index, mut equal) = (f64::INFINITY, 0, 0_u32);
        for (at, candidate) in candidates.iter().enumerate() {
            let load = candidate.standing().load.weight();
            if load < least {
                (least, index, equal) = (load, at, 1);
            } else if load <= least {
                equal += 1;
                // Each of the equal ones is kept with the same chance.
                if rand::rng().random_range(0..equal) == 0 {
                    index = at;
                }
            }
        }
        index
    }
}
