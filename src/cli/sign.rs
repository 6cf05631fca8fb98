//! Flags of `otela key`, `otela sign` and `otela verify`.

use super::parse::label;
use otela_proto::{
    PeerId,
    id::{MeshName, peer_id},
};
use semver::Version;
use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

/// Flags of `otela key`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeyArgs {
    /// The key's file, made if it is not there. Whoever has it is the peer, the maintainer, or the provider: keep it safe.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Flags of `otela sign`.
#[derive(Debug, clap::Args)]
pub(crate) struct SignArgs {
    /// The binary to sign; this one, if not given.
    #[arg(value_name = "BINARY", requires = "binary_version", conflicts_with = "of_peer")]
    pub(crate) binary: Option<PathBuf>,
    /// The version of BINARY.
    #[arg(long, value_name = "VERSION", requires = "binary", conflicts_with = "of_peer")]
    pub(crate) binary_version: Option<Version>,
    /// Sign that this peer is a member, instead of a binary.
    #[arg(long, value_name = "PEER", requires = "mesh", group = "of_peer", value_parser = peer_id)]
    pub(crate) member: Option<PeerId>,
    /// Sign that this peer is a node of yours, as the provider that the key stands for.
    #[arg(long, value_name = "PEER", group = "of_peer", value_parser = peer_id)]
    pub(crate) provider_of: Option<PeerId>,
    /// The mesh that the peer is a member of; for a provider's node the mesh that the certificate is for, any if not
    /// given.
    #[arg(long, value_name = "NAME", requires = "of_peer")]
    pub(crate) mesh: Option<MeshName>,
    /// A label that the provider's node must have for the certificate to count, such as site=cscs; several times.
    #[arg(long, value_name = "LABEL=VALUE", requires = "provider_of", value_parser = label)]
    pub(crate) constraint: Vec<(String, String)>,
    /// The signer's key, made with `otela key`.
    #[arg(long, env = "OTELA_SIGN_KEY", value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// From when it counts, for example 2026-12-01T00:00:00Z; from now on, if not given.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) from: Option<SystemTime>,
    /// For how long it counts.
    #[arg(long = "for", value_name = "TIME", default_value = "180d", value_parser = validity)]
    pub(crate) valid_for: Duration,
    /// Where to write it; BINARY.release, PEER.membership or PEER.provider, if not given.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

fn time(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text).map_err(|_| "not a time such as 2026-12-01T00:00:00Z".to_owned())
}

/// What ends before it begins is a slip.
fn validity(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_secs(1)..=Duration::from_hours(24 * 365 * 100);
    if allowed.contains(&time) { Ok(time) } else { Err("allowed are 1s to 100y".to_owned()) }
}

/// Flags of `otela verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The binary to check; this one, if not given.
    #[arg(value_name = "BINARY", conflicts_with_all = ["membership", "provider"])]
    pub(crate) binary: Option<PathBuf>,
    /// What is said of the binary; BINARY.release, if not given.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["membership", "provider"])]
    pub(crate) release: Option<PathBuf>,
    /// Check a membership instead of a binary.
    #[arg(long, value_name = "FILE", requires = "mesh_file")]
    pub(crate) membership: Option<PathBuf>,
    /// Check a provider certificate instead of a binary.
    #[arg(long, value_name = "FILE", conflicts_with = "membership")]
    pub(crate) provider: Option<PathBuf>,
    /// The mesh file whose rules to check by; without one only the signature itself is checked.
    #[arg(long, env = "OTELA_PEER_MESH_FILE", value_name = "FILE")]
    pub(crate) mesh_file: Option<PathBuf>,
}
