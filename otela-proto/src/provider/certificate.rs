//! What a provider signs about a node.

use super::{ProviderId, Unproven};
use crate::{
    admission::{Rules, Validity},
    id::MeshName,
    sign::{Kind, Statement},
    wire::{ProviderBody, Signed},
};
use libp2p_identity::{Keypair, PeerId};
use std::collections::{BTreeMap, BTreeSet};

const KIND: Kind = Kind::new(b"otela/provider/1", CERTIFICATE_BYTES_MAX);
/// The version of the message. A constraint that a reader does not know would be one that it does not keep: whatever
/// narrows a certificate further needs a new version.
const SCHEMA: u32 = 1;
/// Largest certificate in bytes. It travels in a payload of 4 KiB, and without constraints has about 170.
pub const CERTIFICATE_BYTES_MAX: usize = 512;

/// For which node a certificate is, and when it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// The node's peer id.
    pub subject: PeerId,
    /// The mesh that it is in; `None` for any mesh.
    pub mesh: Option<MeshName>,
    /// Labels that the node's entry must have, each with this value.
    pub constraints: BTreeMap<String, String>,
    /// For how long it counts.
    pub validity: Validity,
}

/// By what certificates are judged besides their own terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRules {
    /// The mesh in which they are shown.
    pub mesh: MeshName,
    /// Keys that do not count any more.
    pub revoked_keys: BTreeSet<PeerId>,
}

impl ProviderRules {
    /// Those of `mesh`, where no key is revoked.
    #[must_use]
    pub fn new(mesh: MeshName) -> Self {
        Self { mesh, revoked_keys: BTreeSet::new() }
    }
}

impl From<&Rules> for ProviderRules {
    fn from(rules: &Rules) -> Self {
        Self { mesh: rules.mesh.clone(), revoked_keys: rules.revoked_keys.clone() }
    }
}

/// A provider's statement that a node is run for it. One in hand has a good signature; whether it counts for the node
/// that shows it, and now, is what [`Self::verify`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderCertificate {
    provider: ProviderId,
    terms: Terms,
}

impl ProviderCertificate {
    /// Signs `terms` as the provider that holds `key`.
    ///
    /// # Errors
    /// [`Unproven::NotEd25519`]; [`Unproven::TooLarge`] if the constraints are too long.
    pub fn sign(key: &Keypair, terms: &Terms) -> Result<Signed, Unproven> {
        let body = ProviderBody {
            schema: SCHEMA,
            provider: key.public().to_peer_id().to_bytes(),
            subject: terms.subject.to_bytes(),
            mesh: terms.mesh.as_ref().map_or("", MeshName::as_str).to_owned(),
            constraints: terms.constraints.clone(),
            from_ms: terms.validity.from_ms,
            until_ms: terms.validity.until_ms,
        };
        Ok(KIND.sign(key, terms.mesh.as_ref(), &body)?.0)
    }

    /// Reads an encoded [`Signed`] certificate and checks its signature.
    ///
    /// # Errors
    /// Why it proves nothing, whoever shows it.
    pub fn open(bytes: &[u8]) -> Result<Self, Unproven> {
        Self::verified(&KIND.read(bytes)?)
    }

    /// As [`Self::open`], for a message that was decoded.
    ///
    /// # Errors
    /// As there.
    pub fn open_signed(signed: &Signed) -> Result<Self, Unproven> {
        Self::verified(&KIND.take(signed.clone())?)
    }

    fn verified(statement: &Statement<ProviderBody>) -> Result<Self, Unproven> {
        let certificate = Self::read(&statement.body)?;
        statement.verify(certificate.provider.key(), certificate.terms.mesh.as_ref())?;
        Ok(certificate)
    }

    /// As [`Self::open`], for bytes whose signature was found good before.
    pub(crate) fn reopen(bytes: &[u8]) -> Result<Self, Unproven> {
        Self::read(&KIND.read(bytes)?.body)
    }

    fn read(body: &ProviderBody) -> Result<Self, Unproven> {
        if body.schema != SCHEMA {
            return Err(Unproven::UnknownVersion);
        }
        let peer = |bytes: &[u8]| PeerId::from_bytes(bytes).map_err(|_| Unproven::Malformed);
        let mesh = (!body.mesh.is_empty()).then(|| body.mesh.parse()).transpose();
        let terms = Terms {
            subject: peer(&body.subject)?,
            mesh: mesh.map_err(|_| Unproven::Malformed)?,
            constraints: body.constraints.clone(),
            validity: Validity { from_ms: body.from_ms, until_ms: body.until_ms },
        };
        let provider = peer(&body.provider)?.try_into().map_err(|_| Unproven::NotEd25519)?;
        Ok(Self { provider, terms })
    }

    /// Who has signed it.
    #[must_use]
    pub fn provider(&self) -> &ProviderId {
        &self.provider
    }

    /// For which node it is, and when it counts.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The first label that a node with `labels` lacks, or has with another value, and the value that is asked for.
    #[must_use]
    pub fn unmet(&self, labels: &BTreeMap<String, String>) -> Option<(&str, &str)> {
        let unmet = self.terms.constraints.iter().find(|(label, value)| labels.get(*label) != Some(value));
        unmet.map(|(label, value)| (label.as_str(), value.as_str()))
    }

    /// Whether it counts for `peer`, whose entry has `labels`, at `now_ms` by our wall clock.
    ///
    /// # Errors
    /// Why not.
    pub fn verify(
        &self,
        peer: &PeerId,
        labels: &BTreeMap<String, String>,
        rules: &ProviderRules,
        now_ms: u64,
    ) -> Result<ProviderId, Unproven> {
        let Terms { subject, mesh, validity, .. } = &self.terms;
        if rules.revoked_keys.contains(self.provider.key()) {
            Err(Unproven::RevokedKey)
        } else if subject != peer {
            Err(Unproven::OtherPeer)
        } else if mesh.as_ref().is_some_and(|mesh| *mesh != rules.mesh) {
            Err(Unproven::OtherMesh)
        } else if self.unmet(labels).is_some() {
            Err(Unproven::OtherLabels)
        } else if validity.begins_after(now_ms) {
            Err(Unproven::NotYetValid)
        } else if validity.has_ended(now_ms) {
            Err(Unproven::Expired)
        } else {
            Ok(self.provider)
        }
    }
}
