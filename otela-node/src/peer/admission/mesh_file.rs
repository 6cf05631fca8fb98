//! The mesh file: what the operators of a mesh give to everybody who runs a peer of it.

use crate::peer::small;
use libp2p::PeerId;
use otela_proto::{
    admission::{BinaryDigest, Rules},
    id::{MeshName, peer_id},
};
use semver::Version;
use serde::{Deserialize, Deserializer, de::Error};
use std::{
    collections::BTreeSet,
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

/// No mesh file is longer.
pub(super) const BYTES_MAX: u64 = 1024 * 1024;

/// A mesh file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshFile {
    /// Whom the mesh admits; its name is in there.
    pub rules: Rules,
    /// Peers to join through, as `--bootstrap` takes them.
    pub bootstrap: Vec<String>,
}

/// Why a mesh file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MeshFileError {
    /// It cannot be read.
    #[error("cannot read the mesh file {path}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// It is not as it should be.
    #[error("the mesh file {path} is not right: {reason}")]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// What, where, and what to do.
        reason: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(deserialize_with = "parsed")]
    name: MeshName,
    #[serde(default)]
    bootstrap: Vec<String>,
    #[serde(default)]
    release: ReleaseForm,
    #[serde(default)]
    membership: MembershipForm,
    #[serde(default)]
    revoked: RevokedForm,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseForm {
    #[serde(default, deserialize_with = "some_peers")]
    keys: Option<BTreeSet<PeerId>>,
    require_signed: Option<bool>,
    min_version: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MembershipForm {
    #[serde(default, deserialize_with = "some_peers")]
    keys: Option<BTreeSet<PeerId>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokedForm {
    #[serde(default, deserialize_with = "binaries")]
    binaries: BTreeSet<BinaryDigest>,
    #[serde(default, deserialize_with = "peers")]
    keys: BTreeSet<PeerId>,
    #[serde(default, deserialize_with = "peers")]
    peers: BTreeSet<PeerId>,
}

fn parsed<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn peers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<PeerId>, D::Error> {
    all(from, peer_id)
}

fn some_peers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeSet<PeerId>>, D::Error> {
    peers(from).map(Some)
}

fn binaries<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<BinaryDigest>, D::Error> {
    all(from, str::parse)
}

fn all<'de, T: Ord, E: fmt::Display, D: Deserializer<'de>>(
    from: D,
    parse: fn(&str) -> Result<T, E>,
) -> Result<BTreeSet<T>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| parse(text).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))).collect()
}

impl MeshFile {
    /// Reads a mesh file.
    ///
    /// # Errors
    /// [`MeshFileError`].
    pub fn load(path: &Path) -> Result<Self, MeshFileError> {
        let io = |source| MeshFileError::Io { path: path.to_owned(), source };
        Self::of_text(&small::read(path, BYTES_MAX).map_err(io)?, path)
    }

    /// Reads the text of the mesh file at `path`.
    pub(super) fn of_text(text: &str, path: &Path) -> Result<Self, MeshFileError> {
        Self::parse(text).map_err(|reason| MeshFileError::Wrong { path: path.to_owned(), reason })
    }

    /// Reads the text of a mesh file.
    ///
    /// # Errors
    /// What is wrong, on one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form: Form = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{place}{}", error.message().replace('\n', " "))
        })?;
        let release = form.release;
        let require_signed = release.require_signed.unwrap_or(release.keys.is_some());
        if require_signed && release.keys.as_ref().is_none_or(BTreeSet::is_empty) {
            return Err("[release] require_signed needs keys: without them nobody could join".to_owned());
        }
        for (table, keys) in [("release", &release.keys), ("membership", &form.membership.keys)] {
            if keys.as_ref().is_some_and(BTreeSet::is_empty) {
                return Err(format!(
                    "[{table}] keys is empty, which lets everybody in: name a key, or leave the table out"
                ));
            }
        }
        if release.min_version.is_some() && !require_signed {
            return Err(
                "[release] min_version needs require_signed: what is not signed may claim any version".to_owned()
            );
        }
        let min_version = release.min_version.map(|version| Version::parse(&version)).transpose();
        let min_version = min_version.map_err(|error| format!("[release] min_version: {error}"))?;
        let rules = Rules {
            mesh: form.name,
            release_keys: release.keys.unwrap_or_default(),
            require_signed,
            min_version,
            authorities: form.membership.keys.unwrap_or_default(),
            revoked_binaries: form.revoked.binaries,
            revoked_keys: form.revoked.keys,
            revoked_peers: form.revoked.peers,
        };
        Ok(Self { rules, bootstrap: form.bootstrap })
    }
}
