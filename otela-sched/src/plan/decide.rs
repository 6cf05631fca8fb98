//! From what was seen to what is to be done.

use super::{
    capacity::{Capacity, accelerator, capacity},
    observation::{Card, Doing, NodeSeen, Observation},
    policy::{ModelPolicy, Policy},
    record::{IdleNode, ModelPlan, Serve, Step},
};
use crate::{
    catalog::{Accelerator, Catalog, Model},
    place::{Gives, Kind, TooManyTypes, least_enough},
};
use otela_proto::{assignment::AssignedState, id::Session};
use std::collections::{BTreeMap, BTreeSet};

/// Sessions that a model is not to be placed on for now, such as where it has just failed.
pub type Avoided = BTreeSet<(Session, String)>;

/// What was decided: a plan without a number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// As in [`super::Plan::models`].
    pub models: Vec<ModelPlan>,
    /// As in [`super::Plan::steps`].
    pub steps: Vec<Step>,
    /// As in [`super::Plan::idle`].
    pub idle: Vec<IdleNode>,
}

/// How often the share of the load that can be borne is halved in on, where that is not all of it: to one in a billion.
const HALVINGS: u32 = 30;

/// What is to be done. Nodes that serve go on as they are; nodes whose model nobody wants any more are to be idle, and idle
/// ones get what is missing, on as little as will do. The same observation gives the same decision.
pub fn decide(policy: &Policy, catalog: &Catalog, seen: &Observation, avoided: &Avoided) -> Decision {
    let mut wanted: Vec<Wanted<'_>> =
        policy.models.iter().filter_map(|of| Wanted::new(of, policy, catalog, seen)).collect();
    let (mut steps, mut free, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for node in &seen.nodes {
        match &node.doing {
            Doing::Told { model, state } if *state != AssignedState::Failed => {
                if let Some(of) = wanted.iter_mut().find(|of| of.policy.model == *model) {
                    of.has(catalog, node);
                } else if !node.templates.is_empty() && *state != AssignedState::Stopping {
                    steps.push(step(node, None, format!("no policy wants {model} any more")));
                }
            }
            Doing::Own(models) => {
                for of in wanted.iter_mut().filter(|of| models.contains(&of.policy.model)) {
                    of.has(catalog, node);
                }
            }
            Doing::Nothing | Doing::Told { .. } => match Free::new(node, catalog, &wanted, avoided) {
                Ok(node) => free.push(node),
                Err(why) => idle.push(idle_node(node, why)),
            },
            Doing::Leaving => {
                idle.push(idle_node(node, "it takes nothing new: it drains, or does not answer".to_owned()));
            }
        }
    }
    let groups = Group::all(&free, policy);
    let given = give(&wanted, &groups);
    let mut used = BTreeSet::new();
    for (of, given) in wanted.iter_mut().zip(&given.nodes) {
        for (group, count) in groups.iter().zip(given) {
            let unused: Vec<_> = group.nodes.iter().filter(|node| !used.contains(&node.seen.session)).collect();
            for node in unused.into_iter().take(*count as usize) {
                let Some((serve, rate)) = node.serves(of) else { continue };
                used.insert(node.seen.session);
                steps.push(step(node.seen, Some(serve), of.why(rate)));
                of.nodes_added += 1;
                of.bears += rate;
            }
        }
    }
    for node in free.iter().filter(|node| !used.contains(&node.seen.session)) {
        idle.push(idle_node(node.seen, node.why_not(&wanted)));
    }
    let models = wanted.iter().map(|of| of.plan(policy, given.trouble.as_ref())).collect();
    Decision { models, steps, idle }
}

/// A model that is wanted, and what it has.
#[derive(Debug)]
struct Wanted<'a> {
    policy: &'a ModelPolicy,
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
    fn new(of: &'a ModelPolicy, policy: &Policy, catalog: &'a Catalog, seen: &Observation) -> Option<Self> {
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
    fn has(&mut self, catalog: &Catalog, node: &NodeSeen) {
        self.nodes += 1;
        let accelerator = node.cards.as_ref().and_then(|card| Some((accelerator(catalog, card).ok()?, card.count)));
        let rate = accelerator.and_then(|(accelerator, count)| self.capacity(accelerator, count)).map(|can| can.rate);
        // Of what is not in the catalog nobody knows what it can do: it serves, so it counts as enough.
        self.bears += rate.unwrap_or(self.rate * self.headroom);
    }

    fn capacity(&self, accelerator: &Accelerator, count: u32) -> Option<Capacity> {
        capacity(self.model, accelerator, count, self.tokens)
    }

    /// What is missing: requests a second, if so much of the load is to be borne, and nodes.
    fn needs(&self, share: f64) -> Vec<f64> {
        let rate = (share * self.rate * self.headroom - self.bears).max(0.0);
        vec![rate, f64::from(self.policy.nodes_min.saturating_sub(self.nodes + self.nodes_added))]
    }

    fn why(&self, rate: f64) -> String {
        format!(
            "{} gets {:.3} requests a second; what runs can do {:.3}, and it bears {:.3} more",
            self.policy.model, self.rate, self.bears, rate
        )
    }

    fn plan(&self, policy: &Policy, trouble: Option<&TooManyTypes>) -> ModelPlan {
        let nodes = self.nodes + self.nodes_added;
        let is_enough = self.bears >= self.rate * policy.headroom * (1.0 - 1e-9) && nodes >= self.policy.nodes_min;
        let lacks = (!is_enough).then(|| {
            let what = trouble.map_or_else(
                || "more idle nodes that may start it, or larger ones, would help".to_owned(),
                ToString::to_string,
            );
            format!(
                "{nodes} nodes of {}, {:.3} of {:.3} requests a second: {what}",
                self.policy.nodes_min,
                self.bears,
                self.rate * policy.headroom
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

/// An idle node, and what it can do for each of the wanted models.
#[derive(Debug)]
struct Free<'a> {
    seen: &'a NodeSeen,
    card: &'a Card,
    accelerator: &'a Accelerator,
    /// By model: its template, and how.
    can: BTreeMap<String, (String, Capacity)>,
}

impl<'a> Free<'a> {
    fn new(seen: &'a NodeSeen, catalog: &'a Catalog, wanted: &[Wanted<'_>], avoided: &Avoided) -> Result<Self, String> {
        if seen.templates.is_empty() {
            return Err("it takes no orders of this scheduler".to_owned());
        }
        let card = seen.cards.as_ref().ok_or("it has no accelerators")?;
        let accelerator = accelerator(catalog, card).map_err(|unknown| unknown.to_string())?;
        let can = wanted.iter().filter_map(|of| {
            let name = &of.policy.model;
            let template = seen.templates.iter().find(|template| template.allows(name))?;
            let is_avoided = avoided.contains(&(seen.session, name.clone()));
            let capacity = of.capacity(accelerator, card.count).filter(|_| !is_avoided)?;
            Some((name.clone(), (template.name.clone(), capacity)))
        });
        Ok(Self { seen, card, accelerator, can: can.collect() })
    }

    fn serves(&self, of: &Wanted<'_>) -> Option<(Serve, f64)> {
        let (template, capacity) = self.can.get(&of.policy.model)?;
        let serve = Serve {
            model: of.policy.model.clone(),
            template: template.clone(),
            tensor_parallel: capacity.tensor_parallel,
            data_parallel: capacity.data_parallel,
        };
        Some((serve, capacity.rate))
    }

    /// Why none of the wanted models can be served here, model by model.
    fn why_nothing(&self, wanted: &[Wanted<'_>]) -> String {
        let why = |of: &Wanted<'_>| {
            let name = &of.policy.model;
            let why = if !self.seen.templates.iter().any(|template| template.allows(name)) {
                "is in no template of it"
            } else if of.capacity(self.accelerator, self.card.count).is_none() {
                "does not fit on it"
            } else {
                "has just failed there"
            };
            format!("{name} {why}")
        };
        wanted.iter().map(why).collect::<Vec<_>>().join(", ")
    }

    fn why_not(&self, wanted: &[Wanted<'_>]) -> String {
        if self.can.is_empty() {
            return self.why_nothing(wanted);
        }
        let lacking = wanted.iter().any(|of| of.needs(1.0).iter().any(|need| *need > 1e-9));
        if lacking {
            "what is still lacking does not fit here".to_owned()
        } else {
            "a spare: all have enough".to_owned()
        }
    }
}

/// Idle nodes that are all alike.
#[derive(Debug)]
struct Group<'a> {
    nodes: Vec<&'a Free<'a>>,
    cost: f64,
}

impl<'a> Group<'a> {
    fn all(free: &'a [Free<'a>], policy: &Policy) -> Vec<Self> {
        let mut groups: BTreeMap<(String, u32, Vec<&String>), Vec<&Free<'_>>> = BTreeMap::new();
        for node in free.iter().filter(|node| !node.can.is_empty()) {
            let key = (node.accelerator.name.clone(), node.card.count, node.can.keys().collect());
            groups.entry(key).or_default().push(node);
        }
        let group = |mut nodes: Vec<&'a Free<'a>>| {
            // Who stays longest is used first.
            nodes.sort_by_key(|node| (std::cmp::Reverse(node.seen.ends_at_ms.unwrap_or(u64::MAX)), node.seen.session));
            let first = nodes[0];
            let price = policy.prices.get(&first.accelerator.name).copied();
            let cost = f64::from(first.card.count) * price.unwrap_or(first.accelerator.bandwidth_bytes_per_s / 1e12);
            Self { nodes, cost }
        };
        groups.into_values().map(group).collect()
    }
}

/// What the models get.
struct Given {
    /// Nodes by model and group.
    nodes: Vec<Vec<u32>>,
    trouble: Option<TooManyTypes>,
}

/// As much of what is needed as can be given: all, or the same share of everybody's load, or what the first models need.
fn give(wanted: &[Wanted<'_>], groups: &[Group<'_>]) -> Given {
    let nothing = vec![vec![0; groups.len()]; wanted.len()];
    let count = |group: &Group<'_>| u32::try_from(group.nodes.len()).unwrap_or(u32::MAX);
    let kinds: Vec<Kind> = groups.iter().map(|group| Kind { count: count(group), cost: group.cost }).collect();
    let gives: Vec<Vec<Gives>> = wanted
        .iter()
        .map(|of| {
            let can = |(kind, group): (usize, &Group<'_>)| {
                let (_, rate) = group.nodes[0].serves(of)?;
                Some(Gives { kind, of: vec![rate, 1.0] })
            };
            groups.iter().enumerate().filter_map(can).collect()
        })
        .collect();
    let try_at = |share: &dyn Fn(usize) -> Option<f64>| {
        let needs =
            |(nth, of): (usize, &Wanted<'_>)| share(nth).map_or_else(|| vec![0.0, 0.0], |share| of.needs(share));
        least_enough(&kinds, &wanted.iter().enumerate().map(needs).collect::<Vec<_>>(), &gives)
    };
    let of_all = |share: f64| try_at(&|_| Some(share));
    match of_all(1.0) {
        Ok(Some(nodes)) => return Given { nodes, trouble: None },
        Err(trouble) => return Given { nodes: nothing, trouble: Some(trouble) },
        Ok(None) => {}
    }
    if let Ok(Some(mut nodes)) = of_all(0.0) {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            match of_all(middle) {
                Ok(Some(found)) => (low, nodes) = (middle, found),
                _ => high = middle,
            }
        }
        return Given { nodes, trouble: None };
    }
    // Not even a node for each: those that the operator names first.
    let (mut served, mut nodes) = (Vec::new(), nothing);
    for nth in 0..wanted.len() {
        served.push(nth);
        match try_at(&|model| served.contains(&model).then_some(0.0)) {
            Ok(Some(given)) => nodes = given,
            _ => _ = served.pop(),
        }
    }
    Given { nodes, trouble: None }
}

fn step(node: &NodeSeen, serve: Option<Serve>, why: String) -> Step {
    Step {
        node: node.session.peer.to_string(),
        epoch: node.session.epoch.0,
        host: node.host.clone(),
        accelerators: accelerators(node),
        serve,
        why,
    }
}

fn idle_node(node: &NodeSeen, why: String) -> IdleNode {
    IdleNode { node: node.session.peer.to_string(), host: node.host.clone(), accelerators: accelerators(node), why }
}

fn accelerators(node: &NodeSeen) -> String {
    node.cards.as_ref().map_or_else(|| "none".to_owned(), |card| format!("{} x {}", card.count, card.kind))
}
