//! Flags of `otela drain` and `otela logs`.

use super::{PeerArgs, egress::ViaArgs, supervise::ControlArgs};
use clap::ArgGroup;
use otela_proto::{PeerId, id::peer_id};
use std::{path::PathBuf, time::Duration};

/// Which node is meant.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").args(["node", "named", "local", "pid"]).required(true).multiple(true))]
pub(crate) struct WhichArgs {
    /// The node's peer id, in the mesh that --bootstrap leads to. It must know the peer of --key as its --operator.
    #[arg(value_name = "NODE", value_parser = peer_id)]
    node: Option<PeerId>,
    /// The same.
    #[arg(long = "node", value_name = "NODE", value_parser = peer_id, conflicts_with_all = ["node", "local", "pid"])]
    named: Option<PeerId>,
    /// The node that this user runs on this machine.
    #[arg(long, conflicts_with = "node")]
    pub(crate) local: bool,
    /// If there are several: the one with this process id.
    #[arg(long, value_name = "PID", conflicts_with = "node", value_parser = process_id)]
    pub(crate) pid: Option<u32>,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
}

fn process_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not the number of a process".to_owned())
}

impl WhichArgs {
    /// The node of the mesh, if it is not one of this machine.
    pub(crate) fn node(&self) -> Option<PeerId> {
        self.node.or(self.named)
    }

    /// Where nodes of this machine have their sockets.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        self.control.folders()
    }
}

/// Flags of `otela drain`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// How long requests that run may run on; as the node's --drain says, if not given.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Do not wait until the node has left.
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// Flags of `otela logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// So many of the last lines.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) lines: u64,
    /// Go on with what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
}
