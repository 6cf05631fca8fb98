//! What a scheduler signs for a node.

use super::Ticket;
use crate::{
    id::{Epoch, MeshName, Session},
    sign::{Kind, Refusal},
    wire::{DirectiveBody, Signed, WorkBody},
};
use libp2p_identity::{Keypair, PeerId};

const KIND: Kind = Kind::new(b"otela/directive/1", DIRECTIVE_BYTES_MAX);
/// The version of the message. A node that did not know a field would not do what it says.
const SCHEMA: u32 = 1;
/// Largest directive in bytes. One has about 300.
pub const DIRECTIVE_BYTES_MAX: usize = 2048;
/// Where a node takes directives, by POST over the mesh: an encoded [`Signed`].
pub const DIRECTIVE_PATH: &str = "/otela/directive";
/// Longest name of a model or template.
const NAME_BYTES_MAX: usize = 256;
/// More accelerators than any machine has.
const ACCELERATORS_MAX: u32 = 1024;

/// An engine to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The provider's launch template.
    pub template: String,
    /// The model.
    pub model: String,
    /// Accelerators that one copy of the model is spread over.
    pub tensor_parallel: u32,
    /// Copies of the model.
    pub data_parallel: u32,
}

/// An order to one session of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// To whom.
    pub to: Session,
    /// By whom, and how new.
    pub ticket: Ticket,
    /// What to serve; nothing, if it is to be idle.
    pub work: Option<Work>,
}

/// Why a directive cannot be followed by anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Longer than [`DIRECTIVE_BYTES_MAX`].
    #[error("the directive is larger than one may be")]
    TooLarge,
    /// Not the message it should be.
    #[error("the directive is damaged")]
    Malformed,
    /// Of a later version.
    #[error("the directive is of a version that this otela does not know")]
    UnknownVersion,
    /// Not signed by the scheduler that it names, or for another mesh.
    #[error("the signature is not the scheduler's for this mesh")]
    BadSignature,
    /// A model or template with a name that could mean something else on a command line.
    #[error("names of models and templates are letters, digits and . _ - / : @ +, and begin with a letter or digit")]
    BadName,
    /// No accelerators, or more than there are anywhere.
    #[error("a number of accelerators is from 1 to {ACCELERATORS_MAX}")]
    BadNumber,
}

impl From<Refusal> for Invalid {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooLarge => Self::TooLarge,
            Refusal::BadSignature | Refusal::NotEd25519 => Self::BadSignature,
            _ => Self::Malformed,
        }
    }
}

impl Invalid {
    /// The cause as a word of the API and a metric label.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::UnknownVersion => "unknown_version",
            Self::BadSignature => "bad_signature",
            Self::BadName => "bad_name",
            Self::BadNumber => "bad_number",
        }
    }
}

impl Work {
    /// Whether its names and numbers are such that they can stand on a command line.
    ///
    /// # Errors
    /// [`Invalid::BadName`], [`Invalid::BadNumber`].
    pub fn check(&self) -> Result<(), Invalid> {
        if ![&self.template, &self.model].into_iter().all(|name| is_name(name)) {
            return Err(Invalid::BadName);
        }
        let numbers = [self.tensor_parallel, self.data_parallel];
        let all = self.tensor_parallel.saturating_mul(self.data_parallel);
        if numbers.contains(&0) || all > ACCELERATORS_MAX { Err(Invalid::BadNumber) } else { Ok(()) }
    }
}

/// Whether `text` is the name of a model or a template: nothing that an engine or a shell could take for something else.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    text.len() <= NAME_BYTES_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(is_plain)
        && !text.split('/').any(|part| part == "..")
}

impl Directive {
    /// Signs it as the scheduler that holds `key`, which the ticket names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn sign(&self, key: &Keypair, mesh: &MeshName) -> Result<Signed, Invalid> {
        self.work.as_ref().map_or(Ok(()), Work::check)?;
        let body = DirectiveBody {
            schema: SCHEMA,
            node: self.to.peer.to_bytes(),
            epoch: self.to.epoch.0,
            scheduler: self.ticket.scheduler.to_bytes(),
            generation: self.ticket.generation,
            plan: self.ticket.plan,
            work: self.work.as_ref().map(|work| WorkBody {
                template: work.template.clone(),
                model: work.model.clone(),
                tensor_parallel: work.tensor_parallel,
                data_parallel: work.data_parallel,
            }),
        };
        Ok(KIND.sign(key, Some(mesh), &body)?.0)
    }

    /// Reads an encoded [`Signed`] directive, and checks its signature for `mesh` and what it says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(bytes: &[u8], mesh: &MeshName) -> Result<Self, Invalid> {
        let statement = KIND.read::<DirectiveBody>(bytes)?;
        let body = &statement.body;
        if body.schema != SCHEMA {
            return Err(Invalid::UnknownVersion);
        }
        let peer = |bytes: &[u8]| PeerId::from_bytes(bytes).map_err(|_| Invalid::Malformed);
        let (node, scheduler) = (peer(&body.node)?, peer(&body.scheduler)?);
        statement.verify(&scheduler, Some(mesh))?;
        let work = body.work.as_ref().map(|work| Work {
            template: work.template.clone(),
            model: work.model.clone(),
            tensor_parallel: work.tensor_parallel,
            data_parallel: work.data_parallel,
        });
        work.as_ref().map_or(Ok(()), Work::check)?;
        let ticket = Ticket { generation: body.generation, scheduler, plan: body.plan };
        Ok(Self { to: Session { peer: node, epoch: Epoch(body.epoch) }, ticket, work })
    }
}
