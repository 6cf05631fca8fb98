//! Flags of `otela doctor`, and what the environment says of the place that it runs in.

use super::{PeerArgs, egress::ViaArgs};
use clap::ValueEnum;
use std::{path::PathBuf, time::Duration};

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
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// What is to run here.
    #[arg(long = "as", value_name = "ROLE", default_value = "node")]
    pub(crate) role: As,
    /// How long to wait for the mesh, and for its relays.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) within: Duration,
    /// How long requests may run on after the node was told to stop: held against what Slurm allows.
    #[arg(long, env = "OTELA_START_DRAIN", value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,
    /// How long the engine may take to end before it is killed: held against what Slurm allows.
    #[arg(long, env = "OTELA_START_STOP_GRACE", value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) stop_grace: Duration,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The place that a peer is to run in, in the words of the environment. All of it is text, as it comes from elsewhere:
/// what cannot be understood says nothing, and is no reason to refuse.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    pub(crate) gpus: GpuArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Tools take it for http://; peers have no use for it.
    #[arg(long, env = "http_proxy", hide = true, default_value = "")]
    pub(crate) http_proxy: String,
    /// Some tools take this one.
    #[arg(long, env = "HTTP_PROXY", hide = true, default_value = "")]
    pub(crate) http_proxy_upper: String,
    /// Where engines keep weights and what they compile.
    #[arg(long, env = "HOME", hide = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// Where engines keep what lasts as long as they do.
    #[arg(long, env = "TMPDIR", hide = true, value_name = "DIR")]
    pub(crate) tmpdir: Option<PathBuf>,
}

/// Which accelerators are this job's.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct GpuArgs {
    #[arg(long, env = "CUDA_VISIBLE_DEVICES", hide = true, value_name = "LIST")]
    pub(crate) cuda_visible_devices: Option<String>,
    #[arg(long, env = "ROCR_VISIBLE_DEVICES", hide = true, value_name = "LIST")]
    pub(crate) rocr_visible_devices: Option<String>,
    #[arg(long, env = "HIP_VISIBLE_DEVICES", hide = true, value_name = "LIST")]
    pub(crate) hip_visible_devices: Option<String>,
    #[arg(long, env = "SLURM_GPUS_ON_NODE", hide = true, default_value = "")]
    pub(crate) slurm_gpus_on_node: String,
    #[arg(long, env = "SLURM_JOB_GPUS", hide = true, default_value = "")]
    pub(crate) slurm_job_gpus: String,
    #[arg(long, env = "SLURM_STEP_GPUS", hide = true, default_value = "")]
    pub(crate) slurm_step_gpus: String,
}

/// The Slurm job around us; everything is empty outside of one.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct JobArgs {
    #[arg(long, env = "SLURM_JOB_ID", hide = true, default_value = "")]
    pub(crate) slurm_job_id: String,
    #[arg(long, env = "SLURM_JOB_PARTITION", hide = true, default_value = "")]
    pub(crate) slurm_job_partition: String,
    /// Seconds since 1970; newer Slurm only.
    #[arg(long, env = "SLURM_JOB_END_TIME", hide = true, default_value = "")]
    pub(crate) slurm_job_end_time: String,
    /// MiB.
    #[arg(long, env = "SLURM_MEM_PER_NODE", hide = true, default_value = "")]
    pub(crate) slurm_mem_per_node: String,
    /// MiB.
    #[arg(long, env = "SLURM_MEM_PER_CPU", hide = true, default_value = "")]
    pub(crate) slurm_mem_per_cpu: String,
    #[arg(long, env = "SLURM_CPUS_ON_NODE", hide = true, default_value = "")]
    pub(crate) slurm_cpus_on_node: String,
    /// Of the step that we are in, for each of its nodes: `2(x3),1`.
    #[arg(long, env = "SLURM_STEP_TASKS_PER_NODE", hide = true, default_value = "")]
    pub(crate) slurm_step_tasks_per_node: String,
    /// Which of the step's nodes this is, from 0.
    #[arg(long, env = "SLURM_NODEID", hide = true, default_value = "")]
    pub(crate) slurm_nodeid: String,
}
