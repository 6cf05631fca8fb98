//! Uniformly at random. Needs no state and no agreement between ingresses, and never piles up on one node.

use super::Balancer;
use otela_proto::registry::Replica;
use rand::RngExt;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Random;

impl Balancer for Random {
    fn pick(&self, candidates: &[Arc<Replica>]) -> usize {
        rand::rng().random_range(0..candidates.len())
    }

    fn on_request_start(&self, _replica: &Replica) {}

    fn on_request_end(&self, _replica: &Replica) {}
}
