//! For whom this peer is run: the provider certificate that it shows, made here with the provider's key or read from a
//! file. What a certificate proves, and when it counts, is in [`otela_proto::provider`].

mod follow;

pub(super) use follow::start;

use super::{
    Identity, IdentityError,
    admission::{AdmissionError, Kind, load_statement},
    defaults::CERTIFICATE_FOR,
    gossip::unix_ms,
};
use libp2p::PeerId;
use otela_proto::{
    admission::Validity,
    clock::millis,
    entry::CLOCK_SLACK,
    id::MeshName,
    provider::{ProviderCertificate, ProviderRules, Terms, Unproven},
};
use prost::Message;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What is certified.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The peer.
    pub peer: PeerId,
    /// The labels that its entry has.
    pub labels: BTreeMap<String, String>,
}

/// What a peer shows of its provider, and where the next certificate comes from.
#[derive(Debug, Clone)]
pub struct ProviderSettings {
    subject: Subject,
    source: Source,
    shown: Shown,
}

#[derive(Debug, Clone)]
enum Source {
    /// Certificates are made here.
    Key(Box<Identity>),
    /// Somebody else makes them.
    File(PathBuf),
}

/// A certificate, and its bytes.
#[derive(Debug, Clone)]
struct Shown {
    certificate: ProviderCertificate,
    bytes: Vec<u8>,
}

/// Why a peer cannot show its provider.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The provider's key is not to be had.
    #[error("cannot sign for the provider")]
    Key(#[source] IdentityError),
    /// The provider's key is there, and no use.
    #[error("the provider's key {path} cannot certify this node: {why}")]
    Useless {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: Unproven,
    },
    /// The certificate's file cannot be read.
    #[error(transparent)]
    File(#[from] AdmissionError),
    /// A certificate for somebody else.
    #[error(
        "the provider certificate in {path} is for peer {subject}, and this peer is {me}: give the key it was made for with --key"
    )]
    AnotherPeer {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        subject: Box<PeerId>,
        /// Who we are.
        me: Box<PeerId>,
    },
    /// A certificate for nodes with other labels.
    #[error(
        "the provider certificate in {path} is for nodes with the label {label}={wanted}, and this one has {said}: set it with --label or --site, or have a certificate signed for this node"
    )]
    Labels {
        /// Which file.
        path: PathBuf,
        /// The label.
        label: String,
        /// What it must be.
        wanted: String,
        /// What it is, in words.
        said: String,
    },
    /// It does not count for another reason.
    #[error("the provider certificate in {path} does not count: {why}")]
    NotCounting {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: Unproven,
    },
}

impl ProviderSettings {
    /// Those of `subject`, for which certificates are made with the key in `path` for as long as it runs. The key is
    /// read once and stays in this process.
    ///
    /// # Errors
    /// [`ProviderError`]
    pub fn with_key(path: &Path, subject: Subject, rules: &ProviderRules) -> Result<Self, ProviderError> {
        let identity = Identity::load(path).map_err(ProviderError::Key)?;
        let useless = |why| ProviderError::Useless { path: path.to_owned(), why };
        let now_ms = unix_ms();
        let shown = Shown::made(&identity, &subject, &rules.mesh, now_ms).map_err(useless)?;
        shown.certificate.verify(&subject.peer, &subject.labels, rules, now_ms).map_err(useless)?;
        Ok(Self { subject, source: Source::Key(identity.into()), shown })
    }

    /// Those of `subject`, with the certificate in `path`, which is read again when it has changed.
    ///
    /// # Errors
    /// [`ProviderError`]
    pub fn with_certificate(path: &Path, subject: Subject, rules: &ProviderRules) -> Result<Self, ProviderError> {
        let missing = || AdmissionError::Missing { path: path.to_owned() };
        let shown = Shown::load(path)?.ok_or_else(missing)?;
        shown.check(path, &subject, rules, unix_ms())?;
        Ok(Self { subject, source: Source::File(path.to_owned()), shown })
    }

    /// The certificate that is shown at first, encoded.
    pub(super) fn certificate(&self) -> Vec<u8> {
        self.shown.bytes.clone()
    }

    /// Whether somebody else has to renew it.
    pub(super) fn is_of_file(&self) -> bool {
        matches!(self.source, Source::File(_))
    }
}

impl Shown {
    /// A new certificate. Others' clocks may be behind by as much as they grant to entries.
    fn made(key: &Identity, subject: &Subject, mesh: &MeshName, now_ms: u64) -> Result<Self, Unproven> {
        let validity = Validity {
            from_ms: now_ms.saturating_sub(millis(CLOCK_SLACK)),
            until_ms: now_ms.saturating_add(millis(CERTIFICATE_FOR)),
        };
        let (subject, mesh) = (subject.peer, Some(mesh.clone()));
        let terms = Terms { subject, mesh, constraints: BTreeMap::new(), validity };
        Self::of(ProviderCertificate::sign(key.keypair(), &terms)?.encode_to_vec())
    }

    /// The certificate in a file; `None` if there is no file.
    fn load(path: &Path) -> Result<Option<Self>, ProviderError> {
        let Some(signed) = load_statement(path, Kind::Provider)? else { return Ok(None) };
        let shown = Self::of(signed.encode_to_vec());
        shown.map(Some).map_err(|why| ProviderError::NotCounting { path: path.to_owned(), why })
    }

    fn of(bytes: Vec<u8>) -> Result<Self, Unproven> {
        Ok(Self { certificate: ProviderCertificate::open(&bytes)?, bytes })
    }

    /// Whether it counts for `subject`; what is wrong is said in a way that helps.
    fn check(&self, path: &Path, subject: &Subject, rules: &ProviderRules, now_ms: u64) -> Result<(), ProviderError> {
        let Err(why) = self.certificate.verify(&subject.peer, &subject.labels, rules, now_ms) else { return Ok(()) };
        let path = path.to_owned();
        Err(match (why, self.certificate.unmet(&subject.labels)) {
            (Unproven::OtherPeer, _) => {
                let (of, me) = (Box::new(self.certificate.terms().subject), Box::new(subject.peer));
                ProviderError::AnotherPeer { path, subject: of, me }
            }
            (Unproven::OtherLabels, Some((label, wanted))) => {
                let said = subject.labels.get(label);
                let said = said.map_or_else(|| "no such label".to_owned(), |said| format!("{label}={said}"));
                ProviderError::Labels { path, label: label.to_owned(), wanted: wanted.to_owned(), said }
            }
            (why, _) => ProviderError::NotCounting { path, why },
        })
    }
}

#[cfg(test)]
mod tests;
