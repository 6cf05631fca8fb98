//! Flags of `otela doctor`.

use super::{PeerArgs, egress::ViaArgs};
use clap::ValueEnum;
use std::time::Duration;

/// What is to run here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum As {
    /// A node: `otela start`.
    Node,
    /// An ingress.
    Ingress,
    /// A relay.
    Relay,
}

/// Flags of `otela doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
    /// What is to run here.
    #[arg(long = "as", value_name = "ROLE", default_value = "node")]
    pub(crate) role: As,
    /// How long to wait for the mesh, and for its relays.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) within: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
