//! Flags of `otela relay`.

use super::PeerArgs;
use otela_node::peer::RelayLimits;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Flags of `otela relay`.
#[derive(Debug, clap::Args)]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    /// Where the registry, health and metrics can be read over HTTP; port 0 takes a free one.
    #[arg(long, env = "OTELA_OBSERVE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = super::listen_address)]
    pub(crate) http: SocketAddr,
    /// Keep in this folder what nodes of the mesh write down of engines that failed, which they send with --log-sink peer:ID.
    #[arg(long, env = "OTELA_RELAY_POST_MORTEMS", value_name = "FOLDER")]
    pub(crate) post_mortems: Option<PathBuf>,
    /// Peers that are reached through this relay at once.
    #[arg(long, env = "OTELA_RELAY_RESERVATIONS_MAX", value_name = "N", default_value_t = RelayLimits::default().reservations_max)]
    reservations_max: usize,
    /// Connections that are relayed at once.
    #[arg(long, env = "OTELA_RELAY_CIRCUITS_MAX", value_name = "N", default_value_t = RelayLimits::default().circuits_max)]
    circuits_max: usize,
    /// The same of one peer.
    #[arg(long, env = "OTELA_RELAY_CIRCUITS_PER_PEER_MAX", value_name = "N", default_value_t = RelayLimits::default().circuits_per_peer_max)]
    circuits_per_peer_max: usize,
    /// Bytes that one relayed connection may carry, both ways together. As many as there are, if not given.
    #[arg(long, env = "OTELA_RELAY_CIRCUIT_BYTES_MAX", value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    circuit_bytes_max: Option<u64>,
    /// How long one relayed connection may last.
    #[arg(long, env = "OTELA_RELAY_CIRCUIT_FOR_MAX", value_name = "TIME", default_value = "30d", value_parser = circuit_for)]
    circuit_for_max: Duration,
}

/// What is sent in the protocol are 32 bits of seconds, and zero would end every connection at once.
fn circuit_for(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_secs(1)..=Duration::from_hours(24 * 365 * 100);
    if allowed.contains(&time) { Ok(time) } else { Err("allowed are 1s to 100y".to_owned()) }
}

impl RelayArgs {
    /// What is relayed for others.
    pub(crate) fn limits(&self) -> RelayLimits {
        RelayLimits {
            reservations_max: self.reservations_max,
            circuits_max: self.circuits_max,
            circuits_per_peer_max: self.circuits_per_peer_max,
            circuit_bytes_max: self.circuit_bytes_max,
            circuit_for_max: self.circuit_for_max,
        }
    }
}
