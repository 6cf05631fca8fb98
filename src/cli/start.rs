//! Flags of `otela start`.

use super::{
    PeerArgs,
    allocation::AllocationArgs,
    egress::ViaArgs,
    parse::{engine_url, label, open_path, service},
    provider::ProviderArgs,
    supervise::SuperviseArgs,
};
use crate::exit::CommandError;
use otela_node::{
    agent::{AgentConfig, Assignable, Attached, Job, LaunchTemplate, ServiceConfig, hardware::Visible},
    engine::{Echo, ReadyOptions},
};
use otela_proto::{PeerId, id::peer_id};
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

/// Flags of `otela start`.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) via: ViaArgs,
    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
    #[command(flatten)]
    allocation: AllocationArgs,
    #[command(flatten)]
    supervise: SuperviseArgs,
    /// A label that others see, for example team=vision; may be given several times.
    #[arg(long = "label", env = "OTELA_START_LABELS", value_name = "KEY=VALUE", value_parser = label, value_delimiter = ',')]
    labels: Vec<(String, String)>,
    /// Name of the service that the engine offers; `llm` stands for the OpenAI API.
    #[arg(long, env = "OTELA_START_SERVICE", value_name = "NAME", default_value = "llm", value_parser = service)]
    service: String,
    /// Most requests in the engine's hands at once, from all ingresses together; further ones wait there.
    #[arg(long, env = "OTELA_START_IN_FLIGHT_MAX", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight_max: Option<u32>,
    /// A path of the engine that may be reached through the mesh beyond the inference routes, as
    /// /v1/service/NAME/PATH; one that ends in / opens all below it. Several times, or separated by commas.
    #[arg(long = "open-path", env = "OTELA_START_OPEN_PATHS", value_name = "PATH", value_delimiter = ',', value_parser = open_path)]
    open_paths: Vec<String>,
    /// Where the registry, health and metrics can be read over HTTP; port 0 takes a free one.
    #[arg(long, env = "OTELA_OBSERVE_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = super::listen_address)]
    pub(crate) http: SocketAddr,
    /// How long the engine may take to become ready.
    #[arg(long, env = "OTELA_START_READY_WITHIN", value_name = "TIME", default_value = "6h", value_parser = humantime::parse_duration)]
    ready_within: Duration,
    /// How long requests may run on after a stop was asked for.
    #[arg(long, env = "OTELA_START_DRAIN", value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
    /// How long the engine may take to end before it is killed.
    #[arg(long, env = "OTELA_START_STOP_GRACE", value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    stop_grace: Duration,
    /// How long the node shows that it is down before it leaves, when its engine has ended by itself.
    #[arg(long, env = "OTELA_START_LINGER", value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    linger: Duration,
    /// A scheduler that may tell this node what to serve, by its peer id; several times, or separated by commas. The node is
    /// then idle until it is told. Nobody else may tell it anything.
    #[arg(
        long = "scheduler",
        env = "OTELA_START_SCHEDULERS",
        value_name = "PEER",
        value_parser = peer_id,
        value_delimiter = ',',
        requires = "templates",
        conflicts_with = "process"
    )]
    schedulers: Vec<PeerId>,
    /// How engines are started that a scheduler asks for (TOML): for each name a command line, in which {model},
    /// {tensor_parallel}, {data_parallel} and {port} are filled in; docs/scheduler.md has one.
    #[arg(long, env = "OTELA_START_TEMPLATES", value_name = "FILE", requires = "schedulers")]
    templates: Option<PathBuf>,
    /// An engine that runs already, on this machine or beside it, for example http://127.0.0.1:8000; in the place of --process.
    /// Whoever runs it starts it again; the node waits for it.
    #[arg(long, env = "OTELA_START_ATTACH", value_name = "URL", value_parser = engine_url, conflicts_with_all = ["process", "schedulers", "restart", "restarts_max", "fatal"])]
    attach: Option<(String, u16)>,
    /// The key that such an engine wants, alone in a file.
    #[arg(long, env = "OTELA_START_ATTACH_KEY", value_name = "FILE", requires = "attach")]
    attach_key: Option<PathBuf>,
    /// Accelerators of this job, as CUDA sees them.
    #[arg(long, env = "CUDA_VISIBLE_DEVICES", value_name = "LIST", hide = true)]
    cuda_visible_devices: Option<String>,
    /// Accelerators of this job, as ROCm sees them.
    #[arg(long, env = "ROCR_VISIBLE_DEVICES", value_name = "LIST", hide = true)]
    rocr_visible_devices: Option<String>,
    /// The engine. Everything after it is the engine's own command line, passed on untouched. Must come last.
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true, trailing_var_arg = true)]
    process: Option<Vec<OsString>>,
}

impl StartArgs {
    /// The settings of the agent.
    pub(crate) fn agent(&self) -> Result<AgentConfig, CommandError> {
        let templates = self.templates.as_deref().map(LaunchTemplate::load).transpose()?.unwrap_or_default();
        let allocation = self.allocation.settings();
        let mut labels = allocation.job.as_ref().map(Job::labels).unwrap_or_default();
        labels.extend(self.labels.iter().cloned());
        let mut agent = AgentConfig {
            process: self.process.clone(),
            attached: self.attached()?,
            assignable: Assignable { schedulers: self.schedulers.clone(), templates },
            labels,
            allocation,
            service: ServiceConfig {
                name: self.service.clone(),
                in_flight_max: self.in_flight_max.unwrap_or(0),
                paths: self.open_paths.clone(),
            },
            ready: ReadyOptions { limit: self.ready_within, ..ReadyOptions::default() },
            drain_within: self.drain,
            stop_grace: self.stop_grace,
            linger: self.linger,
            visible: Visible { cuda: self.cuda_visible_devices.clone(), rocm: self.rocr_visible_devices.clone() },
            echo: Some(Echo::to_own_output()?),
            ..AgentConfig::default()
        };
        self.supervise.settle(&mut agent)?;
        Ok(agent)
    }

    fn attached(&self) -> Result<Option<Attached>, CommandError> {
        let Some((host, port)) = self.attach.clone() else { return Ok(None) };
        let key = self.attach_key.as_ref().map(|path| {
            let unreadable = |source| CommandError::EngineKey { path: path.clone(), source };
            std::fs::read_to_string(path).map(|key| key.trim().to_owned()).map_err(unreadable)
        });
        Ok(Some(Attached { host, port, api_key: key.transpose()? }))
    }
}
