//! From what was seen to what is to be done.

use super::{
    capacity::{Capacity, accelerator},
    give::give,
    jobs,
    observation::{Card, Doing, NodeSeen, Observation},
    policy::Policy,
    record::{IdleNode, ModelPlan, Serve, Step, Submit},
    wanted::Wanted,
};
use crate::{
    catalog::{Accelerator, Catalog},
    place::{Gives, Kind},
};
use otela_proto::{assignment::AssignedState, id::Session};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

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
    /// As in [`super::Plan::submit`].
    pub submit: Vec<Submit>,
}

/// What is to be done. Nodes that serve go on as they are; nodes whose model nobody wants any more are to be idle, and idle
/// ones get what is missing, on as little as will do; what is then still missing is asked of Slurm. Nodes that end soon are
/// left alone and not reckoned with. The same observation gives the same decision.
pub fn decide(policy: &Policy, catalog: &Catalog, seen: &Observation, avoided: &Avoided) -> Decision {
    let mut wanted: Vec<Wanted<'_>> =
        policy.models.iter().filter_map(|of| Wanted::new(of, policy, catalog, seen)).collect();
    let (mut steps, mut free, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    let mut stay = Vec::new();
    for node in &seen.nodes {
        match ends_soon(node, seen.now_ms, policy.replace_before_end) {
            None => stay.push(node),
            Some(why) if matches!(node.doing, Doing::Nothing) || has_failed(node) => idle.push(idle_node(node, why)),
            Some(_) => {}
        }
    }
    for node in stay {
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
    let (used, trouble) = place(&mut wanted, &Group::all(&free, policy), &mut steps);
    for node in free.iter().filter(|node| !used.contains(&node.seen.session)) {
        idle.push(idle_node(node.seen, node.why_not(&wanted)));
    }
    let asked = jobs::ask(&wanted, policy, catalog, seen);
    let more = || "more idle nodes that may start it, or larger ones, would help".to_owned();
    let remedy = [trouble, asked.remedy].into_iter().flatten().collect::<Vec<_>>();
    let remedy = if remedy.is_empty() { more() } else { remedy.join("; ") };
    let models = wanted.iter().map(|of| of.plan(&remedy)).collect();
    Decision { models, steps, idle, submit: asked.submit }
}

/// Gives idle nodes to the models that lack something. Which sessions are used, and what was in the way.
fn place(
    wanted: &mut [Wanted<'_>],
    groups: &[Group<'_>],
    steps: &mut Vec<Step>,
) -> (BTreeSet<Session>, Option<String>) {
    let count = |group: &Group<'_>| u32::try_from(group.nodes.len()).unwrap_or(u32::MAX);
    let kinds: Vec<Kind> = groups.iter().map(|group| Kind { count: count(group), cost: group.cost }).collect();
    let gives_to = |of: &Wanted<'_>| -> Vec<Gives> {
        let can = |(kind, group): (usize, &Group<'_>)| {
            let (_, rate) = group.nodes[0].serves(of)?;
            Some(Gives { kind, of: vec![rate, 1.0] })
        };
        groups.iter().enumerate().filter_map(can).collect()
    };
    let gives: Vec<_> = wanted.iter().map(gives_to).collect();
    let given = give(wanted, &kinds, &gives);
    let mut used = BTreeSet::new();
    for (of, given) in wanted.iter_mut().zip(&given.of) {
        for (group, count) in groups.iter().zip(given) {
            let unused: Vec<_> = group.nodes.iter().filter(|node| !used.contains(&node.seen.session)).collect();
            for node in unused.into_iter().take(*count as usize) {
                let Some((serve, rate)) = node.serves(of) else { continue };
                used.insert(node.seen.session);
                steps.push(step(node.seen, Some(serve), of.why(rate)));
                of.gets(rate);
            }
        }
    }
    (used, given.trouble.map(|trouble| trouble.to_string()))
}

fn has_failed(node: &NodeSeen) -> bool {
    matches!(node.doing, Doing::Told { state: AssignedState::Failed, .. })
}

/// Why a node is not reckoned with, if it ends within `before`.
fn ends_soon(node: &NodeSeen, now_ms: u64, before: Duration) -> Option<String> {
    let left = Duration::from_millis(node.ends_at_ms?.saturating_sub(now_ms));
    let soon = || {
        format!(
            "it ends in {} s, and nodes that end within {} s (replace_before_end) are given nothing",
            left.as_secs(),
            before.as_secs()
        )
    };
    (left < before).then(soon)
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
        if wanted.iter().any(Wanted::lacks) {
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
