//! For how long a node has its machine: what its flags say, and what a Slurm job tells by its environment.

use otela_node::agent::{Allocation, Job};
use std::time::{Duration, SystemTime};

/// For how long a node has its machine.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Allocation")]
pub(crate) struct AllocationArgs {
    /// The node has its machine for so long from now, for example 12h. In a Slurm job the end is known without.
    #[arg(long, env = "OTELA_START_ENDS_IN", value_name = "TIME", value_parser = ends_in, conflicts_with = "ends_at")]
    ends_in: Option<Duration>,
    /// The node has its machine until then, for example 2026-12-01T18:00:00Z.
    #[arg(long, env = "OTELA_START_ENDS_AT", value_name = "TIME", value_parser = ends_at)]
    ends_at: Option<SystemTime>,
    /// So long before the end it takes no new requests: as much as the longest ones need.
    #[arg(long, env = "OTELA_START_DRAIN_BEFORE_END", value_name = "TIME", default_value = "2m", value_parser = humantime::parse_duration)]
    drain_before_end: Duration,
    /// The job that this runs in.
    #[arg(long, env = "SLURM_JOB_ID", value_name = "ID", hide = true)]
    slurm_job_id: Option<String>,
    /// The array that the job belongs to.
    #[arg(long, env = "SLURM_ARRAY_JOB_ID", value_name = "ID", hide = true)]
    slurm_array_job_id: Option<String>,
    /// Its partition.
    #[arg(long, env = "SLURM_JOB_PARTITION", value_name = "NAME", hide = true)]
    slurm_job_partition: Option<String>,
    /// Its reservation.
    #[arg(long, env = "SLURM_JOB_RESERVATION", value_name = "NAME", hide = true)]
    slurm_job_reservation: Option<String>,
    /// Whose it is.
    #[arg(long, env = "SLURM_JOB_USER", value_name = "NAME", hide = true)]
    slurm_job_user: Option<String>,
    /// When it ends, in seconds since the Unix epoch.
    #[arg(long, env = "SLURM_JOB_END_TIME", value_name = "SECONDS", hide = true)]
    slurm_job_end_time: Option<String>,
}

fn ends_in(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("there is no time left".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

fn ends_at(text: &str) -> Result<SystemTime, String> {
    let example = "an example: 2026-12-01T18:00:00Z";
    let at = humantime::parse_rfc3339(text).map_err(|error| format!("{error}; {example}"))?;
    if at > SystemTime::now() { Ok(at) } else { Err("it lies in the past".to_owned()) }
}

impl AllocationArgs {
    /// The same as settings.
    pub(super) fn settings(&self) -> Allocation {
        Allocation {
            job: self.job(),
            ends_at: self.ends_at.or_else(|| SystemTime::now().checked_add(self.ends_in?)),
            margin: self.drain_before_end,
        }
    }

    fn job(&self) -> Option<Job> {
        Some(Job {
            id: self.slurm_job_id.clone().filter(|id| !id.is_empty())?,
            array: self.slurm_array_job_id.clone(),
            partition: self.slurm_job_partition.clone(),
            reservation: self.slurm_job_reservation.clone(),
            user: self.slurm_job_user.clone(),
            // Whatever else is there is not for us to refuse.
            end_time_s: self.slurm_job_end_time.as_deref().and_then(|seconds| seconds.parse().ok()),
        })
    }
}
