//! What a scheduler tells idle nodes to serve, and what they say of it.
//!
//! A node offers itself with [`Offer`]; a scheduler whose key the node's provider trusts signs a [`Directive`] for one
//! session of it; the node answers, and shows in [`Assigned`] what became of that. There may be several schedulers, and
//! one that was cut off may come back and go on with a plan that is none any more: so every directive has a [`Ticket`],
//! and a node takes none below the highest that it has taken.

mod directive;
mod ticket;

pub use directive::{DIRECTIVE_BYTES_MAX, DIRECTIVE_PATH, Directive, Invalid, Work};
pub use ticket::{Claim, Standing, Ticket, standing};

/// What an idle node can be told to start, and by whom.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Offer {
    /// Its launch templates.
    #[prost(message, repeated, tag = "1")]
    pub templates: Vec<OfferedTemplate>,
    /// The schedulers that it trusts, as peer ids (binary form).
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub schedulers: Vec<Vec<u8>>,
}

impl Offer {
    /// The first of the templates by which `model` can be started.
    #[must_use]
    pub fn template_for(&self, model: &str) -> Option<&OfferedTemplate> {
        self.templates.iter().find(|template| template.allows(model))
    }
}

/// A way to start an engine; its command line stays with the provider.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OfferedTemplate {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Models that it may start: ids, or beginnings of ids with a `*` after them. All, if there are none.
    #[prost(string, repeated, tag = "2")]
    pub models: Vec<String>,
}

impl OfferedTemplate {
    /// Whether it may start `model`.
    #[must_use]
    pub fn allows(&self, model: &str) -> bool {
        let fits = |allowed: &String| match allowed.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == allowed,
        };
        self.models.is_empty() || self.models.iter().any(fits)
    }
}

/// How far a node has come with what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum AssignedState {
    /// Not told, or a state that this version does not know.
    Unknown = 0,
    /// The engine is being started.
    Starting = 1,
    /// It serves.
    Serving = 2,
    /// It ends, since the node was told otherwise.
    Stopping = 3,
    /// It could not be started, or has ended by itself. The node is idle.
    Failed = 4,
}

impl AssignedState {
    /// The state's name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Stopping => "stopping",
            Self::Failed => "failed",
        }
    }
}

/// What a node was told to serve last.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Assigned {
    /// The scheduler that said so, as a peer id (binary form).
    #[prost(bytes = "vec", tag = "1")]
    pub scheduler: Vec<u8>,
    /// The scheduler's generation.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
    /// Its plan.
    #[prost(uint64, tag = "3")]
    pub plan: u64,
    /// The model.
    #[prost(string, tag = "4")]
    pub model: String,
    /// The template by which it was started.
    #[prost(string, tag = "5")]
    pub template: String,
    /// How far it has come.
    #[prost(enumeration = "AssignedState", tag = "6")]
    pub state: i32,
    /// Why it failed; empty otherwise.
    #[prost(string, tag = "7")]
    pub reason: String,
}

impl Assigned {
    /// How far it has come.
    #[must_use]
    pub fn stage(&self) -> AssignedState {
        AssignedState::try_from(self.state).unwrap_or(AssignedState::Unknown)
    }
}

#[cfg(test)]
mod tests;
