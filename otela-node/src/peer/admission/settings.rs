//! What a peer brings to the door: the rules of its mesh, and what others have signed about it.

use super::{
    ShownFiles,
    armor::{ArmorError, Kind, unarmor},
    mesh_file::{MeshFile, MeshFileError},
};
use crate::peer::{gossip::unix_ms, small};
use libp2p::PeerId;
use otela_proto::{
    admission::{BinaryDigest, Credentials, Membership, Refused, Release, Rules, StatementError},
    id::MeshName,
    wire::Signed,
};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

/// No statement's file is longer.
const STATEMENT_BYTES_MAX: u64 = 64 * 1024;

/// Which mesh, whom it admits, and what this peer can show.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionSettings {
    /// The rules at the start.
    pub rules: Rules,
    /// Where they came from, if from a file: it is read again when it changes.
    pub mesh_file: Option<PathBuf>,
    /// A [`Release`] of our own binary.
    pub release: Option<Signed>,
    /// A [`Membership`] of ours.
    pub membership: Option<Signed>,
    /// Where these two come from, if from files: renewed ones are taken over while the peer runs.
    pub files: ShownFiles,
}

/// Why a peer would not be admitted to its own mesh.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The mesh file.
    #[error(transparent)]
    MeshFile(#[from] MeshFileError),
    /// A statement's file cannot be read.
    #[error("cannot read {path}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// A file that was named is not there.
    #[error("there is no file {path}")]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// A file is not a statement.
    #[error("{path} cannot be used")]
    NotAStatement {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: ArmorError,
    },
    /// A statement's signature.
    #[error("{path} cannot be used")]
    BadStatement {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: StatementError,
    },
    /// A statement about another binary: this one was changed after it was signed, or the file was copied.
    #[error(
        "the signature in {path} is for another binary ({signed}) than this one ({actual}): install binary and signature together, or have this binary signed"
    )]
    AnotherBinary {
        /// Which file.
        path: PathBuf,
        /// Of which binary it speaks.
        signed: Box<BinaryDigest>,
        /// Which binary is there.
        actual: Box<BinaryDigest>,
    },
    /// A membership of somebody else.
    #[error(
        "the membership in {path} is for peer {member}, and this peer is {me}: give the key it was made for with --key"
    )]
    AnotherPeer {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        member: Box<PeerId>,
        /// Who we are.
        me: Box<PeerId>,
    },
    /// The rules would not let us in.
    #[error("mesh {mesh} would not admit this peer: {refused}")]
    NotAdmitted {
        /// Which mesh.
        mesh: MeshName,
        /// Why.
        refused: Refused,
    },
}

/// A binary, and what is said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnBinary {
    /// The binary's file, opened in a way that gives what runs even if another was installed meanwhile.
    pub image: PathBuf,
    /// Where its statement is.
    pub statement: PathBuf,
}

impl OwnBinary {
    /// The running binary and the statement beside it, in a file of the binary's name with `.release` after it.
    ///
    /// # Errors
    /// Where the system does not tell which binary runs.
    pub fn running() -> io::Result<Self> {
        Ok(Self { statement: Self::beside(&std::env::current_exe()?), image: "/proc/self/exe".into() })
    }

    /// Where the statement about a binary is looked for.
    #[must_use]
    pub fn beside(binary: &Path) -> PathBuf {
        let mut name = binary.as_os_str().to_owned();
        name.push(".release");
        name.into()
    }

    /// The statement, if there is one.
    ///
    /// # Errors
    /// [`AdmissionError`], also if it is about another binary.
    pub fn release(&self) -> Result<Option<Signed>, AdmissionError> {
        let Some(signed) = load_statement(&self.statement, Kind::Release)? else { return Ok(None) };
        let bad = |source| AdmissionError::BadStatement { path: self.statement.clone(), source };
        let release = Release::open(&signed).map_err(bad)?;
        let actual = digest(&self.image).map_err(|source| AdmissionError::Io { path: self.image.clone(), source })?;
        if release.digest != actual {
            let path = self.statement.clone();
            let (signed, actual) = (Box::new(release.digest), Box::new(actual));
            return Err(AdmissionError::AnotherBinary { path, signed, actual });
        }
        Ok(Some(signed))
    }
}

/// SHA-256 of a file.
///
/// # Errors
/// If it cannot be read.
pub fn digest(path: &Path) -> io::Result<BinaryDigest> {
    small::is_file(path)?;
    let (mut file, mut hash) = (BufReader::with_capacity(1 << 20, File::open(path)?), Sha256::new());
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(BinaryDigest(hash.finalize().into())),
            read => hash.update(&bytes[..read]),
        }
    }
}

impl AdmissionSettings {
    /// Those of a peer that shows nothing, in a mesh that admits everybody.
    #[must_use]
    pub fn open(mesh: MeshName) -> Self {
        Self::of_rules(Rules::open(mesh))
    }

    fn of_rules(rules: Rules) -> Self {
        Self { rules, mesh_file: None, release: None, membership: None, files: ShownFiles::default() }
    }

    /// Takes the rules of a mesh file.
    #[must_use]
    pub fn of(file: &MeshFile, path: &Path) -> Self {
        Self { mesh_file: Some(path.to_owned()), ..Self::of_rules(file.rules.clone()) }
    }

    /// Adds what is said of our binary. What is wrong with it is an error only where the mesh asks for it, or where
    /// `insists` says that the file was named.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub fn with_binary(mut self, binary: &OwnBinary, insists: bool) -> Result<Self, AdmissionError> {
        self.files.binary = Some(binary.clone());
        match binary.release() {
            Ok(release) => self.release = release,
            Err(error) if insists || self.rules.require_signed => return Err(error),
            Err(error) => {
                tracing::warn!(
                    error = crate::telemetry::chain(&error),
                    "going on without a signature, for this mesh asks for none"
                );
            }
        }
        Ok(self)
    }

    /// Adds a membership of `me`.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub fn with_membership(mut self, path: &Path, me: PeerId) -> Result<Self, AdmissionError> {
        let missing = || AdmissionError::Missing { path: path.to_owned() };
        let signed = load_statement(path, Kind::Membership)?.ok_or_else(missing)?;
        let bad = |source| AdmissionError::BadStatement { path: path.to_owned(), source };
        let membership = Membership::open(&signed, &self.rules.mesh).map_err(bad)?;
        if membership.member != me {
            let (member, me) = (Box::new(membership.member), Box::new(me));
            return Err(AdmissionError::AnotherPeer { path: path.to_owned(), member, me });
        }
        self.membership = Some(signed);
        self.files.membership = Some(path.to_owned());
        Ok(self)
    }

    /// Whether `me` would be admitted: others keep the same rules, so it is better said at once.
    ///
    /// # Errors
    /// [`AdmissionError::NotAdmitted`].
    pub fn check(&self, me: &PeerId) -> Result<(), AdmissionError> {
        let refused = self.rules.judge(me, &self.credentials(), unix_ms());
        refused.map_err(|refused| AdmissionError::NotAdmitted { mesh: self.rules.mesh.clone(), refused })
    }

    /// What this peer can show, read.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials {
            release: self.release.as_ref().and_then(|signed| Release::open(signed).ok()),
            membership: self.membership.as_ref().and_then(|signed| Membership::open(signed, &self.rules.mesh).ok()),
        }
    }
}

/// The statement in a file; `None` if there is no file.
///
/// # Errors
/// [`AdmissionError`].
pub fn load_statement(path: &Path, kind: Kind) -> Result<Option<Signed>, AdmissionError> {
    let text = match small::read(path, STATEMENT_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(AdmissionError::Io { path: path.to_owned(), source }),
    };
    let signed = unarmor(kind, &text);
    signed.map(Some).map_err(|source| AdmissionError::NotAStatement { path: path.to_owned(), source })
}
