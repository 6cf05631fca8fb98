//! Uniformly at random. Needs no state and no agreement between ingresses, and never piles up on one node.

use super::{Balancer, Hints};
use crate::candidate::Candidate;
use rand::RngExt;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Random;

impl Balancer for Random {
    fn pick(&self, candidates: &[Arc<Candidate>], _request: Hints<'_>) -> usize {
        rand::rng().random_range(0..candidates.len())
    }
}
