//! Flags that every peer has.

use super::parse::address;
use crate::exit::CommandError;
use multiaddr::Multiaddr;
use otela_node::peer::{Choice, Identity, Patience, PeerConfig, State};
use otela_proto::{id::MeshName, payload::Role};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Which mesh, and how to be reached in it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Mesh")]
pub(crate) struct PeerArgs {
    /// Name of the mesh; peers of different meshes never talk.
    #[arg(long, env = "OTELA_PEER_MESH", value_name = "NAME", default_value = "otela")]
    mesh: MeshName,
    /// A peer to join through, as HOST:PORT or multiaddress; several times, or separated by commas. Tried for ever.
    #[arg(long, env = "OTELA_PEER_BOOTSTRAP", value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    bootstrap: Vec<Multiaddr>,
    /// Where to listen for other peers, as multiaddress or HOST:PORT; several times, or separated by commas. Any free
    /// port on every interface, if not given; for a relay port 7411.
    #[arg(long, env = "OTELA_PEER_LISTEN", value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    peer_listen: Vec<Multiaddr>,
    /// Address under which others reach this peer, if it differs from the ones it listens on.
    #[arg(long = "external", env = "OTELA_PEER_EXTERNAL", value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    external: Vec<Multiaddr>,
    /// Of the addresses that it listens on, tell others only those of this interface or subnet; with ! before it, all but
    /// those. Several times, or separated by commas: hsn0,10.0.0.0/8. Loopback, link-local addresses and bridges of
    /// containers are left out anyway, unless there are no others or the interface is named.
    #[arg(long, env = "OTELA_PEER_ANNOUNCE", value_name = "INTERFACE|SUBNET", value_delimiter = ',')]
    announce: Vec<Choice>,
    /// File with this peer's key, made if it is not there. Without it the key lasts as long as the process.
    #[arg(long, env = "OTELA_PEER_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Directory on this machine's disk to remember peers of the mesh in, and the last epoch of the peer's key: after a
    /// restart the mesh is found though the bootstraps are gone. Made if it is not there.
    #[arg(long, env = "OTELA_PEER_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where this peer is: others see it as the label `site`. Without it, peers whose first addresses are of the same /16
    /// network count as being at one site.
    #[arg(long, env = "OTELA_PEER_SITE", value_name = "NAME")]
    site: Option<String>,
    /// How long a silent peer of the same site is waited for before this one votes to evict it.
    #[arg(long, env = "OTELA_PEER_GRACE", value_name = "TIME", default_value = "5s", value_parser = grace)]
    grace: Duration,
    /// The same for peers of other sites.
    #[arg(long, env = "OTELA_PEER_GRACE_FAR", value_name = "TIME", default_value = "15s", value_parser = grace)]
    grace_far: Duration,
    /// How long nodes that have left or were evicted can still be read. Nothing is kept for longer than 24h.
    #[arg(long, env = "OTELA_PEER_RETENTION", value_name = "TIME", default_value = "24h", value_parser = humantime::parse_duration)]
    retention: Duration,
}

/// A grace period shorter than a refutation's way would evict the living.
fn grace(text: &str) -> Result<Duration, String> {
    let grace = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if grace < Duration::from_secs(1) { Err("shorter than 1s".to_owned()) } else { Ok(grace) }
}

impl PeerArgs {
    /// The mesh.
    pub(crate) fn mesh(&self) -> &MeshName {
        &self.mesh
    }

    /// The key file, if one was named.
    pub(crate) fn key(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    /// The state directory, if one was named.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        self.state.as_deref()
    }

    /// The same, of a peer that touches nothing on disk.
    pub(crate) fn without_files(self) -> Self {
        Self { key: None, state: None, ..self }
    }

    /// The settings of a peer with `roles`, listening on `listen` unless told otherwise.
    pub(crate) fn config(self, roles: Vec<Role>, listen: &[&str]) -> Result<PeerConfig, CommandError> {
        let identity = match &self.key {
            Some(path) => Identity::load_or_create(path)?,
            None => Identity::ephemeral(),
        };
        let state = self.state.map(|dir| State::open(&dir, &self.mesh)).transpose()?;
        let defaults = listen.iter().filter_map(|address| address.parse().ok());
        let listen = if self.peer_listen.is_empty() { defaults.collect() } else { self.peer_listen };
        Ok(PeerConfig {
            listen,
            external: self.external,
            announce: self.announce.into_iter().collect(),
            bootstrap: self.bootstrap,
            state,
            site: self.site,
            patience: Patience { grace_near: self.grace, grace_far: self.grace_far, retention: self.retention },
            ..PeerConfig::new(self.mesh, identity, roles)
        })
    }
}
