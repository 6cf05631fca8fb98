//! Signed statements as text files: comments for people, one line that counts.

use base64::{Engine, engine::general_purpose::STANDARD};
use otela_proto::wire::Signed;
use prost::Message;

/// No statement's file is longer.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A statement about a binary.
    Release,
    /// A statement about a member.
    Membership,
    /// A provider's certificate.
    Provider,
}

impl Kind {
    const fn tag(self) -> &'static str {
        match self {
            Self::Release => "otela-release-1",
            Self::Membership => "otela-membership-1",
            Self::Provider => "otela-provider-1",
        }
    }
}

/// Why a text is not a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArmorError {
    /// There is no line that begins as it should.
    #[error("there is no line that begins with `{0}`: it is another kind of file")]
    NotThere(&'static str),
    /// The line is cut or changed.
    #[error("the line that begins with `{0}` is damaged")]
    Damaged(&'static str),
}

/// The text of a statement. `shown` is what people read of it, name by name; nothing else reads that.
#[must_use]
pub fn armor(kind: Kind, shown: &[(&str, String)], signed: &Signed) -> String {
    let width = shown.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let comments: String = shown.iter().map(|(name, value)| format!("# {name:width$}  {value}\n")).collect();
    format!("{comments}{} {}\n", kind.tag(), STANDARD.encode(signed.encode_to_vec()))
}

/// The statement in a text. Its signature is not looked at.
///
/// # Errors
/// [`ArmorError`].
pub fn unarmor(kind: Kind, text: &str) -> Result<Signed, ArmorError> {
    let tag = kind.tag();
    if text.len() > TEXT_BYTES_MAX {
        return Err(ArmorError::NotThere(tag));
    }
    let line = text.lines().find_map(|line| line.trim().strip_prefix(tag)).ok_or(ArmorError::NotThere(tag))?;
    let bytes = STANDARD.decode(line.trim()).map_err(|_| ArmorError::Damaged(tag))?;
    Signed::read(&bytes).map_err(|_| ArmorError::Damaged(tag))
}
