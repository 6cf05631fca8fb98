//! Flags of `otela relay`.

use super::PeerArgs;
use std::net::SocketAddr;

/// Flags of `otela relay`.
#[derive(Debug, clap::Args)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// Where the registry, health and metrics can be read over HTTP; port 0 takes a free one.
    #[arg(long, env = "OTELA_OBSERVE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) http: SocketAddr,
}
