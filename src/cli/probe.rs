//! Flags of `otela probe`.

use super::{PeerArgs, egress::ViaArgs, parse::whom};
use multiaddr::Multiaddr;
use otela_node::peer::probe::Wanted;
use otela_proto::{
    PeerId,
    measure::{BULK_BYTES_MAX, BULK_WITHIN_MAX, ECHOES_MAX},
};
use std::time::Duration;

/// A peer that is to be measured: its id, and an address where one was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whom {
    pub(crate) peer: PeerId,
    pub(crate) address: Option<Multiaddr>,
}

/// Flags of `otela probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct ProbeArgs {
    /// A peer's id, found in the mesh that --bootstrap leads to; or a multiaddress that ends in /p2p/ID.
    #[arg(value_name = "PEER", value_parser = whom)]
    pub(crate) whom: Whom,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
    /// Round trips to measure on each way.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(ECHOES_MAX)))]
    count: u32,
    /// Bytes to send and to fetch on each way, at most 67108864; 0 leaves throughput out.
    #[arg(long, value_name = "BYTES", default_value_t = 8 * 1024 * 1024, value_parser = clap::value_parser!(u64).range(0..=BULK_BYTES_MAX))]
    bytes: u64,
    /// How long that may take in each direction, at most 10s: what has come by then counts.
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = within)]
    within: Duration,
    /// How long to wait for a direct way to a peer that is reached through a relay only.
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = humantime::parse_duration)]
    pub(crate) punch_within: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

fn within(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(1)..=BULK_WITHIN_MAX;
    if allowed.contains(&time) { Ok(time) } else { Err("allowed are 1ms to 10s".to_owned()) }
}

impl ProbeArgs {
    /// What is measured on each way.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted { count: self.count, bytes: self.bytes, within: self.within }
    }
}
