//! Which nodes and models are asked for.
//!
//! Values of one parameter are alternatives; different parameters must all hold.

use super::query::{BadParameter, Parameters};
use otela_proto::{
    lifecycle::Lifecycle,
    provider::{PROVIDER_LABEL, ProviderId},
    registry::{Belief, ModelState, Node, View},
};
use std::{collections::HashSet, time::Duration};

const BELIEFS: [Belief; 4] = [
    Belief::Alive,
    Belief::Unreachable(Duration::ZERO),
    Belief::Suspect(Duration::ZERO),
    Belief::Evicted(Duration::ZERO),
];

/// A name for where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// What its owner says.
    Said(Lifecycle),
    /// The name of what this peer believes.
    Believed(&'static str),
}

impl State {
    fn parse(parameter: &str, name: &str, said: bool) -> Result<Self, BadParameter> {
        let lifecycles: &[Lifecycle] = if said { &Lifecycle::ALL } else { &[] };
        let all = lifecycles.iter().map(|state| (state.name(), Self::Said(*state)));
        let all: Vec<_> = all.chain(BELIEFS.map(|belief| (belief.name(), Self::Believed(belief.name())))).collect();
        let found = all.iter().find(|(known, _)| *known == name);
        found.map(|(_, state)| *state).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            BadParameter::value(parameter, name, &format!("allowed are {}", names.join(", ")))
        })
    }

    fn matches(self, node: &Node) -> bool {
        let says = node.entry.rank().lifecycle;
        match self {
            Self::Said(state) => state == says,
            // Who has left has left, whatever was believed of it.
            Self::Believed(name) => says != Lifecycle::Left && node.belief.name() == name,
        }
    }

    /// Whether it asks for nodes that are not part of the mesh any more.
    fn is_departed(self) -> bool {
        self == Self::Said(Lifecycle::Left) || self == Self::Believed(Belief::Evicted(Duration::ZERO).name())
    }
}

/// A provider that is asked for.
#[derive(Debug)]
enum Wanted {
    /// By its id: a node must have proven it.
    Proven(ProviderId),
    /// By a name, as anybody may write it into a label.
    Named(String),
}

impl Wanted {
    fn parse(text: &str) -> Self {
        // What reads like an id never matches a label, or a label could pass for a proof.
        text.parse().map_or_else(|_| Self::Named(text.to_owned()), Self::Proven)
    }

    fn matches(&self, node: &Node) -> bool {
        match self {
            Self::Proven(id) => node.provider.verified() == Some(id),
            Self::Named(name) => node.entry.payload().labels.get(PROVIDER_LABEL) == Some(name),
        }
    }
}

/// What owners say of their nodes, beyond models.
#[derive(Debug, Default)]
struct Traits {
    labels: Vec<(String, Option<String>)>,
    gpus: Vec<String>,
    providers: Vec<Wanted>,
}

impl Traits {
    fn parse(parameters: &Parameters) -> Result<Self, BadParameter> {
        let label = |text: &str| match text.split_once('=') {
            Some(("", _)) => Err(BadParameter::value("label", text, "give KEY or KEY=VALUE")),
            Some((key, value)) => Ok((key.to_owned(), Some(value.to_owned()))),
            None => Ok((text.to_owned(), None)),
        };
        Ok(Self {
            labels: parameters.values("label")?.into_iter().map(label).collect::<Result<_, _>>()?,
            gpus: owned(parameters.values("gpu")?),
            providers: parameters.values("provider")?.into_iter().map(Wanted::parse).collect(),
        })
    }

    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.gpus.is_empty() && self.providers.is_empty()
    }

    fn matches(&self, node: &Node) -> bool {
        let payload = node.entry.payload();
        let has_label = |(key, value): &(String, Option<String>)| {
            payload.labels.get(key).is_some_and(|said| value.as_ref().is_none_or(|value| value == said))
        };
        let has_gpu = |kind: &String| {
            let accelerators = payload.hardware.iter().flat_map(|hardware| &hardware.accelerators);
            accelerators.into_iter().any(|accelerator| accelerator.kind.eq_ignore_ascii_case(kind))
        };
        any(&self.labels, has_label)
            && any(&self.gpus, has_gpu)
            && any(&self.providers, |provider| provider.matches(node))
    }
}

/// Whether one of the alternatives holds, or there are none to choose from.
fn any<T>(alternatives: &[T], holds: impl Fn(&T) -> bool) -> bool {
    alternatives.is_empty() || alternatives.iter().any(holds)
}

fn owned(values: Vec<&str>) -> Vec<String> {
    values.into_iter().map(str::to_owned).collect()
}

/// Which nodes are asked for.
#[derive(Debug, Default)]
pub(super) struct NodeFilter {
    states: Vec<State>,
    beliefs: Vec<State>,
    models: Vec<String>,
    traits: Traits,
}

impl NodeFilter {
    /// The parameters that it reads.
    pub(super) const PARAMETERS: [&str; 6] = ["state", "belief", "model", "label", "gpu", "provider"];

    pub(super) fn parse(parameters: &Parameters) -> Result<Self, BadParameter> {
        let states = |name: &str, said| -> Result<Vec<State>, BadParameter> {
            parameters.values(name)?.into_iter().map(|value| State::parse(name, value, said)).collect()
        };
        Ok(Self {
            states: states("state", true)?,
            beliefs: states("belief", false)?,
            models: owned(parameters.values("model")?),
            traits: Traits::parse(parameters)?,
        })
    }

    /// Whether `node` is asked for. Departed ones are, if a state is named by which they have departed.
    pub(super) fn matches(&self, node: &Node) -> bool {
        let named = || self.states.iter().chain(&self.beliefs).any(|state| state.is_departed() && state.matches(node));
        let payload = node.entry.payload();
        let has_model = |model: &String| payload.models().any(|(_, card)| card.id == *model);
        (node.is_listed() || named())
            && any(&self.states, |state| state.matches(node))
            && any(&self.beliefs, |belief| belief.matches(node))
            && any(&self.models, has_model)
            && self.traits.matches(node)
    }
}

/// Which models are asked for.
#[derive(Debug, Default)]
pub(super) struct ModelFilter {
    /// Whether they must have a ready replica, or must have none.
    ready: Vec<bool>,
    models: Vec<String>,
    traits: Traits,
}

impl ModelFilter {
    /// The parameters that it reads.
    pub(super) const PARAMETERS: [&str; 5] = ["state", "model", "label", "gpu", "provider"];

    pub(super) fn parse(parameters: &Parameters) -> Result<Self, BadParameter> {
        let ready = |name: &str| match name {
            "ready" => Ok(true),
            "unready" => Ok(false),
            _ => Err(BadParameter::value("state", name, "allowed are ready, unready")),
        };
        Ok(Self {
            ready: parameters.values("state")?.into_iter().map(ready).collect::<Result<_, _>>()?,
            models: owned(parameters.values("model")?),
            traits: Traits::parse(parameters)?,
        })
    }

    /// The models of `view` that are asked for.
    pub(super) fn select<'a>(&self, view: &'a View) -> Vec<(&'a str, &'a ModelState)> {
        let announced = (!self.traits.is_empty()).then(|| self.announced(view));
        view.models()
            .map(|(id, state)| (&**id, state))
            .filter(|(id, state)| {
                any(&self.ready, |ready| *ready != state.ready.is_empty())
                    && any(&self.models, |model| model == id)
                    && announced.as_ref().is_none_or(|models| models.contains(id))
            })
            .collect()
    }

    /// The models that a listed node of the wanted kind serves or loads.
    fn announced<'a>(&self, view: &'a View) -> HashSet<&'a str> {
        let nodes = view.nodes().map(|(_, node)| node);
        nodes
            .filter(|node| node.is_listed() && self.traits.matches(node))
            .flat_map(|node| node.entry.payload().models().map(|(_, card)| card.id.as_str()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
