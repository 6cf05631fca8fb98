//! Flags that every peer has.

use super::{egress::EgressArgs, parse::address};
use crate::exit::CommandError;
use multiaddr::Multiaddr;
use otela_node::{
    peer::{
        Bootstrap, Choice, Identity, Patience, PeerConfig, State,
        admission::{AdmissionError, AdmissionSettings, MeshFile, MeshFileError, OwnBinary},
        bootstrap::BootstrapError,
    },
    telemetry::chain,
};
use otela_proto::{id::MeshName, payload::Role};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// The mesh of those who name none.
const DEFAULT_MESH: &str = "otela";

/// Which mesh, and how to be reached in it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Mesh")]
pub(crate) struct PeerArgs {
    /// Name of the mesh; peers of different meshes never talk. `otela`, if neither this nor a mesh file is given.
    #[arg(long, env = "OTELA_PEER_MESH", value_name = "NAME")]
    mesh: Option<MeshName>,
    /// The mesh file, which the mesh's operators give to everybody: its name, peers to join through, whose signatures
    /// count, and who is revoked. What changes in it counts at once.
    #[arg(long, env = "OTELA_PEER_MESH_FILE", value_name = "FILE")]
    mesh_file: Option<PathBuf>,
    /// What a maintainer says of this binary. The file beside the binary with `.release` after its name, if not given.
    #[arg(long, env = "OTELA_PEER_RELEASE", value_name = "FILE")]
    release: Option<PathBuf>,
    /// What an authority of the mesh says of this peer, where the mesh asks for it. Without the mesh file this peer would
    /// let everybody in.
    #[arg(long, env = "OTELA_PEER_MEMBERSHIP", value_name = "FILE", requires_all = ["key", "mesh_file"])]
    membership: Option<PathBuf>,
    /// Whom to join through: HOST:PORT, a multiaddress, /dnsaddr/HOST, or the http(s) URL of a list; several times, or
    /// separated by commas. Tried for ever.
    #[arg(long, env = "OTELA_PEER_BOOTSTRAP", value_name = "ADDR", value_delimiter = ',')]
    bootstrap: Vec<Bootstrap>,
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
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
}

fn default_mesh() -> MeshName {
    DEFAULT_MESH.parse().expect("it is a name")
}

/// A grace period shorter than a refutation's way would evict the living.
fn grace(text: &str) -> Result<Duration, String> {
    let grace = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if grace < Duration::from_secs(1) { Err("shorter than 1s".to_owned()) } else { Ok(grace) }
}

/// The peers to join through that a mesh file names.
fn bootstraps_of(path: &Path) -> Result<Vec<Bootstrap>, CommandError> {
    let wrong = |text: &str, error: BootstrapError| MeshFileError::Wrong {
        path: path.to_owned(),
        reason: format!("bootstrap {text:?}: {}", chain(&error)),
    };
    let texts = MeshFile::load(path)?.bootstrap;
    let bootstraps = texts.iter().map(|text| text.parse().map_err(|error| wrong(text, error).into()));
    bootstraps.collect()
}

impl PeerArgs {
    /// Whom the mesh admits, and what this peer shows. A peer that its own mesh would refuse is not started: the others
    /// keep the same rules.
    fn admission(&self, identity: &Identity) -> Result<AdmissionSettings, CommandError> {
        let me = identity.keypair().public().to_peer_id();
        let mut settings = match &self.mesh_file {
            None => AdmissionSettings::open(self.mesh.clone().unwrap_or_else(default_mesh)),
            Some(path) => AdmissionSettings::of(&MeshFile::load(path)?, path),
        };
        if let Some(named) = self.mesh.as_ref().filter(|named| **named != settings.rules.mesh) {
            return Err(CommandError::TwoMeshes { named: named.clone(), of_file: settings.rules.mesh });
        }
        let mut binary = OwnBinary::running()?;
        if let Some(statement) = &self.release {
            binary.statement.clone_from(statement);
            if !statement.exists() {
                return Err(AdmissionError::Missing { path: statement.clone() }.into());
            }
        }
        settings = settings.with_binary(&binary, self.release.is_some())?;
        if let Some(path) = &self.membership {
            settings = settings.with_membership(path, me)?;
        }
        settings.check(&me)?;
        Ok(settings)
    }

    /// The key file, if one was named.
    pub(crate) fn key(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    /// The state directory, if one was named.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        self.state.as_deref()
    }

    /// The settings of a peer that only looks. It has a key of its own, as an otela that runs here has the key's file;
    /// but where only members are admitted it is the member itself that looks, and must not run meanwhile.
    pub(crate) fn observer(self, roles: Vec<Role>, listen: &[&str]) -> Result<PeerConfig, CommandError> {
        let key = self.key.clone().filter(|_| self.membership.is_some());
        Self { key, state: None, ..self }.config(roles, listen)
    }

    /// The settings of a peer with `roles`, listening on `listen` unless told otherwise.
    pub(crate) fn config(self, roles: Vec<Role>, listen: &[&str]) -> Result<PeerConfig, CommandError> {
        let identity = match &self.key {
            Some(path) => Identity::load_or_create(path)?,
            None => Identity::ephemeral(),
        };
        let admission = self.admission(&identity)?;
        let mesh = admission.rules.mesh.clone();
        let mut bootstrap = self.bootstrap;
        if let (true, Some(path)) = (bootstrap.is_empty(), &self.mesh_file) {
            bootstrap = bootstraps_of(path)?;
        }
        let state = self.state.map(|dir| State::open(&dir, &mesh)).transpose()?;
        let defaults = listen.iter().filter_map(|address| address.parse().ok());
        let listen = if self.peer_listen.is_empty() { defaults.collect() } else { self.peer_listen };
        let egress = self.egress.egress(&listen)?;
        Ok(PeerConfig {
            listen,
            egress,
            external: self.external,
            announce: self.announce.into_iter().collect(),
            bootstrap,
            admission,
            state,
            site: self.site,
            patience: Patience { grace_near: self.grace, grace_far: self.grace_far, retention: self.retention },
            ..PeerConfig::new(mesh, identity, roles)
        })
    }
}
