//! A model that is wanted: what it has, and what it lacks.

use super::{
    capacity::{Capacity, accelerator, capacity},
    observation::{NodeSeen, Observation},
    policy::{ModelPolicy, Policy},
    record::ModelPlan,
};
use crate::catalog::{Accelerator, Catalog, Model};

/// Sums of what runs are exact to this share of them.
const EXACT_TO: f64 = 1e-9;

/// A model that is wanted, and what it has.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) policy: &'a ModelPolicy,
    model: &'a Model,
    rate: f64,
    tokens: (f64, f64),
    is_measured: bool,
    headroom: f64,
    nodes: u32,
    nodes_added: u32,
    bears: f64,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(of: &'a ModelPolicy, policy: &Policy, catalog: &'a Catalog, seen: &Observation) -> Option<Self> {
        // Names were checked when the policy was read.
        let model = catalog.model(of.catalog_name()).ok()?;
        let measured = seen.loads.get(&of.model);
        Some(Self {
            policy: of,
            model,
            rate: measured.map_or(of.rate, |measured| measured.rate.max(of.rate)),
            tokens: measured.and_then(|measured| measured.tokens).unwrap_or((of.prompt, of.answer)),
            is_measured: measured.is_some_and(|measured| measured.rate >= of.rate),
            headroom: policy.headroom,
            nodes: 0,
            nodes_added: 0,
            bears: 0.0,
        })
    }

    /// A node serves it already.
    pub(super) fn has(&mut self, catalog: &Catalog, node: &NodeSeen) {
        self.nodes += 1;
        let accelerator = node.cards.as_ref().and_then(|card| Some((accelerator(catalog, card).ok()?, card.count)));
        let rate = accelerator.and_then(|(accelerator, count)| self.capacity(accelerator, count)).map(|can| can.rate);
        // Of what is not in the catalog nobody knows what it can do: it serves, so it counts as enough.
        self.bears += rate.unwrap_or(self.rate * self.headroom);
    }

    /// A node is told to serve it, which bears so many requests a second.
    pub(super) fn gets(&mut self, rate: f64) {
        self.nodes_added += 1;
        self.bears += rate;
    }

    pub(super) fn capacity(&self, accelerator: &Accelerator, count: u32) -> Option<Capacity> {
        capacity(self.model, accelerator, count, self.tokens)
    }

    /// What is missing: requests a second, if so much of the load is to be borne, and nodes.
    pub(super) fn needs(&self, share: f64) -> Vec<f64> {
        let load = share * self.rate * self.headroom;
        let rate = load - self.bears;
        let nodes = self.policy.nodes_min.saturating_sub(self.nodes + self.nodes_added);
        vec![if rate > load * EXACT_TO { rate } else { 0.0 }, f64::from(nodes)]
    }

    /// Whether anything is missing.
    pub(super) fn lacks(&self) -> bool {
        self.needs(1.0).iter().any(|need| *need > 0.0)
    }

    pub(super) fn why(&self, rate: f64) -> String {
        format!(
            "{} gets {:.3} requests a second; what runs can do {:.3}, and it bears {:.3} more",
            self.policy.model, self.rate, self.bears, rate
        )
    }

    /// What is to be recorded of it; `remedy` says what would help, or will.
    pub(super) fn plan(&self, remedy: &str) -> ModelPlan {
        let nodes = self.nodes + self.nodes_added;
        let lacks = self.lacks().then(|| {
            format!(
                "{nodes} nodes of {}, {:.3} of {:.3} requests a second: {remedy}",
                self.policy.nodes_min,
                self.bears,
                self.rate * self.headroom
            )
        });
        ModelPlan {
            model: self.policy.model.clone(),
            rate: self.rate,
            prompt: self.tokens.0,
            answer: self.tokens.1,
            is_measured: self.is_measured,
            nodes,
            nodes_added: self.nodes_added,
            bears: self.bears,
            lacks,
        }
    }
}
