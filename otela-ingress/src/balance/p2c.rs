//! Power of two choices: the less loaded of two random candidates. Ingresses that do not know of each other's picks do
//! not all pick the same one.

use super::{Balancer, Hints};
use crate::candidate::Candidate;
use rand::RngExt;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct P2c;

impl Balancer for P2c {
    fn pick(&self, candidates: &[Arc<Candidate>], _request: Hints<'_>) -> usize {
        let mut rng = rand::rng();
        let first = rng.random_range(0..candidates.len());
        if candidates.len() == 1 {
            return first;
        }
        // Any other than the first.
        let second = (first + rng.random_range(1..candidates.len())) % candidates.len();
        let load = |index: usize| candidates[index].standing().load.weight();
        if load(second) < load(first) { second } else { first }
    }
}
